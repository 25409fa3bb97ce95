"""The recorder when its broker is not what it should be: nothing lost, nothing doubled."""

from __future__ import annotations

import asyncio

import pytest
from aiormq.exceptions import ChannelNotFoundEntity
from sqlalchemy import text

from tests.proxy import door
from tests.recording import (
    behind,
    client,
    kept_rejects,
    left_in,
    reads_of,
    recorder,
    remembered,
    tick_body,
    until,
    until_remembered,
    wire,
)
from tests.running import eventually, metric, running
from tickmind.connecting import connect, declare
from tickmind.database import Database
from tickmind.local.rabbitmq import LocalRabbitmq
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind.topology import DEAD_LETTER_QUEUE, RECORDER_QUEUE
from tickmind_recorder import tending
from tickmind_recorder.acknowledging import ChannelAcks

_TALK = {"agent": "bob", "action": "talk", "speech": "The market sells fresh fish"}
_OBSERVE = {"agent": "bob", "action": "observe"}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    return reads_of(monkeypatch)


async def test_a_message_delivered_again_after_its_commit_changes_nothing(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    rabbitmq: LocalRabbitmq,
    reads: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection breaks between commit and acknowledgement."""
    async with door(("127.0.0.1", rabbitmq.port)) as opened:
        original = ChannelAcks.flush
        cuts = iter([True])

        async def flush(self: ChannelAcks) -> None:
            if next(cuts, False):
                await opened.cut()
            await original(self)

        monkeypatch.setattr(ChannelAcks, "flush", flush)
        app = recorder(database_settings, behind(opened, broker_settings))
        async with running(app), wire(broker_settings) as own:
            await own.send(tick_body(_TALK | {"heard_by": ["alice"]}), b"garbage")
            await until(lambda: len(reads) >= 4, "a second delivery")
            await until(
                lambda: metric(app, "tickmind_memories_repeated_total") == 2, "stored again"
            )
        rows = await remembered(database)
        rejected = await kept_rejects(database)

    assert len(rows) == 2
    assert [row.times for row in rejected] == [2]
    assert await left_in(broker_settings, RECORDER_QUEUE, DEAD_LETTER_QUEUE) == [0, 0]


async def test_acknowledges_nothing_before_it_is_committed(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    rabbitmq: LocalRabbitmq,
    reads: list[bytes],
) -> None:
    """While the table is locked the connection breaks: everything is delivered again."""
    bodies = [tick_body(_TALK, tick=tick) for tick in range(5)]
    async with door(("127.0.0.1", rabbitmq.port)) as opened:
        app = recorder(database_settings, behind(opened, broker_settings))
        async with running(app), wire(broker_settings) as own:
            async with database.writing() as session:
                await session.execute(text("LOCK TABLE memory IN ACCESS EXCLUSIVE MODE"))
                await own.send(*bodies)
                await until(lambda: len(reads) == 5, "the first delivery")
                await eventually(
                    lambda: _waiting_for_locks(database), lambda n: n > 0, what="a transaction"
                )
                await opened.cut()
                await until(lambda: len(reads) == 10, "the second delivery")
            await until_remembered(database, 5)
        rows = await remembered(database)

    assert sorted(reads[5:]) == sorted(bodies)
    assert [row.tick for row in rows] == [0, 1, 2, 3, 4]
    assert await left_in(broker_settings, RECORDER_QUEUE) == [0]


async def _waiting_for_locks(database: Database) -> int:
    async with database.reading() as session:
        found = await session.execute(
            text(
                "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
                " WHERE NOT l.granted AND d.datname = current_database()"
            )
        )
        return int(found.scalar_one())


async def test_a_connection_that_breaks_again_and_again_loses_and_doubles_nothing(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    rabbitmq: LocalRabbitmq,
    reads: list[bytes],
) -> None:
    async with door(("127.0.0.1", rabbitmq.port)) as opened:
        app = recorder(
            database_settings, behind(opened, broker_settings), recorder_batch_decisions=10
        )
        async with running(app), client(broker_settings) as memory:
            for cut in range(3):
                for tick in range(cut * 50, cut * 50 + 50):
                    await memory.publish_tick("town-7", tick, [_TALK, _TALK])
                await until(lambda: len(reads) > cut * 50, "deliveries")  # noqa: B023
                await opened.cut()
            await until_remembered(database, 300)
        rows = await remembered(database)

    assert len(rows) == 300
    assert await left_in(broker_settings, RECORDER_QUEUE, DEAD_LETTER_QUEUE) == [0, 0]


async def test_a_broker_that_restarts_finds_the_recorder_and_the_client_again(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    rabbitmq: LocalRabbitmq,
) -> None:
    """case 36: the consumer is back within 60 s of the restart and the backlog drains; recalls are
    empty meanwhile, and a tick published meanwhile is confirmed."""
    app = recorder(database_settings, broker_settings)

    async with running(app), client(broker_settings) as memory:
        await memory.publish_tick("town-7", 1, [_TALK])
        await until_remembered(database, 1)
        await rabbitmq.stop_broker()
        fault = await app.checks["broker"]()
        answer = await memory.recall("town-7", "bob", "x", tick=1, timeout_s=0.2)
        publishing = asyncio.create_task(memory.publish_tick("town-7", 2, [_TALK], timeout_s=60))
        await rabbitmq.start()
        assert (await publishing).confirmed
        for tick in range(3, 53):
            assert (await memory.publish_tick("town-7", tick, [_TALK])).confirmed
        await until_remembered(database, 52, timeout_s=60)
        await eventually(app.checks["broker"], lambda now: now is None, what="readiness")

    assert fault is not None
    assert (answer.status, answer.reason) == ("empty", "connection")
    assert await left_in(broker_settings, RECORDER_QUEUE) == [0]


async def test_a_queue_deleted_live_is_declared_again(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    """case 37."""
    app = recorder(database_settings, broker_settings)

    async with running(app):
        async with await connect(broker_settings, name="test") as connection:
            await (await connection.channel()).queue_delete(RECORDER_QUEUE.name)
        await eventually(app.checks["broker"], lambda fault: fault is None, what="consumer")
        async with client(broker_settings) as memory:
            assert (await memory.publish_tick("town-7", 1, [_TALK])).confirmed
        await until_remembered(database, 1)


async def test_a_queue_made_anew_by_others_at_once_is_consumed_again(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """case 37: nobody sees the quorum queue missing, RabbitMQ 3.10 cancels nobody, and what it
    gives the old consumer never arrives."""
    monkeypatch.setattr(tending, "LOOK_S", 0.5)
    app = recorder(database_settings, broker_settings)

    async with running(app), client(broker_settings) as memory:
        assert (await memory.publish_tick("town-7", 1, [_TALK])).confirmed
        await until_remembered(database, 1)
        async with await connect(broker_settings, name="test") as connection:
            channel = await connection.channel()
            await channel.queue_delete(RECORDER_QUEUE.name)
            await declare(channel, RECORDER_QUEUE)
        for tick in range(2, 12):
            assert (await memory.publish_tick("town-7", tick, [_TALK])).confirmed
        await until_remembered(database, 11)
        await eventually(app.checks["broker"], lambda fault: fault is None, what="consumer")

    assert await left_in(broker_settings, RECORDER_QUEUE) == [0]


async def test_dead_letters_deleted_live_are_declared_again(
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """case 37: a queue that nobody consumes, and nobody misses until it is needed."""
    monkeypatch.setattr(tending, "LOOK_S", 0.1)

    async def there() -> bool:
        async with await connect(broker_settings, name="test") as connection:
            try:
                await (await connection.channel()).declare_queue(
                    DEAD_LETTER_QUEUE.name, passive=True
                )
            except ChannelNotFoundEntity:
                return False
        return True

    async with running(recorder(database_settings, broker_settings)):
        async with await connect(broker_settings, name="test") as connection:
            await (await connection.channel()).queue_delete(DEAD_LETTER_QUEUE.name)
        await eventually(there, bool, what="the dead letters' queue")


async def test_a_broker_short_of_memory_is_still_relieved_of_its_ticks(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    rabbitmq: LocalRabbitmq,
) -> None:
    """It takes no more from publishers, our hints among them; consuming must go on, since only
    that frees its memory."""
    async with client(broker_settings) as memory:
        for tick in range(100):
            await memory.publish_tick("town-7", tick, [_TALK])
    await rabbitmq.rabbitmqctl("set_vm_memory_high_watermark", "0.000001")
    try:
        app = recorder(database_settings, broker_settings, recorder_batch_decisions=1)
        async with running(app):
            await until_remembered(database, 100)
    finally:
        await rabbitmq.rabbitmqctl("set_vm_memory_high_watermark", "0.4")
    assert await left_in(broker_settings, RECORDER_QUEUE) == [0]
