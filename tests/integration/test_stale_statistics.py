"""Whatever the planner believes of tables that fill and empty within minutes, no statement goes
through a table, or through its own rows, once for each of its rows.

PostgreSQL knows tables by the statistics that were taken last. A space that is new since is one
without rows to it, and so is a table that was empty at that moment: joins planned for one row go
through everything for each of a thousand.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, Protocol
from uuid import uuid4

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tests.explaining import Explained, explaining
from tests.remembering import audited, counted, insert, known, remember
from tests.remembering import signed as as_signed
from tests.running import SOUND
from tickmind.database import Database
from tickmind.decoding import Rejected
from tickmind.identity import content_hash
from tickmind.memory import Weights
from tickmind.reindexing import Reindexing
from tickmind.removing import collect, delete
from tickmind.settings import DatabaseSettings
from tickmind.store import (
    building,
    changing,
    dropping,
    embedding,
    inspection,
    jobs,
    lexical,
    recording,
    removal,
    waiting,
)
from tickmind.store.lexical import Asked
from tickmind.store.recall import Filters, Question, rank
from tickmind.store.recording import RejectRow
from tickmind.store.signing import Signers
from tickmind.store.spaces import Space, active_generation
from tickmind.store.whom import whom

_OLD, _NEW = (Space(model=model, dimensions=16) for model in ("old", "new"))
_ROWS = 2000
#: More than there are.
_ALL = 10 * _ROWS
#: What a statement may touch of all steps of its plan together, in multiples of its rows: the
#: longest have some twenty steps. Each row once for each other would be 2000.
_MOST = 60
#: A statement that takes longer does so for each row again.
_LONGEST = "SET LOCAL statement_timeout = '20s'"

Step = Callable[[AsyncSession], Awaitable[Any]]


class Run(Protocol):
    """Runs a step in a transaction of its own, and returns what it does. `rows`: those that it is
    about."""

    async def __call__(self, step: Step, rows: int = _ROWS) -> Any: ...


def _names(prefix: str) -> list[str]:
    return [f"{prefix} {n}" for n in range(_ROWS)]


def _vectors(names: Sequence[str]) -> dict[bytes, NDArray[np.float32]]:
    random = np.random.default_rng(1)
    return {content_hash(name): random.normal(size=16).astype(np.float32) for name in names}


@pytest.fixture(params=["none", "of before", "of nearly emptied tables"])
async def misled(request: pytest.FixtureRequest, database: Database) -> Database:
    """The space 1, which recalls use, of which statistics know; all rows of another are still to
    come."""
    async with database.reading() as session:
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
        for table in (await session.execute(text(tables))).scalars().all():
            await session.execute(text(f'ALTER TABLE "{table}" SET (autovacuum_enabled = off)'))
    names = _names("old")
    await known(database, {}, _OLD)
    await remember(database, names, world="old", tick=range(_ROWS))
    async with database.writing() as session:
        await embedding.sweep(session, 1, after=0, most=_ALL)
        given_up = (await jobs.claim(session, 1, token=uuid4(), most=5, lease_s=60)).jobs
        await jobs.park(session, 1, given_up, reason="test")
        parked = {job.content_hash for job in given_up}
        vectors = {hash_: one for hash_, one in _vectors(names).items() if hash_ not in parked}
        await embedding.store_vectors(session, 1, vectors)
    await Reindexing(database.writing).build()
    if request.param == "of nearly emptied tables":
        await delete(database.writing, "old")
        await collect(database.writing)
        await remember(database, _names("old")[:20], world="old")
    if request.param != "none":
        async with database.reading() as session:
            await session.execute(text("VACUUM (ANALYZE, TRUNCATE off)"))
    return database


@pytest.fixture
def dear() -> Iterator[list[Explained]]:
    """Statements that touch too much: all of a test, to be seen at once."""
    found: list[Explained] = []
    yield found
    if found:
        pytest.fail("\n\n".join(map(repr, found)), pytrace=False)


@pytest.fixture
def run(misled: Database, dear: list[Explained]) -> Run:
    async def run(step: Step, rows: int = _ROWS) -> Any:
        async with misled.writing() as session:
            await session.execute(text(_LONGEST))
            async with explaining(session) as explained:
                found = await step(session)
        dear.extend(one for one in explained if one.rows > _MOST * rows)
        return found

    return run


async def test_statements_of_the_protocol_touch_each_row_a_few_times(
    database: Database, run: Run
) -> None:
    async with database.writing() as session:
        new, _ = await changing.add_space(session, _NEW, None)
    sweep: Step = partial(embedding.sweep, space_id=new, after=0, most=_ALL)
    claim: Step = partial(jobs.claim, space_id=new, token=uuid4(), most=_ROWS // 4, lease_s=600)
    names = _names("new")

    await run(partial(insert, contents=names, world="new", tick=range(_ROWS)))
    assert (await run(sweep)).jobs == _ROWS
    assert (await run(sweep)).jobs == 0
    renewed, later, parked = [(await run(claim)).jobs for _ in range(3)]
    await run(partial(jobs.renew, space_id=new, jobs=renewed, lease_s=600))
    await run(partial(jobs.retry_later, space_id=new, jobs=later, delay_s=0))
    await run(partial(jobs.release, space_id=new, jobs=renewed))
    await run(partial(jobs.park, space_id=new, jobs=parked, reason="test"))
    await remember(database, names, world="new", agent="bob")
    await run(sweep, 2 * _ROWS)
    held = f"pending_embedding WHERE parked AND space_id = {new}"
    assert await counted(database, held) == 2 * len(parked)
    await run(inspection.parked_texts, 2 * _ROWS)
    await run(inspection.parked_reasons, 2 * _ROWS)
    assert await run(inspection.retry_parked) >= len(parked)
    assert await counted(database, held) == 0

    vectors = _vectors(names)
    store = partial(embedding.store_vectors, space_id=new, vectors=vectors)
    assert await run(store, 2 * _ROWS) == 2 * _ROWS
    await remember(database, names, world="new", agent="carol")
    assert await run(partial(embedding.link, space_id=new, hashes=sorted(vectors))) == _ROWS
    await remember(database, names, world="new", agent="dora")
    assert (await run(sweep)).linked == _ROWS


async def test_few_of_many_rows_are_found_without_the_others(database: Database, run: Run) -> None:
    """A handful at a time of what waits, in a space of its own or in one beside it."""
    async with database.writing() as session:
        new, _ = await changing.add_space(session, _NEW, None)
    await remember(database, _names("new"), world="new", tick=range(_ROWS))
    few = 20
    sweep = partial(embedding.sweep, space_id=new, most=few)
    swept = await run(partial(sweep, after=0), few)
    assert (swept.seen, swept.jobs) == (few, few)
    async with database.writing() as session:
        await embedding.sweep(session, new, after=0, most=_ALL)
    claim = partial(jobs.claim, space_id=new, token=uuid4(), most=few, lease_s=600)
    claimed = (await run(claim, few)).jobs
    assert len(claimed) == few
    await run(partial(jobs.renew, space_id=new, jobs=claimed, lease_s=600), few)
    vectors = {job.content_hash: np.ones(16, dtype=np.float32) for job in claimed}
    assert await run(partial(embedding.store_vectors, space_id=new, vectors=vectors), few) == few
    assert (await run(partial(sweep, after=swept.highest), few)).seen == few

    async with database.writing() as session:
        await session.execute(
            text("DELETE FROM pending_embedding WHERE space_id = :id AND tick >= :few"),
            {"id": new, "few": 2 * few},
        )
    assert (await run(partial(sweep, after=0), few)).seen == few
    assert len(await run(waiting.pending)) == 2


async def test_statements_beside_the_protocol_touch_each_row_a_few_times(
    database: Database, run: Run
) -> None:
    async with database.writing() as session:
        await changing.add_space(session, _NEW, None)
    await remember(database, _names("new"), world="new", tick=range(_ROWS))
    async with database.writing() as session:
        await session.execute(text("UPDATE memory SET terms = NULL"))
    filled = await run(partial(lexical.backfill, after=0, most=_ALL), 2 * _ROWS)
    assert filled.filled >= _ROWS

    rejected = [
        RejectRow(
            rejected=Rejected(reason="test", detail="", body=b"%d" % n),
            routing_key="",
            world="new",
        )
        for n in range(_ROWS)
    ]
    await run(partial(recording.insert_rejects, rejects=rejected))
    kept = await run(partial(inspection.rejects, most=_ROWS // 2))
    assert await run(partial(inspection.forget_retried, sent=kept)) == _ROWS // 2
    assert await run(partial(inspection.drop_rejects, world="new")) == _ROWS // 2
    async with database.writing() as session:
        worlds = await recording.ensure_worlds(session, ["new"])
    names = [(worlds["new"], f"agent {n}") for n in range(_ROWS)]
    for _ in range(2):
        assert len(await run(partial(recording.ensure_agents, names=names))) == _ROWS


async def _filled(database: Database, run: Run) -> int:
    """All there is marked for the new space, and all of the new world embedded there."""
    async with database.writing() as session:
        new, _ = await changing.add_space(session, _NEW, None)
    names = _names("new")
    await remember(database, names, world="new", tick=range(_ROWS))
    mark = partial(changing.mark_missing, space_id=new, after=0, most=_ALL)
    assert (await run(mark, 2 * _ROWS)).seen >= _ROWS
    async with database.writing() as session:
        await embedding.sweep(session, new, after=0, most=_ALL)
        await embedding.store_vectors(session, new, _vectors(names))
    return new


async def test_statements_that_change_the_space_touch_each_row_a_few_times(
    database: Database, run: Run
) -> None:
    new = await _filled(database, run)
    await run(partial(changing.waiting, space_id=new, until=10**9), 2 * _ROWS)
    await run(partial(changing.behind, space_id=new, fresh_s=30), 2 * _ROWS)
    assert await run(partial(changing.activate, space_id=new))
    await run(changing.space_states, 4 * _ROWS)

    async with database.writing() as session:
        build = await building.begin_build(session, np.random.default_rng(1))
    assert build is not None
    assert build.building_id is not None
    made = build.building_id
    sign = partial(
        building.sign_some,
        signers=Signers(),
        build=build,
        generation_id=made,
        after=b"",
        most=_ALL,
    )
    copy = partial(building.copy_some, build=build, after=0, most=_ALL)
    for _ in range(2):
        assert (await run(sign))[0] == _ROWS
        assert (await run(copy, 2 * _ROWS))[0] == _ROWS
    async with database.writing() as session:
        await session.execute(
            text("UPDATE recall_index SET signature = NULL WHERE generation_id = :id"),
            {"id": made},
        )
    resign = partial(building.resign_some, generation_id=made, after=0, most=_ALL)
    await run(resign, 2 * _ROWS)
    unsigned = f"recall_index WHERE generation_id = {made} AND signature IS NULL"
    assert await counted(database, unsigned) == 0
    assert await run(partial(building.activate_build, build=build), 2 * _ROWS)

    async with database.writing() as session:
        ids = await dropping.begin_drop_of_superseded(session, kept_s=0)
    assert ids
    for id_ in ids:
        some = partial(dropping.delete_some_of_generation, generation_id=id_, most=_ALL)
        while await run(partial(some, after=0), 2 * _ROWS):
            pass
        while await run(partial(some, after=b""), 2 * _ROWS):
            pass
        await run(partial(dropping.delete_generation, generation_id=id_))
    async with database.writing() as session:
        assert await dropping.begin_drop(session, 1)
    while await run(partial(dropping.delete_some, space_id=1, most=_ALL), 2 * _ROWS):
        pass
    await run(partial(dropping.delete_space, space_id=1))
    assert await counted(database, "recall_index WHERE generation_id <> :id", id=made) == 0


async def test_statements_that_take_away_touch_each_row_a_few_times(
    database: Database, run: Run
) -> None:
    new = await _filled(database, run)
    async with database.writing() as session:
        assert await changing.activate(session, new)
    await remember(database, _names("later"), world="new", agent="bob")
    async with database.writing() as session:
        await embedding.sweep(session, new, after=0, most=_ALL)
    await run(inspection.world_statuses, 4 * _ROWS)
    for id_ in await run(partial(removal.agent_ids, world="new")):
        gone = partial(removal.delete_some_memories, agent_id=id_, from_tick=0, most=_ALL)
        assert (await run(gone)).memories == _ROWS
    assert await run(partial(removal.delete_world, world="new"))
    assert await run(partial(removal.collect_jobs, after=(0, b""), most=_ALL), 2 * _ROWS)
    since = await run(removal.since_now)
    found = await run(partial(removal.look_for_unused, most=_ALL), 2 * _ROWS)
    assert len(found) >= _ROWS
    assert await run(partial(removal.collect, since=since, texts=found), 2 * _ROWS) == len(found)
    assert await audited(database) == SOUND


@pytest.fixture(params=[True, False], ids=["lookups", "pooled"])
async def retriever(
    request: pytest.FixtureRequest, misled: Database, database_settings: DatabaseSettings
) -> AsyncIterator[Database]:
    """As a retriever's, and as one's behind PgBouncer, where nothing is set for a session."""
    pool = Database(database_settings, application="test", lookups=request.param)
    yield pool
    await pool.dispose()


async def test_recalls_touch_each_of_the_agents_rows_a_few_times(
    database: Database, retriever: Database, dear: list[Explained], run: Run
) -> None:
    new = await _filled(database, run)
    async with database.writing() as session:
        assert await changing.activate(session, new)
    await remember(database, ["I see fish"] * 50, world="new", tick=range(50))
    async with database.reading() as session:
        generation = await active_generation(session)
    assert generation is not None
    generation = replace(generation, mean=np.full(16, 0.1, dtype=np.float32))
    prefilter = await as_signed(database, generation)
    vector = np.linspace(-1, 1, 16).astype(np.float32)
    async with retriever.reading() as session, explaining(session) as explained:
        found = await whom(session, "new", ["alice"], space_id=new)
        agent = found.agents["alice"]
        asked = Asked(agent_id=agent, observation="new 17 fish", size=_ROWS)
        (words,) = await lexical.find(session, [asked], filters=Filters())
        question = Question(agent_id=agent, vector=vector, words=words)
        for weights, by in product((Weights(), None), (prefilter, None)):
            (best,) = await rank(
                session,
                [question],
                generation=generation,
                tick=_ROWS,
                k=5,
                filters=Filters(),
                weights=weights,
                half_life_ticks=500,
                prefilter=by,
            )
            assert len(best) == 5
    assert len(explained) >= 6
    dear.extend(one for one in explained if one.rows > _MOST * _ROWS)
