"""The recorder told to stop: what is in flight is finished, what is not waits for the next."""

from __future__ import annotations

import pytest

from tests.clock import Clock
from tests.proxy import door
from tests.recording import (
    behind,
    database_behind,
    left_in,
    reads_of,
    recorder,
    remembered,
    tick_body,
    until,
    until_remembered,
    wire,
)
from tests.running import eventually, running
from tickmind.database import Database
from tickmind.local.postgres import LocalPostgres
from tickmind.local.rabbitmq import LocalRabbitmq
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind.topology import RECORDER_QUEUE

_TALK = {"agent": "bob", "action": "talk", "speech": "The market sells fresh fish"}
_OBSERVE = {"agent": "bob", "action": "observe"}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    return reads_of(monkeypatch)


async def test_stopping_stores_what_is_held_and_takes_no_more(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    """What is in flight is finished; what was not taken waits for the next recorder."""
    app = recorder(database_settings, broker_settings, recorder_batch_ms=60_000)

    async with wire(broker_settings) as own, running(app):
        await own.send(*[tick_body(_TALK, tick=tick) for tick in range(50)])
        await eventually(lambda: own.left_in(RECORDER_QUEUE), lambda n: n == 0, what="delivered")

    (left,) = await left_in(broker_settings, RECORDER_QUEUE)
    assert len(await remembered(database)) + left == 50
    assert left == 0


@pytest.mark.parametrize("away", ["database", "broker", "both", "silent broker"])
async def test_stopping_while_a_server_is_away_takes_no_time_and_loses_nothing(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    postgres: LocalPostgres,
    rabbitmq: LocalRabbitmq,
    reads: list[bytes],
    away: str,
) -> None:
    """Well within the 30 s that Kubernetes grants; what is unacknowledged is delivered again."""
    async with (
        door(("127.0.0.1", rabbitmq.port)) as to_broker,
        door(postgres.socket_dir / ".s.PGSQL.5432") as to_database,
    ):
        through = database_behind(to_database, database)
        app = recorder(through, behind(to_broker, broker_settings))
        async with running(app), wire(broker_settings) as own:
            await own.send(tick_body(_TALK, tick=0))
            await until_remembered(database, 1)
            if away in ("database", "both"):
                await to_database.shut()
            await own.send(*[tick_body(_TALK, tick=tick) for tick in range(1, 20)])
            await until(lambda: len(reads) == 20, "deliveries")
            if away in ("broker", "both"):
                await to_broker.shut()
            if away == "silent broker":
                to_broker.hold()
            since = Clock()
        assert since.s < 15

    async with running(recorder(database_settings, broker_settings)):
        rows = await until_remembered(database, 20)
    assert [row.tick for row in rows] == list(range(20))
