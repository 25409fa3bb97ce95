"""The recorder when its database is not what it should be: nothing lost, nothing doubled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.proxy import door
from tests.recording import (
    client,
    count,
    database_behind,
    execute,
    kept_rejects,
    left_in,
    reads_of,
    recorder,
    remembered,
    tick_body,
    until,
    until_rejected,
    until_remembered,
    wire,
)
from tests.running import eventually, metric, running
from tickmind.database import Database
from tickmind.local.postgres import LocalPostgres, running_postgres
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind.store.removal import delete_agent, delete_world
from tickmind.topology import DEAD_LETTER_QUEUE, RECORDER_QUEUE
from tickmind_migrations import upgrade
from tickmind_recorder import batching

_TALK = {"agent": "bob", "action": "talk", "speech": "The market sells fresh fish"}
_OBSERVE = {"agent": "bob", "action": "observe"}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    return reads_of(monkeypatch)


_POISONS = {
    "integrity": ["ALTER TABLE memory ADD CHECK (content NOT LIKE '%poison%')"],
    "data": [
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN RAISE division_by_zero; END'",
        "CREATE TRIGGER fail BEFORE INSERT ON memory FOR EACH ROW"
        " WHEN (new.content LIKE '%poison%') EXECUTE FUNCTION fail()",
    ],
}


@pytest.mark.parametrize(("poison", "sqlstate"), [("integrity", "23514"), ("data", "22012")])
async def test_what_the_database_refuses_is_rejected_alone(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    poison: str,
    sqlstate: str,
) -> None:
    """One message of a batch: its neighbours are stored, it is kept with the reason."""
    await execute(database, *_POISONS[poison])
    texts = [f"text {number}" for number in range(20)]
    texts[7] = "poison"
    app = recorder(database_settings, broker_settings, recorder_batch_ms=500)

    async with running(app), wire(broker_settings) as own:
        await own.send(*[tick_body(_OBSERVE | {"text": each}, tick=1) for each in texts])
        await until_remembered(database, 19)
        (rejected,) = await until_rejected(database, 1)

    assert rejected.reason == "database"
    assert rejected.detail == f"the database refused it (SQLSTATE {sqlstate})"
    assert rejected.body == tick_body(_OBSERVE | {"text": "poison"}, tick=1)
    assert metric(app, "tickmind_rejects_total", reason="database") == 1
    assert metric(app, "tickmind_memories_stored_total") == 19
    assert await left_in(broker_settings, RECORDER_QUEUE, DEAD_LETTER_QUEUE) == [0, 0]


async def test_what_cannot_even_be_rejected_is_dead_lettered(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    await execute(
        database,
        "ALTER TABLE memory ADD CHECK (content NOT LIKE '%poison%')",
        "ALTER TABLE reject ADD CHECK (reason <> 'database')",
    )
    app = recorder(database_settings, broker_settings, recorder_batch_ms=200)

    async with running(app), wire(broker_settings) as own:
        await own.send(
            *[tick_body(_OBSERVE | {"text": each}) for each in ("a", "poison", "b")], b"garbage"
        )
        await until_remembered(database, 2)
        await until_rejected(database, 1)
        await eventually(
            lambda: own.left_in(DEAD_LETTER_QUEUE), lambda n: n == 1, what="dead letters"
        )

    assert await left_in(broker_settings, RECORDER_QUEUE) == [0]


@pytest.mark.parametrize(
    ("away", "back"),
    [
        ("ALTER TABLE memory RENAME TO elsewhere", "ALTER TABLE elsewhere RENAME TO memory"),
        ("ALTER TABLE reject RENAME TO elsewhere", "ALTER TABLE elsewhere RENAME TO reject"),
    ],
)
async def test_a_fault_of_the_database_is_no_messages_fault(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    reads: list[bytes],
    away: str,
    back: str,
) -> None:
    """A table that is not there (a restore under way, rights taken away) waits for a person; no
    message is rejected or dead-lettered for it."""
    await execute(database, away)
    app = recorder(database_settings, broker_settings)

    async with running(app), wire(broker_settings) as own:
        for tick in range(20):
            await own.send(tick_body(_TALK, tick=tick), b"garbage %d" % tick)
        await until(lambda: len(reads) == 40, "deliveries")
        await execute(database, back)
        await until_remembered(database, 20)
        rejected = await until_rejected(database, 20)

    assert {row.reason for row in rejected} == {"invalid"}
    assert len(reads) == 40
    assert await left_in(broker_settings, RECORDER_QUEUE, DEAD_LETTER_QUEUE) == [0, 0]


@pytest.fixture
async def own_postgres(state_dir: Path) -> AsyncIterator[LocalPostgres]:
    """A server of the test's own, to be stopped and started."""
    async with running_postgres(state_dir / "own-postgres", durable=False) as server:
        settings = DatabaseSettings(database_url=SecretStr(server.url))
        await upgrade(settings, lambda _: None)
        yield server
        await server.drop_database("tickmind")


async def test_a_database_that_goes_away_and_comes_back_costs_nothing(
    own_postgres: LocalPostgres, broker_settings: BrokerSettings, reads: list[bytes]
) -> None:
    """Ticks keep arriving: nothing is lost, none is sent back, readiness says why, and it goes on
    by itself."""
    settings = DatabaseSettings(database_url=SecretStr(own_postgres.url))
    app = recorder(settings, broker_settings)
    database = Database(settings, application="test")
    ticks = iter(range(10_000))
    sent: list[int] = []

    async with running(app), client(broker_settings) as memory:

        async def send(number: int) -> None:
            for _ in range(number):
                tick = next(ticks)
                receipt = await memory.publish_tick("town-7", tick, [_TALK])
                assert receipt.confirmed
                sent.append(tick)

        await send(50)
        await until_remembered(database, 50)
        sending = asyncio.create_task(send(300))
        await until(lambda: len(sent) > 100, "ticks")
        await own_postgres.stop()
        fault = await app.checks["database"]()
        assert fault is not None
        assert fault.startswith("PostgreSQL is not able to serve this now")
        assert await app.checks["broker"]() is None
        await sending
        await until(lambda: len(reads) == 350, "deliveries")
        await own_postgres.start()
        await database.dispose()  # our own connections died with it
        rows = await until_remembered(database, 350)
        assert await app.checks["database"]() is None
    await database.dispose()

    assert sorted(row.tick for row in rows) == sent
    assert len(reads) == 350  # none delivered twice: nothing was sent back
    assert await left_in(broker_settings, RECORDER_QUEUE, DEAD_LETTER_QUEUE) == [0, 0]


async def test_a_database_made_anew_gets_its_own_ids(
    database_settings: DatabaseSettings, broker_settings: BrokerSettings, postgres: LocalPostgres
) -> None:
    """Dropped and restored while the recorder ran: the ids it knew are others' now."""
    database = Database(database_settings, application="test")
    name = database.engine.url.database
    assert name is not None
    app = recorder(database_settings, broker_settings)

    async with running(app), client(broker_settings) as memory:
        await memory.publish_tick("town-7", 1, [_TALK])
        await until_remembered(database, 1)
        await database.dispose()
        await postgres.drop_database(name)
        await memory.publish_tick("town-7", 2, [_TALK])
        await postgres.create_database(name, template="template")
        await execute(
            database,
            "INSERT INTO world (name) VALUES ('other')",
            "INSERT INTO agent (world_id, name) SELECT id, 'eve' FROM world",
        )
        rows = await until_remembered(database, 1)

    assert [(row.agent, row.tick) for row in rows] == [("bob", 2)]
    assert await remembered(database, "other") == []
    await database.dispose()


async def test_a_database_connection_that_died_in_silence_is_left_behind(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    postgres: LocalPostgres,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No answer, no reset: another connection is taken."""
    # Long enough to make a connection on a busy machine (0.3 s and more: its types are looked up).
    monkeypatch.setattr(batching, "STORE_TIMEOUT_S", 3.0)
    async with door(postgres.socket_dir / ".s.PGSQL.5432") as opened:
        through = database_behind(opened, database)
        app = recorder(through, broker_settings)
        async with running(app), client(broker_settings) as memory:
            await memory.publish_tick("town-7", 1, [_TALK])
            await until_remembered(database, 1)
            opened.hold(newcomers=False)
            await memory.publish_tick("town-7", 2, [_TALK])
            await until_remembered(database, 2)


@pytest.mark.parametrize("gone", ["world", "agent"])
async def test_what_was_deleted_meanwhile_is_made_anew(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    gone: str,
) -> None:
    """The recorder has the ids cached: a foreign-key error refreshes them, and costs no message."""
    app = recorder(database_settings, broker_settings)

    async with running(app), client(broker_settings) as memory:
        await memory.publish_tick("town-7", 1, [_TALK | {"heard_by": ["alice"]}])
        await until_remembered(database, 2)
        async with database.writing() as session:
            if gone == "world":
                assert await delete_world(session, "town-7")
            else:
                assert await delete_agent(session, "town-7", "bob")
        await memory.publish_tick("town-7", 2, [_TALK | {"heard_by": ["alice", "carol"]}])
        rows = await eventually(
            lambda: remembered(database),
            lambda found: sum(row.tick == 2 for row in found) == 3,
            what="memories",
        )

    old = [("alice", None)] if gone == "agent" else []
    assert [(row.agent, row.speaker) for row in rows if row.tick == 1] == old
    assert sorted((row.agent, row.speaker) for row in rows if row.tick == 2 and row.speaker) == [
        ("alice", "bob"),
        ("carol", "bob"),
    ]
    assert metric(app, "tickmind_recorder_batches_total", outcome="refused") == 0
    assert await kept_rejects(database) == []


async def test_a_stay_of_a_deleted_world_is_recorded_anew(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    """Only its receipt refers to the world."""
    app = recorder(database_settings, broker_settings)

    async with running(app), client(broker_settings) as memory:
        await memory.publish_tick("town-7", 1, [{"agent": "bob", "action": "stay"}])
        await eventually(lambda: count(database, "tick_receipt"), lambda n: n == 1, what="receipt")
        async with database.writing() as session:
            await delete_world(session, "town-7")
        await memory.publish_tick("town-7", 2, [{"agent": "bob", "action": "stay"}])
        await eventually(lambda: count(database, "tick_receipt"), lambda n: n == 1, what="receipt")
