"""A rolling upgrade from the last release with an older schema, and one step back, under load."""

from __future__ import annotations

import asyncio
import io
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.chaos.fleet import ROOT, SERVICES, environment
from tests.chaos.stack import Stack
from tests.chaos.town import Scenario, town
from tickmind.schema import SCHEMA_VERSION
from tickmind_migrations import upgrade

_SCHEMA = "shared/src/tickmind/schema.py"
_REPLICAS = 2
#: Migrating an empty database takes 3 s on 2 idle cores.
_MIGRATION_S = 120.0


def _git(*arguments: str) -> bytes:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, timeout=60
    ).stdout


def _schema_of(commit: str) -> str:
    found = re.search(
        r'^SCHEMA_VERSION = "(\w+)"', _git("show", f"{commit}:{_SCHEMA}").decode(), re.M
    )
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code that was the newest before the schema's last change was merged."""
    try:
        changes = _git("log", "--first-parent", "--format=%H", "--", _SCHEMA).decode().split()
        older = (f"{commit}^1" for commit in changes)
        commit = next(one for one in older if _schema_of(one) < SCHEMA_VERSION)
    except (OSError, StopIteration, subprocess.CalledProcessError):
        reason = "no git, or no history with an older schema in it: fetch all of it"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    checkout = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit))) as archive:
        archive.extractall(checkout, filter="data")
    return checkout


async def _python(*arguments: str, env: Mapping[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=dict(env), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(_MIGRATION_S):
        output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode().strip()


async def test_rolling_upgrade_and_a_step_back_lose_nothing(
    stack: Stack, scenario: Scenario, before: Path
) -> None:
    """The schema is migrated under the running old release, its replicas are replaced
    one by one, and one of each service is put back for a while beside the new ones."""
    async with town(stack, scenario, migrated=False, begin=False) as running:
        old = environment(running.fleet.settings, before)
        asked = "from tickmind.schema import SCHEMA_VERSION; print(SCHEMA_VERSION)"
        assert await _python("-c", asked, env=old) < SCHEMA_VERSION
        await _python("-m", "tickmind_migrations", env=old)
        replaced = await asyncio.gather(
            *(
                running.fleet.add(service, checkout=before)
                for service in SERVICES
                for _ in range(_REPLICAS)
            )
        )
        await running.begin({})

        async with running.fault("schema migrated under the old release"):
            await upgrade(running.database_settings, lambda _: None)
            await running.lived(2.0)
        for replica in replaced:
            async with running.fault(f"{replica} replaced"):
                await running.fleet.add(replica.service)
                await running.fleet.remove(replica)
        await running.recovered()
        for service in SERVICES:
            async with running.fault(f"{service} of the old release beside the new ones"):
                back = await running.fleet.add(service, checkout=before)
                await running.fleet.remove(running.fleet.replicas[service][0])
                await running.lived(2.0)
                await running.fleet.add(service)
                await running.fleet.remove(back)
