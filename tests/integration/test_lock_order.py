"""Transactions that lock the same rows, made to meet in the order that would be a deadlock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tests.interleaving import crossed, waiting_for_locks
from tests.parking import park_all
from tests.remembering import audited, counted, known, remember
from tests.running import SOUND
from tickmind.database import Database
from tickmind.decoding import Rejected
from tickmind.identity import content_hash, reject_key
from tickmind.store import changing, dropping, inspection, removal
from tickmind.store import embedding as store
from tickmind.store import jobs as leases
from tickmind.store.jobs import Job
from tickmind.store.lexical import backfill
from tickmind.store.locking import hold_worlds
from tickmind.store.recording import RejectRow, insert_rejects
from tickmind.store.spaces import Space, ensure_space

_SPACE = Space(model="hash", dimensions=64)
_OTHER = Space(model="other", dimensions=64)
#: In the order of their hashes, which is that of the jobs; stored in the opposite one.
_TEXTS = sorted((f"text {n}" for n in range(3)), key=content_hash)
_HASHES = [content_hash(content) for content in _TEXTS]
_VECTORS = {content: np.ones(64, dtype=np.float32) for content in _TEXTS}
#: Locks the index row of the text in the middle.
_MIDDLE_ROW = (
    "SELECT FROM recall_index WHERE memory_id ="
    f" (SELECT id FROM memory WHERE content = '{_TEXTS[1]}') FOR UPDATE"
)

Work = Callable[[], Awaitable[Any]]


def _in_own(
    database: Database, work: Callable[[AsyncSession], Awaitable[Any]], *, plan: str = ""
) -> Work:
    """The work in a transaction of its own. `plan`: a setting of the planner."""

    async def run() -> Any:
        async with database.writing() as session:
            if plan:
                await session.execute(text(f"SET LOCAL {plan}"))
            return await work(session)

    return run


async def _run(database: Database, statement: str, **parameters: Any) -> None:
    async with database.writing() as session:
        await session.execute(text(statement), parameters)


async def _space_id(database: Database) -> int:
    async with database.writing() as session:
        return (await ensure_space(session, _SPACE)).space_id


async def _told_backwards(database: Database) -> None:
    """Three memories of alice, the first one of the last tick: deleting goes by ticks, the others
    by ids; jobs, where there are any, lie in the opposite order of their hashes."""
    for tick, content in enumerate(_TEXTS):
        await remember(database, [content], tick=3 - tick)


async def _jobs(database: Database, space_id: int) -> list[Job]:
    """A leased job for each of the texts."""
    token = uuid4()
    for hash_ in reversed(_HASHES):
        await _run(
            database,
            "INSERT INTO embedding_job (space_id, content_hash, due_order, attempts, lease_token,"
            " lease_until) VALUES (:space_id, :hash, 0, 1, :token, now() + interval '1 hour')",
            space_id=space_id,
            hash=hash_,
            token=token,
        )
    return _as_leased(token)


def _as_leased(token: UUID) -> list[Job]:
    return [Job(content_hash=hash_, content="", attempts=1, token=token) for hash_ in _HASHES]


def _of_middle(table: str, space_id: int) -> str:
    """Locks the row of the text in the middle."""
    return (
        f"SELECT FROM {table} WHERE space_id = {space_id}"
        f" AND content_hash = '\\x{_HASHES[1].hex()}' FOR UPDATE"
    )


_MIDDLE_MEMORY = f"SELECT FROM memory WHERE content = '{_TEXTS[1]}' FOR NO KEY UPDATE"


async def _alice(database: Database) -> int:
    async with database.reading() as session:
        (id_,) = await removal.agent_ids(session, "town", "alice")
    return id_


async def _deleting(database: Database, how: str) -> Work:
    alice = await _alice(database)

    async def work(session: AsyncSession) -> object:
        if how == "memories":
            return await removal.delete_some_memories(session, alice, from_tick=0, most=100)
        if how == "agent":
            return await removal.delete_agent(session, "town", "alice")
        return await removal.delete_world(session, "town")

    return _in_own(database, work, plan="enable_hashjoin = off")


def _rejects() -> list[RejectRow]:
    """By their keys."""
    rows = [
        RejectRow(
            rejected=Rejected(reason="json", detail="no JSON", body=b"garbage %d" % n),
            routing_key="tick.ended.v1.town",
            world="town",
        )
        for n in range(3)
    ]
    return sorted(rows, key=lambda row: reject_key("json", "town", row.rejected.body))


@pytest.mark.parametrize("how", ["drop", "world"])
async def test_recorder_refuses_again_what_is_dropped(database: Database, how: str) -> None:
    await remember(database, ["a"])
    rows = _rejects()
    for row in reversed(rows):
        async with database.writing() as session:
            await insert_rejects(session, [row])
    body = rows[1].rejected.body.decode()

    async def drop(session: AsyncSession) -> object:
        if how == "drop":
            return await inspection.drop_rejects(session)
        return await removal.delete_world(session, "town")

    await crossed(
        database,
        f"SELECT FROM reject WHERE body = '{body}' FOR UPDATE",
        _in_own(database, lambda session: insert_rejects(session, rows)),
        _in_own(database, drop),
    )
    assert await counted(database, "reject") == 0


@pytest.mark.parametrize("how", ["memories", "agent", "world"])
async def test_text_is_parked_while_who_said_it_is_deleted(database: Database, how: str) -> None:
    space_id = await _space_id(database)
    await _told_backwards(database)
    jobs = await _jobs(database, space_id)
    await crossed(
        database,
        _of_middle("pending_embedding", space_id),
        await _deleting(database, how),
        _in_own(database, lambda session: leases.park(session, space_id, jobs, reason="bad")),
    )
    assert await counted(database, "pending_embedding") == 0


@pytest.mark.parametrize("how", ["memories", "agent", "world"])
async def test_parked_texts_are_retried_while_who_said_them_is_deleted(
    database: Database, how: str
) -> None:
    space_id = await _space_id(database)
    await _told_backwards(database)
    await park_all(database, "town", reason="bad")
    await crossed(
        database,
        _of_middle("pending_embedding", space_id),
        await _deleting(database, how),
        _in_own(database, inspection.retry_parked),
    )
    assert await counted(database, "pending_embedding") == 0


@pytest.mark.parametrize("middle", ["pending_embedding", "embedding_job"])
async def test_texts_are_parked_while_they_are_stored(database: Database, middle: str) -> None:
    """By a worker that lost its leases."""
    space_id = await _space_id(database)
    await _told_backwards(database)
    jobs = await _jobs(database, space_id)
    hashed = {content_hash(content): vector for content, vector in _VECTORS.items()}
    await crossed(
        database,
        _of_middle(middle, space_id),
        _in_own(database, lambda session: leases.park(session, space_id, jobs, reason="bad")),
        _in_own(database, lambda session: store.store_vectors(session, space_id, hashed)),
    )
    assert await counted(database, "pending_embedding") == 0
    assert await audited(database) == SOUND


@pytest.mark.parametrize("how", ["renew", "release", "retry_later", "park"])
@pytest.mark.parametrize("other", ["store", "collect", "drop", "delete_space"])
async def test_leases_are_kept_or_given_back_while_jobs_go(
    database: Database, how: str, other: str
) -> None:
    space_id = await _space_id(database)
    await _told_backwards(database)
    jobs = await _jobs(database, space_id)
    hashed = {content_hash(content): vector for content, vector in _VECTORS.items()}
    if other == "collect":  # what nobody waits for, by a worker that was late
        await _run(database, "UPDATE embedding_job SET lease_until = now() - interval '1 s'")
        await _run(database, "DELETE FROM pending_embedding")
    if other in ("drop", "delete_space"):
        await _run(database, "UPDATE index_generation SET status = 'dropping'")

    async def keep(session: AsyncSession) -> None:
        if how == "renew":
            await leases.renew(session, space_id, jobs, lease_s=60)
        elif how == "release":
            await leases.release(session, space_id, jobs)
        elif how == "park":
            await leases.park(session, space_id, jobs, reason="bad")
        else:
            await leases.retry_later(session, space_id, jobs, delay_s=1)

    async def go(session: AsyncSession) -> None:
        if other == "store":
            await store.store_vectors(session, space_id, hashed)
        elif other == "collect":
            await removal.collect_jobs(session, after=(0, b""), most=100)
        elif other == "drop":
            await dropping.delete_some(session, space_id, most=100)
        else:
            await dropping.delete_space(session, space_id)

    await crossed(
        database,
        _of_middle("embedding_job", space_id),
        _in_own(database, keep, plan="enable_seqscan = off"),
        _in_own(database, go, plan="enable_indexscan = off"),
    )
    if other in ("drop", "delete_space"):
        async with database.writing() as session:
            await dropping.delete_space(session, space_id)
        assert await counted(database, "embedding_job") == 0


async def test_parked_text_is_given_up_on_while_it_is_stored(database: Database) -> None:
    """By a worker that lost its lease: the vector that comes first stays."""
    space_id = await _space_id(database)
    await remember(database, _TEXTS[1:2])
    await park_all(database, "town", reason="bad")
    hashed = {_HASHES[1]: _VECTORS[_TEXTS[1]]}
    await crossed(
        database,
        _of_middle("pending_embedding", space_id),
        _in_own(database, lambda session: store.store_vectors(session, space_id, hashed)),
        _in_own(database, removal.give_up_parked),
    )
    assert await counted(database, "recall_index") == 1
    assert await counted(database, "embedding_job") == 0
    assert await audited(database) == SOUND


async def test_parked_texts_are_retried_while_a_sweep_parks_what_was_said_since(
    database: Database,
) -> None:
    """It has seen that the text is parked; what it marks after the retry would wait for ever."""
    space_id = await _space_id(database)
    await remember(database, _TEXTS)
    await park_all(database, "town", reason="bad")
    await remember(database, [*_TEXTS, "new"], agent="bob")
    async with database.writing() as session:
        await session.execute(  # what the sweep waits for
            text("INSERT INTO embedding_job VALUES (:space_id, :hash, 0)"),
            {"space_id": space_id, "hash": content_hash("new")},
        )
    await _run(database, "DELETE FROM embedding_job WHERE parked_reason IS NULL")
    gate = (
        "INSERT INTO embedding_job (space_id, content_hash, due_order)"
        f" VALUES ({space_id}, '\\x{content_hash('new').hex()}', 0)"
    )
    _, retried = await crossed(
        database,
        gate,
        _in_own(database, lambda session: store.sweep(session, space_id, after=0, most=100)),
        _in_own(database, inspection.retry_parked),
    )
    assert retried == 3
    assert await counted(database, "pending_embedding WHERE parked") == 0
    assert await audited(database) == SOUND


async def test_two_sweeps_park_the_same_rows(database: Database) -> None:
    space_id = await _space_id(database)
    await _told_backwards(database)
    await park_all(database, "town", reason="bad")
    for content in reversed(_TEXTS):
        await remember(database, [content], agent="bob")
    middle = (
        f"SELECT FROM pending_embedding WHERE content_hash = '\\x{_HASHES[1].hex()}' FOR UPDATE"
    )

    def sweep(plan: str) -> Work:
        return _in_own(
            database,
            lambda session: store.sweep(session, space_id, after=0, most=100),
            plan=plan,
        )

    async with database.writing() as session:
        await session.execute(text(middle))
        await sweep("enable_hashjoin = off")()  # waits for nobody
    await sweep("enable_nestloop = off")()
    assert await counted(database, "pending_embedding WHERE NOT parked") == 0


@pytest.mark.parametrize("how", ["memories", "agent", "world"])
async def test_space_is_made_while_memories_are_deleted(database: Database, how: str) -> None:
    await _told_backwards(database)
    await crossed(
        database,
        f"SELECT FROM memory WHERE content = '{_TEXTS[1]}' FOR KEY SHARE",
        await _deleting(database, how),
        _in_own(database, lambda session: ensure_space(session, _SPACE)),
    )
    assert await audited(database) == SOUND


@pytest.mark.parametrize("how", ["memories", "agent", "world"])
async def test_space_is_dropped_while_memories_are_deleted(database: Database, how: str) -> None:
    await _told_backwards(database)
    generation = await known(database, _VECTORS, _SPACE)
    await _run(database, "UPDATE index_generation SET status = 'dropping'")
    await crossed(
        database,
        _MIDDLE_ROW,
        await _deleting(database, how),
        _in_own(
            database,
            lambda session: dropping.delete_some(session, generation.space_id, most=100),
        ),
    )
    assert await counted(database, "recall_index") == 0


async def test_space_is_ended_while_it_is_added_again(database: Database) -> None:
    """Of its cascades, who adds it waits for the first, and is waited for by the last."""
    await known(database, {}, _SPACE)
    await _told_backwards(database)
    add = _in_own(database, lambda session: changing.add_space(session, _OTHER, None))
    ended, _ = await add()
    async with database.writing() as session:
        await store.store_vectors(session, ended, {_HASHES[1]: _VECTORS[_TEXTS[1]]})
        assert await dropping.begin_drop(session, ended)
    await crossed(
        database,
        _of_middle("embedding", ended),
        _in_own(database, lambda session: dropping.delete_space(session, ended)),
        add,
    )
    assert await counted(database, "embedding") == 0
    assert await counted(database, "embedding_space") == 2
    assert await audited(database) == SOUND


async def test_space_is_dropped_while_its_vectors_are_collected(database: Database) -> None:
    await known(database, {}, _SPACE)
    for content in reversed(_TEXTS):
        await known(database, {content: _VECTORS[content]}, _SPACE)
    generation = await known(database, {}, _SPACE)
    await _run(database, "UPDATE index_generation SET status = 'dropping'")
    async with database.writing() as session:
        since = await removal.since_now(session)
    async with database.reading() as session:
        found = await removal.look_for_unused(session, most=100)
    await crossed(
        database,
        _of_middle("embedding", generation.space_id),
        _in_own(
            database,
            lambda session: removal.collect(session, since, sorted(found)),
            plan="enable_seqscan = off",
        ),
        _in_own(
            database,
            lambda session: dropping.delete_some(session, generation.space_id, most=100),
            plan="enable_indexscan = off",
        ),
    )
    assert await counted(database, "embedding") == 0


async def test_two_delete_the_rows_of_one_generation(database: Database) -> None:
    """Whose lease ran out, and who took it over; the space is dropped, too."""
    await _told_backwards(database)
    generation = await known(database, _VECTORS, _SPACE)
    await _run(database, "UPDATE index_generation SET status = 'dropping'")
    await _run(  # moved behind the others
        database,
        "UPDATE recall_index SET importance = importance WHERE memory_id ="
        f" (SELECT id FROM memory WHERE content = '{_TEXTS[0]}')",
    )

    def some(plan: str) -> Work:
        return _in_own(
            database,
            lambda session: dropping.delete_some_of_generation(
                session, generation.id, after=0, most=100
            ),
            plan=plan,
        )

    await crossed(
        database, _MIDDLE_ROW, some("enable_hashjoin = off"), some("enable_nestloop = off")
    )
    async with database.writing() as session:  # with what was another's at that moment
        await dropping.delete_generation(session, generation.id)
    assert await counted(database, "recall_index") == 0


@pytest.mark.parametrize("how", ["memories", "agent", "world"])
async def test_older_memories_get_their_words_while_they_are_deleted(
    database: Database, how: str
) -> None:
    await _told_backwards(database)
    await _run(database, "UPDATE memory SET terms = NULL")
    await crossed(
        database,
        _MIDDLE_MEMORY,
        await _deleting(database, how),
        _in_own(database, lambda session: backfill(session, after=0, most=100)),
    )
    assert await counted(database, "memory") == 0


async def test_world_that_began_again_is_not_deleted_for_the_one_before(
    database: Database,
) -> None:
    """Who deletes it holds the lock of another: who stores in it would meet him."""
    await remember(database, ["before"])
    async with database.reading() as session:
        old = int((await session.execute(text("SELECT id FROM world"))).scalar_one())

    @asynccontextmanager
    async def stored() -> AsyncIterator[None]:
        async with database.writing() as session:
            await hold_worlds(session, [old])
            yield

    async def delete(session: AsyncSession) -> bool:
        return await removal.delete_world(session, "town")

    async with stored():
        deleting = asyncio.ensure_future(_in_own(database, delete)())
        await waiting_for_locks(database, 1)
        await _run(database, "DELETE FROM world")
        await remember(database, ["again"])
    assert not await deleting
    assert await counted(database, "memory") == 1
