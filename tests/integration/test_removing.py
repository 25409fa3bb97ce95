"""Deleting in short transactions, while others record and link the very same texts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import numpy as np
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from tests.interleaving import waiting_for_locks
from tests.remembering import (
    audited,
    counted,
    drained,
    embedder_settings,
    handling,
    insert,
    known,
    remember,
)
from tests.running import SOUND
from tickmind.database import Database
from tickmind.removing import Writing, collect, collect_some, delete
from tickmind.settings import DatabaseSettings
from tickmind.store import changing, removal
from tickmind.store.spaces import Space, active_generation, ensure_space

_SPACE = Space(model="test", dimensions=8)
_TEXTS = [f"text {n}" for n in range(60)]
_VECTORS = dict(zip(_TEXTS, np.eye(60, 8, dtype=np.float32) + 1, strict=True))
#: Index rows and vectors that belong together, or should.
_ORPHANS = """recall_index r JOIN index_generation g ON g.id = r.generation_id
    WHERE NOT EXISTS (SELECT FROM embedding e WHERE e.space_id = g.space_id
                      AND e.content_hash = r.content_hash)"""
_UNUSED = """embedding e WHERE NOT EXISTS (
    SELECT FROM memory m WHERE m.content_hash = e.content_hash)"""


async def _told(database: Database, world: str = "gone", agent: str = "alice") -> None:
    """A world whose memories are all embedded."""
    async with database.writing() as session:
        await ensure_space(session, _SPACE)
    await remember(database, _TEXTS, world=world, agent=agent, tick=range(60))
    await known(database, _VECTORS, _SPACE)


def _after_each(database: Database, then: Callable[[], Awaitable[None]]) -> Writing:
    """Transactions, with something done after each one."""

    @asynccontextmanager
    async def writing() -> AsyncIterator[AsyncSession]:
        async with database.writing() as session:
            yield session
        await then()

    return writing


async def _sound(database: Database) -> None:
    assert await audited(database) == SOUND
    assert await counted(database, _ORPHANS) == 0


async def test_deleting_is_done_in_transactions_of_bounded_size(database: Database) -> None:
    await _told(database)
    await _told(database, agent="bob")
    left = [(120, 60)]

    async def count() -> None:
        left.append((await counted(database, "memory"), await counted(database, "embedding")))

    chunks: list[int] = []
    writing = _after_each(database, count)
    assert await delete(writing, "gone", told=chunks.append, at_once=25)
    assert await collect(writing, at_once=25) == 60
    assert sum(chunks) == 120
    for (memories, vectors), (fewer, fewer_vectors) in pairwise(left):
        assert 0 <= memories - fewer <= 25
        assert 0 <= vectors - fewer_vectors <= 25
    assert left[-1] == (0, 0)
    assert not await delete(database.writing, "gone")


async def test_an_agent_goes_and_leaves_what_others_remember(database: Database) -> None:
    await _told(database)
    await remember(database, [*_TEXTS[:10], "bob's own"], world="gone", agent="bob")
    await known(database, _VECTORS, _SPACE)
    assert await delete(database.writing, "gone", "alice", at_once=7)
    assert await collect(database.writing, at_once=7) == 50
    assert await counted(database, "recall_index") == 10
    assert await counted(database, "pending_embedding") == 1
    await _sound(database)


async def test_deleting_that_was_interrupted_goes_on_where_it_is_begun_again(
    database: Database,
) -> None:
    await _told(database)

    class Interrupted(Exception):
        pass

    async def interrupt() -> None:
        raise Interrupted

    for _ in range(4):  # after the first chunk each time
        with pytest.raises(Interrupted):
            await delete(_after_nth(database, 2, interrupt), "gone", at_once=10)
    assert await counted(database, "memory") == 20
    assert await delete(database.writing, "gone", at_once=10)
    for _ in range(3):
        with pytest.raises(Interrupted):
            await collect(_after_nth(database, 4, interrupt), at_once=20)
    assert await counted(database, "embedding") == 0
    assert await collect(database.writing) == 0


def _after_nth(database: Database, number: int, then: Callable[[], Awaitable[None]]) -> Writing:
    """Transactions, with something done after the one of this number."""
    done = 0

    async def count() -> None:
        nonlocal done
        done += 1
        if done == number:
            await then()

    return _after_each(database, count)


async def test_an_embedder_links_the_same_texts_between_any_two_transactions(
    database: Database, database_settings: DatabaseSettings
) -> None:
    """Whatever comes between looking for a vector and deleting it: a memory has its vector."""
    async with handling(
        database, embedder_settings(database_settings, embedding_dimensions=8)
    ) as embedder:
        await embedder.generation()
        await remember(database, _TEXTS, world="gone", tick=range(60))
        await drained(embedder)
        turn = 0

        async def meanwhile() -> None:
            nonlocal turn
            turn += 1
            await remember(database, _TEXTS[turn % 7 :: 7], world="kept", tick=turn)
            await drained(embedder)
            await _sound(database)

        writing = _after_each(database, meanwhile)
        assert await delete(writing, "gone", at_once=25)
        await collect(writing, at_once=10)
        assert turn > 7
        assert await counted(database, _UNUSED) == 0
        assert await counted(database, "recall_index") == await counted(database, "memory")


async def test_embedders_and_recorders_beside_it_lose_nothing(
    database: Database, database_settings: DatabaseSettings
) -> None:
    """All at once, over and over, with the same few texts."""
    async with handling(
        database, embedder_settings(database_settings, embedding_dimensions=8)
    ) as embedder:
        await embedder.generation()

        async def record(done: asyncio.Event) -> None:
            turn = 0
            while not done.is_set():
                with suppress(IntegrityError):  # its world was deleted in this moment
                    await remember(database, _TEXTS[turn % 5 :: 5], world="kept", tick=turn)
                turn += 1

        async def embed(done: asyncio.Event) -> None:
            while not done.is_set():
                await drained(embedder)

        async def remove(done: asyncio.Event) -> None:
            for turn in range(6):
                await remember(database, _TEXTS, world=f"w{turn}", tick=range(60))
                await delete(database.writing, f"w{turn}", at_once=20)
                await delete(database.writing, "kept", at_once=20)
                await collect(database.writing, at_once=5)
            done.set()

        ended = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for work in (record, embed, embed, remove):
                tasks.create_task(work(ended))
        await drained(embedder)
        await _sound(database)
        assert await counted(database, "recall_index") == await counted(database, "memory")
        await collect(database.writing)
        assert await counted(database, _UNUSED) == 0


async def test_memory_whose_recorder_was_under_way_keeps_its_vector(database: Database) -> None:
    """It was numbered before the others, and stored after them."""
    await _told(database)
    await delete(database.writing, "gone")
    async with database.writing() as recording:
        await insert(recording, _TEXTS[:1], world="kept")
        collecting = asyncio.create_task(collect(database.writing))
        await waiting_for_locks(database, 1)
    assert await collecting == 59
    await known(database, {}, _SPACE)
    async with database.reading() as session:
        generation = await active_generation(session)
    assert generation is not None
    await known(database, {_TEXTS[0]: _VECTORS[_TEXTS[0]]}, _SPACE)
    await _sound(database)
    assert await counted(database, "recall_index") == 1


async def test_nothing_is_collected_once_a_space_is_filled_again(database: Database) -> None:
    """In it a memory of any age may come to want its vector."""
    await _told(database)
    await delete(database.writing, "gone")
    async with database.writing() as session:
        since = await removal.since_now(session)
    async with database.reading() as session:
        found = await removal.look_for_unused(session, most=100)
    assert len(found) == 60
    async with database.writing() as session:
        await changing.add_space(session, Space(model="other", dimensions=8), None)
    async with database.writing() as session:
        assert await removal.collect(session, since, found) == 0
    assert await collect(database.writing) == 60


async def test_idle_collection_takes_so_many_at_most_and_locks_nobody_out_for_nothing(
    database: Database,
) -> None:
    await _told(database)
    begun: list[None] = []

    async def count() -> None:
        begun.append(None)

    assert await collect_some(_after_each(database, count), most=25) == 0
    assert len(begun) == 1
    await delete(database.writing, "gone")
    assert [await collect_some(database.writing, most=25) for _ in range(4)] == [25, 25, 10, 0]


async def test_jobs_of_texts_nobody_waits_for_go_and_others_stay(database: Database) -> None:
    async with database.writing() as session:
        generation = await ensure_space(session, _SPACE)
    await remember(database, _TEXTS, world="gone")
    await remember(database, _TEXTS[:5], world="kept")
    async with database.writing() as session:
        await session.execute(
            text(
                "INSERT INTO embedding_job (space_id, content_hash, due_order)"
                " SELECT DISTINCT space_id, content_hash, 0 FROM pending_embedding"
            )
        )
        await session.execute(
            text(
                "UPDATE embedding_job SET lease_until = clock_timestamp() + interval '1 hour'"
                " WHERE content_hash = (SELECT max(content_hash) FROM embedding_job j"
                " WHERE NOT EXISTS (SELECT FROM memory m JOIN agent a ON a.id = m.agent_id"
                " JOIN world w ON w.id = a.world_id"
                " WHERE w.name = 'kept' AND m.content_hash = j.content_hash))"
            )
        )
    await delete(database.writing, "gone")
    assert await collect(database.writing, at_once=7) == 0
    assert await counted(database, f"embedding_job WHERE space_id = {generation.space_id}") == 6
