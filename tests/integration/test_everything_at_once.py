"""Everything that writes, at once: recorders, embedders, and persons who look after it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import text

from tests.interleaving import deadlocks
from tests.recording import tick_body
from tests.remembering import audited, counted, embedder_settings
from tests.running import SOUND, eventually
from tickmind.cli import hnsw_indexes, reindexing, rejects, spaces
from tickmind.cli.servers import CommandFailed
from tickmind.database import Database
from tickmind.errors import TransientError
from tickmind.policy import default_policy
from tickmind.removing import collect, delete
from tickmind.serving import ExplicitSettings
from tickmind.settings import DatabaseSettings
from tickmind.store import inspection
from tickmind.store import jobs as leases
from tickmind.store.spaces import filled_generations
from tickmind.topology import tick_ended_key
from tickmind_embedder import indexing as indexing_module
from tickmind_embedder import lanes as lanes_module
from tickmind_embedder.indexing import Indexing
from tickmind_embedder.lanes import Lanes
from tickmind_embedder.metrics import Metrics
from tickmind_embedder.settings import EmbedderSettings
from tickmind_migrations import upgrade
from tickmind_recorder.handler import Delivery, Handler
from tickmind_recorder.handler import Metrics as RecorderMetrics

#: So long everything goes on; then what is under way is finished.
_BUSY_S = 20.0
_WORLDS, _AGENTS, _TICKS = 3, 6, 40
_WIDTHS = (32, 48)
_UNUSED = """embedding e WHERE NOT EXISTS (
    SELECT FROM memory m WHERE m.content_hash = e.content_hash)"""
#: What waits in a space that was retired waits until that is filled again.
_OF_FILLED = """space_id IN (
    SELECT space_id FROM index_generation WHERE status IN ('active', 'building'))"""
_ORPHANS = """recall_index r JOIN index_generation g ON g.id = r.generation_id
    WHERE NOT EXISTS (SELECT FROM embedding e WHERE e.space_id = g.space_id
                      AND e.content_hash = r.content_hash)"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked for every few seconds or minutes, many times within the test."""
    monkeypatch.setattr(lanes_module, "_LOOK_S", 0.1)
    monkeypatch.setattr(indexing_module, "_LOOK_S", 0.2)
    monkeypatch.setattr("tickmind.reindexing.KEPT_S", 0.0)
    monkeypatch.setattr(spaces, "_LOOK_S", 0.05)
    monkeypatch.setattr(spaces, "FOLLOWED_S", 0.0)


def _bodies() -> list[bytes]:
    """Every tick of every world: talks that others hear, the same words over and over, a decision
    that is none; and what is no tick at all."""
    bodies = []
    for world in range(_WORLDS):
        for tick in range(_TICKS):
            decisions: list[Any] = [
                {
                    "agent": f"agent-{n}",
                    "action": "talk" if n % 2 else "observe",
                    "speech": f"word {tick * n % 17}",
                    "text": f"thing {tick * n % 23}",
                    "heard_by": [f"agent-{(n + 1) % _AGENTS}"],
                }
                for n in range(_AGENTS)
            ]
            decisions.append({"agent": "agent-0", "action": "observe", "importance": 99})
            bodies.append(tick_body(*decisions, world=f"world-{world}", tick=tick))
        bodies += [b"garbage %d of world-%d" % (n, world) for n in range(5)]
    return bodies


class _Recorder:
    """A recorder less the broker: what may pass is tried again, as its batches are."""

    def __init__(self, settings: DatabaseSettings, seed: int) -> None:
        self._database = Database(settings, application=f"test-recorder-{seed}", vectors=False)
        self._handler = Handler(
            self._database, default_policy(), RecorderMetrics(CollectorRegistry())
        )
        self._random = random.Random(seed)

    def _read(self, bodies: Sequence[bytes]) -> list[Delivery]:
        keys = (tick_ended_key(f"world-{self._random.randrange(_WORLDS)}") for _ in bodies)
        return [self._handler.read(body, key) for body, key in zip(bodies, keys, strict=True)]

    async def store(self, bodies: Sequence[bytes]) -> None:
        deliveries = self._read(bodies)
        while True:
            try:
                return await self._handler.store(deliveries)
            except TransientError:  # a world went away twice
                await asyncio.sleep(0.01)

    async def run(self, bodies: Sequence[bytes], stop: asyncio.Event) -> None:
        """Ticks again, late and in any order."""
        while not stop.is_set():
            await self.store(self._random.sample(bodies, self._random.randint(1, 30)))
            await asyncio.sleep(0)

    async def close(self) -> None:
        await self._database.dispose()


class _Embedder:
    """An embedder less the broker."""

    def __init__(self, settings: EmbedderSettings) -> None:
        self._database = Database(settings, application="test-embedder")
        self._lanes = Lanes(self._database, settings, Metrics(CollectorRegistry()))
        self._indexing = Indexing(self._database, signed_from=40)

    async def run(self, stop: asyncio.Event) -> None:
        await asyncio.gather(self._lanes.run(stop), self._indexing.run(stop))
        await self._database.dispose()


def _space(width: int) -> ExplicitSettings:
    return ExplicitSettings(
        embedding_profile="openai-compatible",
        embedding_base_url="http://127.0.0.1:9/v1",
        embedding_provider="hash",
        embedding_model=f"model-{width}",
        embedding_dimensions=width,
    )


class _Person:
    """Someone who knows every command, and what each may be answered."""

    def __init__(self, settings: DatabaseSettings, database: Database, seed: int) -> None:
        self._settings = settings
        self._database = database
        self._random = random.Random(seed)
        self.done: dict[str, int] = {}

    async def run(self, until: float) -> None:
        commands = [name.removeprefix("_do_") for name in dir(self) if name.startswith("_do_")]
        loop = asyncio.get_running_loop()
        for name in _shuffled(commands, self._random):
            if loop.time() > until:
                return
            command: Callable[[], Awaitable[Any]] = getattr(self, f"_do_{name}")
            try:
                # Whatever waits longer than this waits for somebody who waits for it.
                async with asyncio.timeout(90):
                    await command()
            except CommandFailed as exc:
                # Two persons at the same space: the second is told so.
                if "PostgreSQL" in str(exc):
                    raise
            except TimeoutError:
                raise AssertionError(f"{name} came to no end") from None
            self.done[name] = self.done.get(name, 0) + 1

    @property
    def _world(self) -> str:
        return f"world-{self._random.randrange(_WORLDS)}"

    @property
    def _agent(self) -> str:
        return f"agent-{self._random.randrange(_AGENTS)}"

    async def _do_delete_world(self) -> None:
        world = self._world
        await hnsw_indexes.drop_those_of(self._database, world, None)
        await delete(self._database.writing, world, at_once=50)

    async def _do_delete_agent(self) -> None:
        world, agent = self._world, self._agent
        await hnsw_indexes.drop_those_of(self._database, world, agent)
        await delete(self._database.writing, world, agent, at_once=50)

    async def _do_collect(self) -> None:
        await collect(self._database.writing, at_once=20)

    async def _do_rejects_drop(self) -> None:
        world = self._random.choice([None, self._world])
        await rejects._drop_rejects(self._settings, None, world, True)

    async def _do_park(self) -> None:
        """As an embedder does whose texts outlived their workers."""
        async with self._database.reading() as session:
            filled = await filled_generations(session)
        for generation in filled:
            async with self._database.writing() as session:
                claimed = await leases.claim(
                    session, generation.space_id, token=uuid4(), most=5, lease_s=60
                )
            async with self._database.writing() as session:
                await leases.park(session, generation.space_id, claimed.jobs, reason="test")

    async def _do_parked_retry(self) -> None:
        await rejects._retry_parked(self._settings, None)

    async def _do_parked_drop(self) -> None:
        await rejects._drop_parked(self._settings, None, True)

    async def _do_space_add(self) -> None:
        await spaces.added(self._settings, _space(self._random.choice(_WIDTHS)))

    async def _do_space_backfill(self) -> None:
        await spaces.filled(self._settings, None, wait=False)

    async def _do_space_activate(self) -> None:
        states = await spaces.listed(self._settings)
        state = self._random.choice(states)
        await spaces.activated(self._settings, str(state.id), force=True)

    async def _do_space_drop(self) -> None:
        states = await spaces.listed(self._settings)
        state = self._random.choice(states)
        await spaces.dropped(self._settings, str(state.id), yes=True)

    async def _do_reindex(self) -> None:
        await reindexing.reindexed(self._settings)

    async def _do_hnsw_add(self) -> None:
        await hnsw_indexes.added(self._settings, self._world, self._agent, force=True)

    async def _do_hnsw_refresh(self) -> None:
        await hnsw_indexes.refreshed(self._settings)

    async def _do_migrate(self) -> None:
        await upgrade(self._settings, lambda _: None)

    async def _do_vacuum(self) -> None:
        """As autovacuum comes by, at any moment: what the planner knows of a table may be of one
        that was empty, or of before a space was there."""
        async with self._database.reading() as session:
            await session.execute(text("VACUUM (ANALYZE)"))

    async def _do_status(self) -> None:
        async with self._database.reading() as session:
            await inspection.world_statuses(session)
            await inspection.parked_texts(session)


def _shuffled(names: Sequence[str], generator: random.Random) -> Iterator[str]:
    """Each as often as the others, in an order of its own each time."""
    while True:
        yield from generator.sample(names, len(names))


async def test_everything_at_once_deadlocks_nobody_and_loses_nothing(
    database: Database, database_settings: DatabaseSettings
) -> None:
    settings = embedder_settings(
        database_settings,
        embedder_sweep_s=0.1,
        embedder_collect_s=0.5,
        embedding_max_inputs=8,
        embedder_lease_s=1.5,
    )
    bodies = _bodies()
    recorders = [_Recorder(database_settings, seed) for seed in range(3)]
    persons = [_Person(database_settings, database, seed) for seed in range(3)]
    recorded, embedded = asyncio.Event(), asyncio.Event()

    embedders = [asyncio.create_task(_Embedder(settings).run(embedded)) for _ in range(2)]
    recording = [asyncio.create_task(one.run(bodies, recorded)) for one in recorders]
    until = asyncio.get_running_loop().time() + _BUSY_S
    try:
        await asyncio.gather(*(person.run(until) for person in persons))
    finally:
        recorded.set()
        await asyncio.gather(*recording)
    done = {name: sum(person.done.get(name, 0) for person in persons) for name in persons[0].done}
    assert all(done.values()), done

    # Whatever was deleted comes again, and is there once.
    for recorder in recorders:
        await recorder.store(bodies)
        await recorder.close()
    spoken = _AGENTS // 2
    assert await counted(database, "memory") == _WORLDS * _TICKS * (_AGENTS + spoken)
    assert await counted(database, "agent") == _WORLDS * _AGENTS
    async with database.writing() as session:
        await inspection.retry_parked(session)
    await eventually(
        lambda: counted(database, f"pending_embedding WHERE {_OF_FILLED}"),
        lambda n: n == 0,
        what="pending",
    )
    embedded.set()
    await asyncio.gather(*embedders)

    assert await audited(database) == SOUND
    await collect(database.writing)
    assert await counted(database, _ORPHANS) == 0
    assert await counted(database, _UNUSED) == 0
    assert await counted(database, f"embedding_job WHERE {_OF_FILLED}") == 0
    assert await deadlocks(database) == 0
