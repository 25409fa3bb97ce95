"""A PostgreSQL with a hot standby, at one address that moves when the standby takes over."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import make_url

from tests.chaos.broken_database import connected
from tests.chaos.stack import _TEMPLATE, Stack
from tests.proxy import Door, door
from tickmind.local import postgres
from tickmind.local.ports import LOOPBACK
from tickmind.local.postgres import SUPERUSER, LocalPostgres, running_postgres
from tickmind.local.processes import run, uninterrupted
from tickmind.settings import DatabaseSettings
from tickmind_migrations import upgrade

__all__ = ["Pair", "PairedStack", "running_pair"]

#: What replication needs beyond a single server's settings (documentation, "Replication").
_REPLICATED = {"wal_level": "replica", "max_wal_senders": "4"}
#: Copying 40 MB; a minute for slow disks.
_COPY_S = 60.0


class _Standby(LocalPostgres):
    """Has what its primary has."""

    async def create_database(self, database: str, *, template: str | None = None) -> None:
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A primary whose commits wait for the standby, and where both are reached."""

    primary: LocalPostgres
    standby: LocalPostgres
    address: Door

    async def lose_primary(self) -> None:
        """The primary dies; who comes from now on finds the standby, which is read-only."""
        child = self.primary.child
        assert child is not None
        child.send(signal.SIGQUIT)
        await child.wait()
        await child.stop()
        self.address.server = _socket(self.standby)

    async def promote(self) -> None:
        """The standby becomes a primary, for the sessions it has, too."""
        async with connected(self.standby.database_url("postgres")) as session:
            assert await session.fetchval("SELECT pg_promote()")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedStack(Stack):
    """A stack whose databases are reached at the address of the pair."""

    address: Door

    async def new_database(self, *, migrated: bool = True) -> DatabaseSettings:
        direct = await Stack.new_database(self, migrated=migrated)
        assert direct.database_url is not None
        name = make_url(direct.database_url.get_secret_value()).database
        url = f"postgresql://{SUPERUSER}@{LOOPBACK}:{self.address.port}/{name}"
        return DatabaseSettings(database_url=SecretStr(url))


@asynccontextmanager
async def running_pair(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    """Both servers, migrated; ended on leaving. Raises StartFailed."""
    for name, value in _REPLICATED.items():
        monkeypatch.setitem(postgres.SETTINGS, name, value)
    async with running_postgres(state_dir / "primary", durable=True) as primary:
        await primary.create_database(_TEMPLATE)
        template = SecretStr(primary.database_url(_TEMPLATE))
        await upgrade(DatabaseSettings(database_url=template), lambda _: None)
        standby = await _copied(primary, state_dir / "standby")
        try:
            await standby.start()
            # Now, or the copy would wait for a standby of its own once it is promoted.
            async with connected(primary.database_url("postgres")) as session:
                await session.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                await session.execute("SELECT pg_reload_conf()")
            async with door(_socket(primary)) as address:
                yield Pair(primary=primary, standby=standby, address=address)
        finally:
            await uninterrupted(standby.stop())


async def _copied(primary: LocalPostgres, data_dir: Path) -> LocalPostgres:
    """A standby of a running primary, not started yet."""
    socket_dir = data_dir / "socket"
    for place in (data_dir, socket_dir):
        place.mkdir()
        if primary.user is not None:
            os.chown(place, primary.user.uid, primary.user.gid)
    socket_dir.chmod(0o700)
    copy = ("-D", str(data_dir / "cluster"), "-h", str(primary.socket_dir), "-U", SUPERUSER)
    # -R: what makes it a standby is written into the copy.
    command = primary._command("pg_basebackup", *copy, "-R", "-X", "stream", "-c", "fast")
    await run(replace(command, log_path=data_dir / "copy.log"), timeout_s=_COPY_S)
    return _Standby(
        data_dir=data_dir,
        socket_dir=socket_dir,
        durable=primary.durable,
        user=primary.user,
        binaries=primary.binaries,
        log_path=data_dir / "postgres.log",
    )


def _socket(server: LocalPostgres) -> Path:
    return server.socket_dir / ".s.PGSQL.5432"
