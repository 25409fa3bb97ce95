"""Several recorders at once on one database: nothing lost, nothing doubled, nobody deadlocked."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry

from tests.recording import count, left_in, recorder, remembered, tick_body, wire
from tests.running import eventually, metric, running
from tickmind.database import Database
from tickmind.errors import TransientError
from tickmind.policy import default_policy
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind.store.removal import delete_world
from tickmind.topology import DEAD_LETTER_QUEUE, RECORDER_QUEUE, tick_ended_key
from tickmind_recorder.handler import Handler, Metrics

_ROUNDS = 100
_KEYS = 200


def _handler(database: Database) -> Handler:
    return Handler(database, default_policy(), Metrics(CollectorRegistry()))


async def test_two_writers_of_the_same_keys_in_opposite_order_never_deadlock(
    database_settings: DatabaseSettings,
) -> None:
    """case 27: 200 keys, 100 rounds; new agents and new receipts in each round, and rejects."""
    databases = [Database(database_settings, application=f"test-{n}") for n in range(2)]
    handlers = [_handler(database) for database in databases]

    for number in range(_ROUNDS):
        bodies = [
            tick_body(
                {"agent": f"{number}-{key}", "action": "observe", "text": f"text {key}"},
                world=f"world-{key % 5}-{number % 10}",
                tick=key,
            )
            for key in range(_KEYS - 10)
        ] + [b"garbage %d" % key for key in range(10)]
        readings = [
            [handler.read(body, tick_ended_key("w")) for body in order]
            for handler, order in zip(handlers, (bodies, bodies[::-1]), strict=True)
        ]
        # What a deadlock raises is DatabaseUnavailable: here it would end the test.
        await asyncio.gather(
            *(
                handler.store(deliveries)
                for handler, deliveries in zip(handlers, readings, strict=True)
            )
        )

    assert await count(databases[0], "memory") == _ROUNDS * (_KEYS - 10)
    assert await count(databases[0], "reject") == 10
    async with databases[0].reading() as session:
        deadlocks = await session.connection()
        found = await deadlocks.exec_driver_sql(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
        assert found.scalar_one() == 0
    for database in databases:
        await database.dispose()


async def test_the_same_event_at_two_recorders_at_once_is_one_memory(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    """case 28: both store it, both acknowledge it."""
    talk = {"agent": "bob", "action": "talk", "speech": "Fresh fish", "heard_by": ["alice"]}
    apps = [recorder(database_settings, broker_settings) for _ in range(2)]

    async with running(*apps), wire(broker_settings) as own:
        for tick in range(100):
            body = tick_body(talk, world=f"world-{tick % 3}", tick=tick)
            await asyncio.gather(*(own.send(body) for _ in range(4)))

        async def decisions() -> tuple[float, float]:
            first, second = (metric(app, "tickmind_decisions_total") for app in apps)
            return first, second

        shares = await eventually(decisions, lambda now: sum(now) == 400, what="decisions")
        rows = [row for n in range(3) for row in await remembered(database, f"world-{n}")]

    assert min(shares) > 0  # both had their part
    assert sorted((row.tick, row.agent) for row in rows) == [
        (tick, agent) for tick in range(100) for agent in ("alice", "bob")
    ]
    assert sum(metric(app, "tickmind_memories_stored_total") for app in apps) == 200
    assert sum(metric(app, "tickmind_memories_repeated_total") for app in apps) == 600
    assert await left_in(broker_settings, RECORDER_QUEUE, DEAD_LETTER_QUEUE) == [0, 0]


async def test_a_world_deleted_while_it_is_written_loses_no_later_tick(
    database: Database, database_settings: DatabaseSettings
) -> None:
    """Whatever the writers meet, a foreign-key error or a deadlock with the deletion, may pass: no
    message is to blame."""
    handler = _handler(database)

    async def write(first: int) -> None:
        for tick in range(first, first + 50):
            talk = {"agent": f"agent-{tick % 7}", "action": "observe", "text": "x"}
            delivery = handler.read(tick_body(talk, tick=tick), "")
            while True:
                try:
                    await handler.store([delivery])
                    break
                except TransientError:
                    continue

    async def delete() -> None:
        for _ in range(20):
            try:
                async with database.writing() as session:
                    await delete_world(session, "town-7")
            except TransientError:
                continue

    await asyncio.gather(write(0), write(1000), delete())
    await write(5000)

    assert {row.tick for row in await remembered(database)} >= set(range(5000, 5050))
