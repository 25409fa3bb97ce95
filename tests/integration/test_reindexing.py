"""The recall index built anew: no memory is lost to it, whoever runs beside whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import text

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
from tickmind.identity import content_hash
from tickmind.reindexing import Reindexing, Taken, Told
from tickmind.removing import collect
from tickmind.settings import DatabaseSettings
from tickmind.signature import Signer
from tickmind.store import building, changing, dropping
from tickmind.store.removal import delete_world
from tickmind.store.spaces import (
    Space,
    active_generation,
    ensure_space,
    filled_generations,
    refresh_mean,
)
from tickmind_embedder.indexing import Indexing

_SPACE = Space(model="test", dimensions=16)
#: Index rows of the active generation whose signature is not the one of their text.
_UNSIGNED = """recall_index r JOIN index_generation g ON g.id = r.generation_id
    JOIN signature s ON s.generation_id = g.id AND s.content_hash = r.content_hash
    WHERE g.status = 'active' AND r.signature IS DISTINCT FROM s.bits"""


def _vectors(names: list[str], seed: int = 1) -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    return {name: random.normal(size=16).astype(np.float32) for name in names}


async def _town(database: Database, count: int = 60) -> None:
    names = [f"text {i}" for i in range(count)]
    await known(database, {}, _SPACE)
    await remember(database, names, tick=list(range(count)))
    await remember(database, names[:7], agent="bob")
    await known(database, _vectors(names), _SPACE)


async def _whole(database: Database) -> None:
    """The active generation has signatures, and misses nothing."""
    async with database.reading() as session:
        active = await active_generation(session)
    assert active is not None
    assert active.signed
    assert await audited(database) == SOUND
    assert await counted(database, "signature") == await counted(database, "embedding")
    assert await counted(database, _UNSIGNED) == 0
    rows = f"recall_index WHERE generation_id = {active.id}"
    assert await counted(database, rows) == await counted(database, "memory")


async def test_new_generation_takes_the_place_of_the_active_one(database: Database) -> None:
    await _town(database)
    build = await Reindexing(database.writing).build()
    assert build is not None
    assert not build.active_signed
    await _whole(database)
    assert await counted(database, "index_generation WHERE status = 'retired'") == 1
    async with database.reading() as session:
        active = await active_generation(session)
        filled = await filled_generations(session)
        (state,) = await changing.space_states(session)
    assert active is not None
    assert active.id == build.building_id
    assert [generation.id for generation in filled] == [active.id]
    assert (state.generation_id, state.signed, state.building) == (active.id, True, False)
    vectors = np.stack(list(_vectors([f"text {i}" for i in range(60)]).values()))
    assert active.mean is not None
    np.testing.assert_allclose(active.mean, vectors.mean(axis=0), atol=1e-3)
    async with database.reading() as session:
        row = (
            await session.execute(
                text("SELECT g.basis, s.bits FROM index_generation g JOIN signature s"
                     " ON s.generation_id = g.id WHERE s.content_hash = :hash"),
                {"hash": content_hash("text 5")},
            )
        ).one()  # fmt: skip
    halved = vectors[5:6].astype(np.float16)
    assert Signer(active.mean, row.basis).sign(halved) == [row.bits.bytes]


async def test_mean_of_a_generation_with_signatures_stays(database: Database) -> None:
    await _town(database)
    await Reindexing(database.writing).build()
    names = [f"more {i}" for i in range(200)]
    await known(database, _vectors(names, seed=2), _SPACE)
    async with database.writing() as session:
        active = await active_generation(session)
        assert active is not None
        assert not await refresh_mean(session, active)


async def test_too_few_vectors_are_left_as_they_are(database: Database) -> None:
    await _town(database, count=31)
    assert await Reindexing(database.writing).build() is None
    await _town(database, count=40)
    assert await Reindexing(database.writing).build(least=41) is None
    assert await counted(database, "index_generation") == 1
    assert await counted(database, "task_lease") == 0


async def test_zero_vectors_are_indexed_without_a_signature(database: Database) -> None:
    """case 14"""
    await _town(database)
    await remember(database, ["blank"])
    await known(database, {"blank": np.zeros(16, dtype=np.float32)}, _SPACE)
    await Reindexing(database.writing).build()
    await _whole(database)
    assert await counted(database, "signature WHERE bits IS NULL") == 1
    # One that comes later, too.
    await remember(database, ["blank too"])
    await known(database, {"blank too": np.zeros(16, dtype=np.float32)}, _SPACE)
    await _whole(database)


class _Died(Exception):
    pass


class _Mortal(Reindexing):
    """One whose process dies: it lets go of nothing."""

    async def _let_go(self) -> None:
        pass


@pytest.mark.parametrize("step", ["signing", "copying", "completing"])
async def test_builder_that_died_is_replaced_where_it_was(
    database: Database, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr("tickmind.reindexing._SIGNED_AT_ONCE", 13)
    monkeypatch.setattr("tickmind.reindexing._ROWS_AT_ONCE", 11)
    await _town(database)
    seen: list[str] = []

    def told(so_far: Told) -> None:
        seen.append(so_far.step)
        if seen.count(step) == 2:
            raise _Died

    mortal = _Mortal(database.writing, told=told)
    if step == "completing":  # linked, then signed: by a release that signs nothing
        async with database.writing() as session:
            await building.begin_build(session, np.random.default_rng(1))
            build = await building.current_build(session)
            assert build is not None
            await building.copy_some(session, build, after=0, most=1000)
    with pytest.raises(_Died):
        await mortal.build()
    assert await audited(database) == SOUND
    heir = Reindexing(database.writing)
    with pytest.raises(Taken):
        await heir.build()
    async with database.writing() as session:
        await session.execute(text("UPDATE task_lease SET lease_until = now() - interval '1 s'"))

    build = await heir.build()

    assert build is not None
    assert await counted(database, "index_generation") == 2
    await _whole(database)
    assert await counted(database, "task_lease") == 0


async def test_two_builders_at_once_build_one_generation(database: Database) -> None:
    await _town(database)
    done = await asyncio.gather(
        *(Reindexing(database.writing).build() for _ in range(3)),
        return_exceptions=True,
    )
    assert all(isinstance(one, building.Build | Taken) for one in done)
    assert any(isinstance(one, building.Build) for one in done)
    await _whole(database)


async def test_two_builders_without_a_lease_do_no_harm(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when one slept through its lease."""

    async def yes(*_: Any, **__: Any) -> bool:
        return True

    monkeypatch.setattr(building, "hold_lease", yes)
    monkeypatch.setattr("tickmind.reindexing._SIGNED_AT_ONCE", 7)
    monkeypatch.setattr("tickmind.reindexing._ROWS_AT_ONCE", 5)
    await _town(database)
    done = await asyncio.gather(
        *(Reindexing(database.writing).build() for _ in range(2)),
        return_exceptions=True,
    )
    assert all(isinstance(one, building.Build | Taken) for one in done)
    await _whole(database)


async def test_no_memory_is_lost_to_recorders_and_embedders_while_it_is_built(
    database: Database, database_settings: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tickmind.reindexing._SIGNED_AT_ONCE", 20)
    monkeypatch.setattr("tickmind.reindexing._ROWS_AT_ONCE", 20)
    settings = embedder_settings(database_settings)
    async with handling(database, settings) as one, handling(database, settings) as other:
        await remember(database, [f"early {i}" for i in range(80)])
        await drained(one)
        over = asyncio.Event()

        async def write(number: int) -> None:
            for turn in range(30):
                texts = [f"shared {turn}", f"own {number} {turn}", f"early {turn}"]
                await remember(database, texts, agent=f"agent {number}", tick=turn)

        async def embed(handler: Any) -> None:
            while not over.is_set():
                await drained(handler)

        async def build() -> None:
            for _ in range(3):
                await Reindexing(database.writing).build()

        working = [asyncio.create_task(embed(handler)) for handler in (one, other)]
        async with asyncio.TaskGroup() as tasks:
            for number in range(3):
                tasks.create_task(write(number))
            tasks.create_task(build())
        over.set()
        await asyncio.gather(*working)
        await drained(one)
    assert await counted(database, "pending_embedding") == 0
    await_signed = "signature s JOIN index_generation g ON g.id = s.generation_id"
    active = f"{await_signed} WHERE g.status = 'active'"
    assert await counted(database, active) == await counted(database, "embedding")
    assert await counted(database, _UNSIGNED) == 0
    assert await audited(database) == SOUND
    assert await counted(database, "index_generation WHERE status = 'building'") == 0


@asynccontextmanager
async def _building(database: Database) -> AsyncIterator[building.Build]:
    async with database.writing() as session:
        build = await building.begin_build(session, np.random.default_rng(1))
    assert build is not None
    assert build.building_id is not None
    yield build


async def test_what_is_linked_while_it_is_built_is_in_both_with_its_signature(
    database: Database,
) -> None:
    await _town(database)
    async with _building(database) as build:
        await remember(database, ["new"], agent="carol")
        await known(database, _vectors(["new"], seed=3), _SPACE)
        assert await counted(database, "signature") == 1
        rows = "recall_index r JOIN memory m ON m.id = r.memory_id WHERE m.content = 'new'"
        assert await counted(database, rows) == 2
        assert await counted(database, f"{rows} AND r.signature IS NOT NULL") == 1
        # Said before, signed before: by SQL alone.
        await remember(database, ["new"], agent="dan")
        await known(database, _vectors(["new"], seed=3), _SPACE)
        assert await counted(database, f"{rows} AND r.signature IS NOT NULL") == 2
        # What the active one has is not missing in the space.
        async with database.writing() as session:
            marked = await changing.mark_missing(session, build.space_id, after=0, most=1000)
        assert (marked.seen, marked.marked) == (69, 0)
        assert await audited(database) == SOUND
    await Reindexing(database.writing).build()
    await _whole(database)


async def test_link_under_way_holds_back_the_beginning(database: Database) -> None:
    """It has seen one generation: the copy must wait until what it links can be seen."""
    await _town(database)
    async with database.writing() as session:
        await insert(session, ["text 1"], agent="late")
    async with database.writing() as linking:
        from tickmind.store.embedding import sweep

        swept = await sweep(linking, 1, after=0, most=100)
        assert swept.linked == 1
        beginning = asyncio.create_task(Reindexing(database.writing).build())
        await waiting_for_locks(database, 1)
    await beginning
    await _whole(database)


async def test_one_that_misses_something_is_not_activated(database: Database) -> None:
    await _town(database)
    async with _building(database) as build, database.writing() as session:
        assert not await building.activate_build(session, build)
    assert await audited(database) == SOUND
    async with database.reading() as session:
        active = await active_generation(session)
    assert active is not None
    assert not active.signed


async def test_superseded_generation_is_deleted_once_nobody_asks_it(database: Database) -> None:
    await _town(database)
    reindexing = Reindexing(database.writing)
    await reindexing.build()
    await reindexing.build()
    assert await counted(database, "index_generation WHERE status = 'retired'") == 2
    assert await reindexing.drop_superseded() == 0  # a recall may be under way
    async with database.writing() as session:
        await session.execute(
            text("UPDATE index_generation SET activated_at = activated_at - interval '2 min'")
        )
    assert await reindexing.drop_superseded() == 2
    assert await counted(database, "index_generation") == 1
    assert await counted(database, "recall_index") == await counted(database, "memory")
    await _whole(database)


async def test_space_that_recalls_leave_is_not_built_over_any_more(database: Database) -> None:
    await _town(database)
    other = Space(model="other", dimensions=8)
    async with database.writing() as session:
        space_id, _ = await changing.add_space(session, other, None)
    async with _building(database) as build:
        async with database.writing() as session:
            assert not await changing.activate(session, build.space_id)  # it is the active one
        async with database.writing() as session:
            assert await changing.activate(session, space_id)
    async with database.writing() as session:
        assert not await building.activate_build(session, build)
    states = {state.model: state for state in await _states(database)}
    assert states["test"].status == "retired"
    assert states["test"].generation_id == build.active_id
    assert await Reindexing(database.writing).drop_superseded() == 1
    # And back, with all it had.
    async with database.writing() as session:
        await changing.refill(session, build.space_id)
        assert await changing.activate(session, build.space_id)
    assert await audited(database) == SOUND
    assert await counted(database, "embedding WHERE space_id = 1") == 60


async def _states(database: Database) -> list[changing.SpaceState]:
    async with database.reading() as session:
        return await changing.space_states(session)


async def test_space_with_several_generations_is_dropped_with_all_of_them(
    database: Database,
) -> None:
    await _town(database)
    await Reindexing(database.writing).build()
    async with database.writing() as session:
        assert not await dropping.begin_drop(session, 1)
        other_id, _ = await changing.add_space(session, Space(model="other", dimensions=8), None)
        assert await changing.activate(session, other_id)
    async with database.writing() as session:
        assert await dropping.begin_drop(session, 1)
        while await dropping.delete_some(session, 1, most=20):
            pass
        await dropping.delete_space(session, 1)
    for table in ("recall_index", "embedding", "signature"):
        assert await counted(database, table) == 0
    assert await counted(database, "index_generation") == 1


async def test_what_another_release_left_unsigned_is_signed_later(database: Database) -> None:
    await _town(database)
    reindexing = Reindexing(database.writing)
    await reindexing.build()
    async with database.writing() as session:
        await session.execute(text("DELETE FROM signature WHERE get_byte(content_hash, 0) < 99"))
        await session.execute(text("UPDATE recall_index SET signature = NULL WHERE tick < 30"))
    build = await reindexing.current()
    assert build is not None
    await reindexing.tend(build)
    await _whole(database)


async def test_signatures_of_vectors_that_are_collected_go_with_them(database: Database) -> None:
    await _town(database)
    await remember(database, ["gone"], world="elsewhere")
    await known(database, _vectors(["gone"]), _SPACE)
    await Reindexing(database.writing).build()
    async with database.writing() as session:
        await delete_world(session, "elsewhere")
    assert await collect(database.writing) == 1
    await _whole(database)


async def test_embedder_builds_by_itself_once_there_are_vectors_enough(database: Database) -> None:
    await _town(database)
    for signed_from in (0, 61):
        await Indexing(database, signed_from=signed_from).look()
        assert await counted(database, "index_generation") == 1
    two = [Indexing(database, signed_from=60) for _ in range(2)]
    await asyncio.gather(*(indexing.look() for indexing in two))
    await _whole(database)
    assert await counted(database, "index_generation") == 2
    for indexing in two:
        await indexing.look()
    assert await counted(database, "index_generation") == 2


async def test_embedder_finishes_what_a_command_began(database: Database) -> None:
    await _town(database)
    async with _building(database):
        await Indexing(database, signed_from=0).look()
    await _whole(database)


async def test_ensured_space_is_the_active_one_while_another_is_built(database: Database) -> None:
    await _town(database)
    async with _building(database) as build, database.writing() as session:
        assert (await ensure_space(session, _SPACE)).id == build.active_id
        assert [one.id for one in await filled_generations(session)] == [build.active_id]
