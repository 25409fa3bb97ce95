"""The recorder as a process: `python -m tickmind_recorder`, as Kubernetes runs it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import urllib.error
import urllib.request
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from tests.processes import START_S
from tests.proxy import door
from tests.recording import client, left_in, tick_body, until_remembered, wire
from tests.running import eventually
from tickmind.database import Database
from tickmind.local.ports import free_port
from tickmind.local.postgres import LocalPostgres
from tickmind.local.rabbitmq import LocalRabbitmq
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind.topology import RECORDER_QUEUE
from tickmind_migrations import upgrade

_TALK = {"agent": "bob", "action": "talk", "speech": "The market sells fresh fish"}


class _Service:
    """A recorder process and its health port."""

    def __init__(self, process: Process, port: int) -> None:
        self.process = process
        self.port = port

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body; (0, "") while nobody listens."""

        def ask() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as r:
                    return r.status, r.read().decode()
            except urllib.error.HTTPError as answer:
                with answer:
                    return answer.code, answer.read().decode()
            except OSError:
                return 0, ""

        return await asyncio.to_thread(ask)

    async def faults(self) -> dict[str, str] | None:
        """What readiness names; None while nobody listens."""
        status, body = await self.get("/readyz")
        if status == 0:
            return None
        told: dict[str, Any] = json.loads(body)
        assert told["ready"] == (status == 200)
        found: dict[str, str] = told["faults"]
        return found

    async def until_faults(self, *names: str) -> dict[str, str]:
        found = await eventually(
            self.faults,
            lambda now: now is not None and set(now) == set(names),
            what="readiness",
            timeout_s=START_S,
        )
        assert found is not None
        return found

    async def terminate(self) -> int:
        """Exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            return await self.process.wait()


@asynccontextmanager
async def _service(settings: Mapping[str, object]) -> AsyncIterator[_Service]:
    port = free_port()
    given = {"HEALTH_HOST": "127.0.0.1", "HEALTH_PORT": port, **settings}
    environment = {f"TICKMIND_{name}": str(value) for name, value in given.items()}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tickmind_recorder",
        env=os.environ | environment,
        stdin=asyncio.subprocess.DEVNULL,
        stderr=PIPE,
    )
    try:
        yield _Service(process, port)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _ended(settings: Mapping[str, object]) -> tuple[int, str]:
    """Exit code and standard error of a recorder that ends by itself."""
    async with _service(settings) as service:
        async with asyncio.timeout(START_S):
            _, errors = await service.process.communicate()
        assert service.process.returncode is not None
        return service.process.returncode, errors.decode()


async def test_waits_for_what_is_absent_at_start_and_goes_on_by_itself(
    postgres: LocalPostgres, broker_settings: BrokerSettings, rabbitmq: LocalRabbitmq
) -> None:
    """Alive all the while, unready and saying why; then a SIGTERM finishes what is in flight."""
    await postgres.create_database("process")
    own = DatabaseSettings(database_url=SecretStr(postgres.database_url("process")))
    vhost = broker_settings.broker_url().rsplit("/", 1)[1]
    async with (
        door(postgres.socket_dir / ".s.PGSQL.5432") as to_database,
        door(("127.0.0.1", rabbitmq.port)) as to_broker,
    ):
        await to_database.shut()
        await to_broker.shut()
        settings = {
            "DATABASE_HOST": "127.0.0.1",
            "DATABASE_PORT": to_database.port,
            "DATABASE_USER": "postgres",
            "DATABASE_NAME": "process",
            "AMQP_HOST": "127.0.0.1",
            "AMQP_PORT": to_broker.port,
            "AMQP_VHOST": vhost,
            "RECORDER_BATCH_MS": 3000,
        }
        async with _service(settings) as service:
            faults = await service.until_faults("database", "broker")
            assert faults["database"].startswith("PostgreSQL is not able to serve this now")
            assert faults["broker"].startswith("RabbitMQ cannot be reached")
            assert await service.get("/livez") == (200, "alive\n")

            await to_database.unlock()
            await eventually(
                service.faults,
                lambda now: "run tickmind migrate" in (now or {}).get("database", ""),
                what="no schema",
            )
            await upgrade(own, lambda _: None)
            faults = await service.until_faults("broker")
            assert await service.get("/livez") == (200, "alive\n")

            await to_broker.unlock()
            await service.until_faults()

            database = Database(own, application="test")
            async with client(broker_settings) as memory, wire(broker_settings) as opened:
                await memory.publish_tick("town-7", 1, [_TALK])
                await until_remembered(database, 1)
                _, metrics = await service.get("/metrics")
                assert "tickmind_memories_stored_total 1.0" in metrics
                await opened.send(*[tick_body(_TALK, tick=tick) for tick in range(2, 22)])
                await eventually(
                    lambda: opened.left_in(RECORDER_QUEUE), lambda n: n == 0, what="delivered"
                )
            assert await service.terminate() == 0
            stored = await until_remembered(database, 21, timeout_s=0)
            await database.dispose()

    assert len(stored) == 21
    assert await left_in(broker_settings, RECORDER_QUEUE) == [0]
    await postgres.drop_database("process")


async def test_ends_on_sigterm_while_it_still_waits() -> None:
    settings = {
        "DATABASE_HOST": "127.0.0.1",
        "DATABASE_PORT": free_port(),
        "AMQP_HOST": "127.0.0.1",
        "AMQP_PORT": free_port(),
    }
    async with _service(settings) as service:
        await service.until_faults("database", "broker")

        assert await service.terminate() == 0


async def test_wrong_settings_end_it_at_once_with_one_sentence(
    rabbitmq: LocalRabbitmq, tmp_path: Path
) -> None:
    (tmp_path / "policy.yaml").write_text("version: 1\ndefaults: {}\nworlds: []\n")
    policy = tmp_path / "policy.yaml"
    wrong: dict[str, dict[str, object]] = {
        "TICKMIND_DATABASE_PORT: Input should be a valid integer": {"DATABASE_PORT": "tcp://x"},
        f"TICKMIND_RECORDER_POLICY_FILE: {policy}, line 2: defaults.actions: Field required": {
            "RECORDER_POLICY_FILE": policy
        },
        "TICKMIND_HEALTH_PORT: port": {"HEALTH_PORT": rabbitmq.port},
    }
    # Two at a time: a start is 1 s of one core.
    gate = asyncio.Semaphore(2)

    async def start(settings: Mapping[str, object]) -> tuple[int, str]:
        async with gate:
            return await _ended(settings)

    ends = await asyncio.gather(*(start(settings) for settings in wrong.values()))

    for told, (code, errors) in zip(wrong, ends, strict=True):
        sentences = [line for line in errors.splitlines() if not line.startswith("{")]
        assert len(sentences) == 1, errors  # the rest are log lines
        assert sentences[0].startswith(f"tickmind recorder: {told}"), errors
        assert code == 2
