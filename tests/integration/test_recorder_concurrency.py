"""Several recorders at once on one database: nothing lost, nothing doubled, nobody deadlocked."""

from __future__ import annotations

import asyncio
from typing import Any

from prometheus_client import CollectorRegistry
from sqlalchemy import Executable
from sqlalchemy.ext.asyncio import AsyncSession

from tests.interleaving import deadlocks
from tests.recording import count, left_in, recorder, remembered, tick_body, wire
from tests.running import eventually, metric, running
from tickmind.database import Database
from tickmind.errors import TransientError
from tickmind.policy import default_policy
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind.store.recording import ensure_agents, ensure_worlds
from tickmind.store.removal import delete_agent, delete_world
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
    assert await deadlocks(databases[0]) == 0
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


async def test_a_world_deleted_while_it_is_written_loses_no_later_tick_and_nobody_deadlocks(
    database: Database, database_settings: DatabaseSettings
) -> None:
    """Batches of new ticks and of old ones again, worlds and agents deleted one after another: a
    writer may find its agents gone and try again, the deleter finds no fault."""
    handlers = [_handler(database) for _ in range(3)]
    deleted = asyncio.Event()

    async def write(handler: Handler, first: int) -> None:
        while not deleted.is_set():
            await store(handler, first)

    async def store(handler: Handler, first: int) -> None:
        deliveries = [
            handler.read(tick_body({"agent": name, "action": action, "text": "x"}, tick=tick), "")
            for tick in range(first, first + 20)
            for name, action in ((f"agent-{tick % 7}", "observe"), ("idle", "stay"))
        ]
        for batch in (deliveries, deliveries[1::2]):  # the second has no memory
            while True:
                try:
                    await handler.store(batch)
                    break
                except TransientError:
                    await asyncio.sleep(0)

    async def delete() -> None:
        for turn in range(200):
            async with database.writing() as session:
                if turn % 3:
                    await delete_agent(session, "town-7", f"agent-{turn % 7}")
                else:
                    await delete_world(session, "town-7")
            await asyncio.sleep(0.01)
        deleted.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(delete())
        for first, handler in zip((0, 0, 10), handlers, strict=True):
            tasks.create_task(write(handler, first))
    await store(handlers[0], 5000)

    assert {row.tick for row in await remembered(database)} >= set(range(5000, 5020))
    assert await deadlocks(database) == 0


async def test_world_and_agent_that_come_and_go_while_they_are_made_are_made_again(
    database: Database,
) -> None:
    """Somebody else makes them after we looked, and they are deleted before we look again."""

    async def make(name: str) -> None:
        async with database.writing() as session:
            world = (await ensure_worlds(session, [name]))[name]
            await ensure_agents(session, [(world, "alice")])

    async def remove(name: str) -> None:
        async with database.writing() as session:
            if name == "town":
                await delete_world(session, "town")
            else:
                await delete_agent(session, "village", "alice")

    class Meddled:
        """A session between whose statements others come: each insert meets what is there."""

        def __init__(self, session: AsyncSession, name: str) -> None:
            self._session = session
            self._name: str | None = name

        async def execute(self, statement: Executable, parameters: Any = None) -> Any:
            if "INSERT" not in str(statement) or self._name is None:
                return await self._session.execute(statement, parameters)
            name, self._name = self._name, None
            await make(name)
            result = await self._session.execute(statement, parameters)
            await remove(name)
            return result

    async with database.writing() as session:
        meddled: Any = Meddled(session, "town")
        assert (await ensure_worlds(meddled, ["town"])).keys() == {"town"}
    async with database.writing() as session:
        village = (await ensure_worlds(session, ["village"]))["village"]
    async with database.writing() as session:
        meddled = Meddled(session, "village")
        assert (await ensure_agents(meddled, [(village, "alice")])).keys() == {(village, "alice")}
