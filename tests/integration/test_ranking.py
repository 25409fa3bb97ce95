"""Ranking in PostgreSQL held to the pure definitions of tickmind.scoring, on real data."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tests.remembering import known, remember, signed
from tickmind import scoring
from tickmind.database import Database
from tickmind.driver import Statement, fetch
from tickmind.identity import content_hash
from tickmind.memory import MAX_TICK, Scored, Watermarks, Weights
from tickmind.store import recall as recall_module
from tickmind.store.embedding import store_vectors
from tickmind.store.recall import Filters, Question, rank
from tickmind.store.recall_signature import Prefilter
from tickmind.store.spaces import Generation, Space
from tickmind.store.whom import Whom, whom

Vector = NDArray[np.float32]

_SPACE = Space(model="test", dimensions=24)
_INDEX = "ix_recall_index_generation_id_agent_id_tick"
#: Distances are summed in float32 there, of halves.
_TOLERANCE = 2e-4

#: Whatever ranks, what comes back is the same.
_both_plans = pytest.mark.parametrize("by_signatures", [False, True], ids=["exact", "signatures"])


def _unit(vector: NDArray[Any]) -> Vector:
    unit: Vector = (vector / np.linalg.norm(vector)).astype(np.float32)
    return unit


def _half(vector: NDArray[Any]) -> NDArray[np.float64]:
    return vector.astype(np.float16).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Data:
    """One agent's memories: row i of each belongs to id `ids[i]`."""

    agent_id: int
    generation: Generation
    mean: Vector
    ids: NDArray[np.int64]
    ticks: NDArray[np.int64]
    kinds: list[str]
    importances: NDArray[np.int64]
    vectors: Vector

    def expected(
        self, query: Vector, *, tick: int, weights: Weights | None, half_life: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Relevance, recency and score of every memory, from the halves that are stored."""
        stored = _half(self.vectors)
        mean = self.generation.mean
        if weights is None or mean is None:
            relevance = scoring.relevance(stored, _half(query), None)
        else:
            centre = _half(mean)
            away = query.astype(np.float64) - centre
            towards = _half(away / np.linalg.norm(away)) if away.any() else away
            asked = centre + towards if query.any() else centre
            relevance = scoring.relevance(stored, asked, centre)
        recency = scoring.recency(self.ticks, tick, half_life)
        if weights is None:
            return relevance, recency, relevance
        return relevance, recency, scoring.blended(relevance, recency, self.importances, weights)


async def _ask(
    session: AsyncSession, generation: Generation, agent_id: int, query: Vector, **options: Any
) -> list[Scored]:
    given: dict[str, Any] = {
        "tick": 1000,
        "k": 5,
        "filters": Filters(),
        "weights": Weights(),
        "half_life_ticks": 500.0,
    }
    (found,) = await rank(
        session,
        [Question(agent_id=agent_id, vector=query)],
        generation=generation,
        **(given | options),
    )
    return found


async def _plan(
    database: Database, generation: Generation, by_signatures: bool, *, most: int = 200
) -> Prefilter | None:
    return await signed(database, generation, most=most) if by_signatures else None


async def _agent(database: Database, world: str, name: str) -> int:
    async with database.reading() as session:
        return (await whom(session, world, [name], space_id=1)).agents[name]


async def _varied(database: Database) -> _Data:
    """300 memories at every sort of tick, some with the same text, one of a zero vector, one at
    the mean."""
    random = np.random.default_rng(11)
    offset = random.normal(size=24)
    mean = (0.9 * offset / np.linalg.norm(offset)).astype(np.float16).astype(np.float32)
    texts = [f"text {i % 260}" for i in range(300)]
    near = mean + 0.4 * random.normal(size=(260, 24)) / np.sqrt(24)
    by_text = {f"text {i}": _unit(near[i]) for i in range(260)}
    by_text["text 0"] = np.zeros(24, dtype=np.float32)
    by_text["text 1"] = mean
    ticks = random.integers(0, 2000, size=300)
    ticks[:6] = [0, MAX_TICK, MAX_TICK - 1, 2**31, 2**53, 1000]
    importances = random.integers(1, 11, size=300)
    kinds = [("observation", "conversation", "reflection")[i % 3] for i in range(300)]
    await known(database, {}, _SPACE)
    await remember(
        database,
        texts,
        tick=list(map(int, ticks)),
        importance=list(map(int, importances)),
        kind=kinds,
    )
    generation = await known(database, by_text, _SPACE)
    async with database.reading() as session:
        rows = (
            await session.execute(
                text("SELECT id, tick, kind, importance, content FROM memory ORDER BY id")
            )
        ).all()
    return _Data(
        agent_id=await _agent(database, "town", "alice"),
        generation=replace(generation, mean=mean),
        mean=mean,
        ids=np.array([row.id for row in rows]),
        ticks=np.array([row.tick for row in rows]),
        kinds=[row.kind for row in rows],
        importances=np.array([row.importance for row in rows]),
        vectors=np.stack([by_text[row.content] for row in rows]),
    )


_WEIGHTS = [
    None,
    Weights(),
    Weights(relevance=0, recency=1, importance=0),
    Weights(relevance=0, recency=0, importance=1),
    Weights(relevance=0, recency=0, importance=0),
    Weights(relevance=1000, recency=1000, importance=1000),
    Weights(relevance=0.5, recency=2, importance=0.1),
]


@_both_plans
async def test_scores_and_order_are_those_of_the_definitions(
    database: Database, by_signatures: bool
) -> None:
    """case 14, 23: zero vectors, zero queries and memories of the future among them."""
    data = await _varied(database)
    prefilter = await _plan(database, data.generation, by_signatures)
    random = np.random.default_rng(5)
    queries = [
        _unit(random.normal(size=24)),
        _unit(data.mean + 0.2 * random.normal(size=24)),
        data.vectors[17],
        np.zeros(24, dtype=np.float32),
        data.mean,
    ]
    worlds = [(1000, 500.0), (0, 500.0), (MAX_TICK, 500.0), (1500, 1e15), (1500, 3e-308), (2, 0.5)]
    filters = [
        Filters(),
        Filters(as_of_tick=1000),
        Filters(as_of_tick=MAX_TICK),
        Filters(kinds=("conversation", "reflection")),
        Filters(min_importance=7),
        Filters(as_of_tick=1500, kinds=("observation",), min_importance=3),
        Filters(kinds=()),
    ]
    means = [data, replace(data, generation=replace(data.generation, mean=None))]
    cases = list(itertools.product(means, queries, _WEIGHTS, worlds, filters))
    async with database.reading() as session:
        for place in random.choice(len(cases), size=250, replace=False):
            of, query, weights, (tick, half_life), chosen = cases[place]
            k = (1, 5, 100)[place % 3]
            found = await _ask(
                session,
                of.generation,
                of.agent_id,
                query,
                tick=tick,
                k=k,
                filters=chosen,
                weights=weights,
                half_life_ticks=half_life,
                prefilter=prefilter,
            )
            _agree(of, found, query, tick, weights, half_life, chosen, k)


def _agree(
    data: _Data,
    found: list[Scored],
    query: Vector,
    tick: int,
    weights: Weights | None,
    half_life: float,
    chosen: Filters,
    k: int,
) -> None:
    relevance, recency, scores = data.expected(
        query, tick=tick, weights=weights, half_life=half_life
    )
    allowed = np.array(
        [
            (chosen.as_of_tick is None or data.ticks[i] <= chosen.as_of_tick)
            and (chosen.kinds is None or data.kinds[i] in chosen.kinds)
            and (chosen.min_importance is None or data.importances[i] >= chosen.min_importance)
            for i in range(len(data.ids))
        ]
    )
    assert len(found) == min(k, int(allowed.sum()))
    scale = _TOLERANCE * max(1.0, weights.relevance if weights else 1.0)
    places = [int(np.searchsorted(data.ids, memory.id)) for memory in found]
    for memory, i in zip(found, places, strict=True):
        assert allowed[i]
        assert memory.tick == data.ticks[i]
        assert (memory.kind, memory.importance) == (data.kinds[i], data.importances[i])
        assert memory.relevance == pytest.approx(relevance[i], abs=_TOLERANCE)
        assert -1 <= memory.relevance <= 1
        assert memory.recency == pytest.approx(recency[i], rel=1e-9)
        assert memory.score == pytest.approx(scores[i], abs=scale)
        assert np.isfinite(memory.score)
    order = [(memory.score, memory.tick, memory.id) for memory in found]
    assert order == sorted(order, reverse=True)
    others = scores[allowed & ~np.isin(data.ids, [memory.id for memory in found])]
    if len(others) and found:
        assert found[-1].score >= others.max() - scale


async def test_relevance_ranking_is_cosine_alone_in_exact_order(database: Database) -> None:
    data = await _varied(database)
    query = _unit(np.random.default_rng(8).normal(size=24))
    async with database.reading() as session:
        found = await _ask(session, data.generation, data.agent_id, query, weights=None, k=100)
    _, _, scores = data.expected(query, tick=1000, weights=None, half_life=500)
    best = scoring.rank(scores, data.ticks, data.ids, 100)
    assert [memory.id for memory in found] == list(data.ids[best])
    assert [memory.score for memory in found] == [memory.relevance for memory in found]


@_both_plans
async def test_stored_zero_vector_is_never_on_top(database: Database, by_signatures: bool) -> None:
    """case 14: even where the query lies away from the mean, as nothing else does."""
    mean = np.zeros(24, dtype=np.float32)
    mean[0] = 0.9
    known_vectors = {"real": _unit(mean + 0.1), "blank": np.zeros(24, dtype=np.float32)}
    await known(database, {}, _SPACE)
    await remember(database, ["blank", "real"])
    generation = replace(await known(database, known_vectors, _SPACE), mean=mean)
    agent_id = await _agent(database, "town", "alice")
    query = np.zeros(24, dtype=np.float32)
    query[0] = -1
    prefilter = await _plan(database, generation, by_signatures)
    async with database.reading() as session:
        for weights in (None, Weights(recency=0, importance=0)):
            found = await _ask(
                session, generation, agent_id, query, weights=weights, prefilter=prefilter
            )
            assert [memory.content for memory in found] == ["real", "blank"]
            assert found[1].relevance == -1


async def test_vector_with_no_part_along_the_query_is_scored_like_any(database: Database) -> None:
    """Its product with the query is exactly zero, as a zero vector's is."""
    mean = np.zeros(24, dtype=np.float32)
    mean[0] = 0.5
    first, second = np.eye(24, dtype=np.float32)[:2]
    await known(database, {}, _SPACE)
    await remember(database, ["across"])
    generation = replace(await known(database, {"across": second}, _SPACE), mean=mean)
    agent_id = await _agent(database, "town", "alice")
    async with database.reading() as session:
        (found,) = await _ask(session, generation, agent_id, first)
    expected = scoring.relevance(second[np.newaxis], first, mean)[0]
    assert expected < -0.3
    assert found.relevance == pytest.approx(expected, abs=_TOLERANCE)


@_both_plans
@pytest.mark.parametrize("centred", [True, False])
async def test_ties_go_to_the_newer_tick_then_the_higher_id_whatever_the_plan(
    database: Database, centred: bool, by_signatures: bool
) -> None:
    """case 18: identical vectors, with and without an index."""
    vector = _unit(np.arange(1.0, 25.0))
    await known(database, {}, _SPACE)
    ticks = [5, 9, 5, 9, 1, 5, 7, 9, 5, 3]
    await remember(database, [f"twin {i}" for i in range(10)], tick=ticks)
    generation = await known(database, {f"twin {i}": vector for i in range(10)}, _SPACE)
    mean = np.full(24, 0.1, dtype=np.float32)
    # As few candidates as are asked for: what is cut off is cut off in that order, too.
    prefilter = await _plan(database, replace(generation, mean=mean), by_signatures, most=7)
    generation = replace(generation, mean=mean if centred else None)
    agent_id = await _agent(database, "town", "alice")
    weights = Weights(recency=0)
    orders = []
    for indexed in ("on", "off"):
        async with database.writing() as session:
            for kind in ("indexscan", "indexonlyscan", "bitmapscan"):
                await session.execute(text(f"SET LOCAL enable_{kind} = {indexed}"))
            await session.execute(
                text(f"SET LOCAL enable_seqscan = {'off' if indexed == 'on' else 'on'}")
            )
            found = await _ask(
                session,
                generation,
                agent_id,
                _unit(vector + 0.1),
                weights=weights,
                k=7,
                prefilter=prefilter,
            )
        orders.append([(memory.score, memory.tick, memory.id) for memory in found])
    assert orders[0] == orders[1] == sorted(orders[0], reverse=True)
    assert len({score for score, _, _ in orders[0]}) == 1
    assert [tick for _, tick, _ in orders[0]] == [9, 9, 9, 7, 5, 5, 5]


async def test_memory_of_the_future_gains_nothing_by_it(database: Database) -> None:
    """case 23: recency at most 1, not first for an unrelated query, hidden by as_of_tick."""
    away, near = np.eye(24, dtype=np.float32)[:2]
    await known(database, {}, _SPACE)
    await remember(database, ["from the future", "of today"], tick=[10**6, 100])
    vectors = {"from the future": away, "of today": near}
    generation = await known(database, vectors, _SPACE)
    agent_id = await _agent(database, "town", "alice")
    async with database.reading() as session:
        found = await _ask(session, generation, agent_id, near, tick=100)
        assert [memory.content for memory in found] == ["of today", "from the future"]
        assert [memory.recency for memory in found] == [1, 1]
        (only,) = await _ask(
            session, generation, agent_id, near, tick=100, filters=Filters(as_of_tick=100)
        )
    assert only.content == "of today"


@_both_plans
async def test_distant_memories_of_ones_own_are_found_behind_crowds_of_others(
    database: Database, by_signatures: bool
) -> None:
    """case 17: 20,000 foreign rows near the query, ten distant ones of our own: five come back."""
    random = np.random.default_rng(2)
    space = Space(model="test", dimensions=8)
    query = np.eye(8, dtype=np.float32)[0]
    crowd = {
        f"crowd {i}": _unit(vector)
        for i, vector in enumerate(query + 0.05 * random.normal(size=(20_000, 8)))
    }
    own = {f"own {i}": _unit(v) for i, v in enumerate(-query + 0.3 * random.normal(size=(10, 8)))}
    await known(database, {}, space)
    await remember(database, list(own), agent="alice")
    for number in range(4):
        part = list(crowd)[number::4]
        await remember(database, part, agent=f"other {number}")
    generation = replace(
        await known(database, crowd | own, space), mean=np.full(8, 0.1, dtype=np.float32)
    )
    agent_id = await _agent(database, "town", "alice")
    prefilter = await _plan(database, generation, by_signatures, most=5)
    async with database.reading() as session:
        for weights in (None, Weights()):
            found = await _ask(
                session, generation, agent_id, query, weights=weights, prefilter=prefilter
            )
            assert len(found) == 5
            assert all(memory.content in own for memory in found)


async def test_every_agent_sees_only_its_own(database: Database) -> None:
    """case 19: names that a pattern or a quote could confuse, and the same names in two worlds."""
    names = ["john_doe", "john-doe", "a%", "o'x", "johnXdoe", "ab"]
    vector = np.eye(24, dtype=np.float32)[0]
    await known(database, {}, _SPACE)
    contents = {(world, name): f"{world}: {name}" for world in ("one", "two") for name in names}
    for (world, name), content in contents.items():
        await remember(database, [content, "said by all"], world=world, agent=name)
    generation = await known(
        database, dict.fromkeys([*contents.values(), "said by all"], vector), _SPACE
    )
    async with database.reading() as session:
        for world in ("one", "two"):
            found = await whom(session, world, [*names, "nobody"], space_id=generation.space_id)
            assert set(found.agents) == set(names)
            answers = await rank(
                session,
                [Question(agent_id=found.agents[name], vector=vector) for name in names],
                generation=generation,
                tick=1,
                k=5,
                filters=Filters(),
                weights=None,
                half_life_ticks=500,
            )
            for name, memories in zip(names, answers, strict=True):
                assert {m.content for m in memories} == {f"{world}: {name}", "said by all"}


@_both_plans
async def test_many_questions_in_one_statement_are_answered_each_as_alone(
    database: Database, by_signatures: bool
) -> None:
    data = await _varied(database)
    await remember(database, ["text 5", "text 6"], agent="bob")
    await known(database, {"text 5": data.vectors[5], "text 6": data.vectors[6]}, _SPACE)
    bob = await _agent(database, "town", "bob")
    random = np.random.default_rng(4)
    questions = [
        Question(agent_id=agent_id, vector=_unit(random.normal(size=24)))
        for agent_id in (data.agent_id, bob, data.agent_id, 10**9, bob)
    ]
    options: dict[str, Any] = {
        "generation": data.generation,
        "prefilter": await _plan(database, data.generation, by_signatures),
        "tick": 1000,
        "k": 5,
        "filters": Filters(),
        "weights": Weights(),
        "half_life_ticks": 500.0,
    }
    async with database.reading() as session:
        together = await rank(session, questions, **options)
        alone = [(await rank(session, [question], **options))[0] for question in questions]
    assert together == alone
    assert [len(found) for found in together] == [5, 2, 5, 0, 2]


class _Explaining:
    """In place of `fetch`: tells how PostgreSQL would run a statement, and finds nothing."""

    plan = ""

    async def __call__(
        self, session: AsyncSession, statement: Statement, parameters: Mapping[str, object]
    ) -> list[Any]:
        explained = Statement(sql=f"EXPLAIN (FORMAT JSON) {statement.sql}", names=statement.names)
        ((plan,),) = await fetch(session, explained, parameters)
        self.plan = json.dumps(plan)
        return []


def _scans(plan: Any) -> Iterator[tuple[str, str]]:
    """(node type, table) of every node that reads one."""
    if isinstance(plan, list):
        for part in plan:
            yield from _scans(part)
    elif isinstance(plan, dict):
        if "Relation Name" in plan:
            yield plan["Node Type"], plan["Relation Name"]
        for part in plan.values():
            yield from _scans(part)


async def _crowded(database: Database) -> tuple[Generation, int]:
    """200 agents of 100 memories each, in a table that autovacuum has seen."""
    generation = await known(database, {}, _SPACE)
    async with database.writing() as session:
        for statement in (
            "INSERT INTO world (name) VALUES ('crowd')",
            "INSERT INTO agent (world_id, name) SELECT w.id, 'agent ' || i"
            " FROM world w, generate_series(1, 200) i",
            "INSERT INTO memory (agent_id, tick, importance, kind, content, content_hash,"
            " event_key) SELECT a.id, i, 5, 'observation', 'x', sha256((a.id * 1000 + i)::text"
            "::bytea), int4send(i) FROM agent a, generate_series(1, 100) i",
            "INSERT INTO embedding (space_id, content_hash, vector)"
            " SELECT 1, content_hash, array_fill(0.2::real, ARRAY[24])::halfvec FROM memory",
            "INSERT INTO recall_index (memory_id, generation_id, importance, is_core, agent_id,"
            " tick, kind, content_hash) SELECT id, 1, 5, false, agent_id, tick, kind,"
            " content_hash FROM memory",
            "ANALYZE",
        ):
            await session.execute(text(statement))
    assert (generation.id, generation.space_id) == (1, 1)
    return generation, await _agent(database, "crowd", "agent 77")


@pytest.mark.parametrize("weights", [None, Weights()])
async def test_signatures_are_read_from_the_covering_index_alone(
    database: Database, monkeypatch: pytest.MonkeyPatch, weights: Weights | None
) -> None:
    generation, agent_id = await _crowded(database)
    generation = replace(generation, mean=np.full(24, 0.1, dtype=np.float32))
    prefilter = await signed(database, generation, most=20)
    async with database.reading() as session:
        await session.execute(text("VACUUM (ANALYZE) recall_index"))
        explaining = _Explaining()
        monkeypatch.setattr(recall_module, "fetch", explaining)
        await _ask(
            session,
            generation,
            agent_id,
            _unit(np.arange(1.0, 25.0)),
            weights=weights,
            filters=Filters(as_of_tick=90, kinds=("observation",), min_importance=2),
            prefilter=prefilter,
        )
    assert ("Index Only Scan", "recall_index") in set(_scans(json.loads(explaining.plan)))
    assert f'"Index Name": "{_INDEX}"' in explaining.plan


@pytest.mark.parametrize("weights", [Weights(), None], ids=["blended", "relevance"])
async def test_best_of_thousands_by_signatures_are_those_of_the_definitions(
    database: Database, weights: Weights | None
) -> None:
    """20,000 candidates for 200 places; the best ten by the definitions are found."""
    random = np.random.default_rng(31)
    space = Space(model="test", dimensions=32)
    mean = _unit(random.normal(size=32)) * np.float32(0.8)
    texts = {f"text {i}": _unit(mean + 0.1 * random.normal(size=32)) for i in range(4000)}
    await known(database, {}, space)
    ticks = [int(t) for t in random.integers(0, 2000, size=20_000)]
    importances = [int(i) for i in random.integers(1, 11, size=20_000)]
    said = [f"text {i}" for i in random.integers(0, 4000, size=20_000)]
    await remember(database, said, tick=ticks, importance=importances)
    generation = replace(await known(database, texts, space), mean=mean)
    prefilter = await signed(database, generation)
    agent_id = await _agent(database, "town", "alice")
    found_of = 0
    async with database.reading() as session:
        for _ in range(20):
            query = _unit(mean + 0.1 * random.normal(size=32))
            options: dict[str, Any] = {"tick": 2000, "k": 10, "weights": weights}
            mine = await _ask(session, generation, agent_id, query, prefilter=prefilter, **options)
            exact = await _ask(session, generation, agent_id, query, **options)
            found_of += len({memory.id for memory in mine} & {memory.id for memory in exact})
    assert found_of >= 199  # .995


async def test_memories_without_a_signature_are_scored_exactly(database: Database) -> None:
    """Those that a release without signatures linked."""
    data = await _varied(database)
    prefilter = await signed(database, data.generation, most=5)
    async with database.writing() as session:
        await session.execute(
            text("UPDATE recall_index SET signature = NULL WHERE memory_id % 2 = 0")
        )
    async with database.reading() as session:
        for place in range(20, 60):
            options = {"weights": Weights(recency=0, importance=0), "k": 1}
            query = data.vectors[place]
            (mine,) = await _ask(
                session, data.generation, data.agent_id, query, prefilter=prefilter, **options
            )
            (exact,) = await _ask(session, data.generation, data.agent_id, query, **options)
            assert mine == exact


@pytest.mark.parametrize("weights", [None, Weights()])
@pytest.mark.parametrize("centred", [True, False])
async def test_plan_reads_one_agents_rows_of_the_covering_index(
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    weights: Weights | None,
    centred: bool,
) -> None:
    generation, agent_id = await _crowded(database)
    mean = np.full(24, 0.1, dtype=np.float32)
    generation = replace(generation, mean=mean if centred else None)
    query = _unit(np.arange(1.0, 25.0))
    async with database.reading() as session:
        explaining = _Explaining()
        monkeypatch.setattr(recall_module, "fetch", explaining)
        (found,) = await rank(
            session,
            [Question(agent_id=agent_id, vector=query)],
            generation=generation,
            tick=100,
            k=5,
            filters=Filters(as_of_tick=90, kinds=("observation",), min_importance=2),
            weights=weights,
            half_life_ticks=500,
        )
        assert found == []
        assert f'"Index Name": "{_INDEX}"' in explaining.plan
        assert ("Seq Scan", "recall_index") not in set(_scans(json.loads(explaining.plan)))


@_both_plans
async def test_plan_stays_custom_after_the_sixth_execution_on_a_connection(
    database: Database, by_signatures: bool
) -> None:
    """PostgreSQL would otherwise consider a generic plan from then on."""
    generation, agent_id = await _crowded(database)
    generation = replace(generation, mean=np.full(24, 0.1, dtype=np.float32))
    prefilter = await _plan(database, generation, by_signatures)
    query = _unit(np.arange(1.0, 25.0))
    async with database.reading() as session:
        for _ in range(9):
            found = await _ask(session, generation, agent_id, query, prefilter=prefilter)
            assert len(found) == 5
        row = (
            await session.execute(
                text(
                    "SELECT sum(custom_plans), sum(generic_plans) FROM pg_prepared_statements"
                    " WHERE statement LIKE '%AS q (agent_id%' AND statement NOT LIKE '%sum(%'"
                )
            )
        ).one()
    assert row == (9, 0)


async def _marks(database: Database, world: str, generation: Generation) -> Watermarks:
    async with database.reading() as session:
        found: Whom = await whom(session, world, [], space_id=generation.space_id)
        return found.watermarks


async def test_watermarks_follow_what_is_recorded_and_what_is_pending(database: Database) -> None:
    """case 21: what is pending holds the mark down, what is parked does not."""
    generation = await known(database, {}, _SPACE)
    assert await _marks(database, "town", generation) == Watermarks()
    await remember(database, ["a", "b", "c"], tick=[10, 20, 30])
    assert await _marks(database, "town", generation) == Watermarks(recorded=30, embedded=9)

    vector = np.eye(24, dtype=np.float32)[0]
    await known(database, {"a": vector, "c": vector}, _SPACE)
    assert await _marks(database, "town", generation) == Watermarks(recorded=30, embedded=19)

    async with database.writing() as session:
        await session.execute(text("UPDATE pending_embedding SET parked = true"))
    assert await _marks(database, "town", generation) == Watermarks(recorded=30, embedded=30)

    await remember(database, ["at the beginning"], tick=0)
    assert await _marks(database, "town", generation) == Watermarks(recorded=30, embedded=None)
    await remember(database, ["elsewhere"], world="other", tick=MAX_TICK)
    assert await _marks(database, "other", generation) == Watermarks(
        recorded=MAX_TICK, embedded=MAX_TICK - 1
    )


async def test_pending_memories_are_no_matches_and_no_error(database: Database) -> None:
    """case 21: three embedded, four pending."""
    vector = np.eye(24, dtype=np.float32)[0]
    await known(database, {}, _SPACE)
    await remember(database, [f"memory {i}" for i in range(7)])
    generation = await known(database, {f"memory {i}": vector for i in range(3)}, _SPACE)
    agent_id = await _agent(database, "town", "alice")
    async with database.reading() as session:
        for weights in (None, Weights()):
            found = await _ask(session, generation, agent_id, vector, weights=weights)
            best = {memory.content for memory in found[:3]}
            assert best == {"memory 0", "memory 1", "memory 2"}
            assert all(memory.relevance == 0 for memory in found[3:])
            assert len(found) == (3 if weights is None else 5)


async def test_vectors_of_another_space_are_not_compared(database: Database) -> None:
    """case 15: the width is the same, the model is not."""
    vector = np.eye(24, dtype=np.float32)[0]
    generation = await known(database, {}, _SPACE)
    await remember(database, ["old", "new"])
    await known(database, {"new": -vector}, _SPACE)
    async with database.writing() as session:
        for statement in (
            "INSERT INTO embedding_space (model, dimensions) VALUES ('retired', 24)",
            "INSERT INTO index_generation (space_id, status) SELECT id, 'retired'"
            " FROM embedding_space WHERE model = 'retired'",
            "INSERT INTO recall_index SELECT m.id, g.id, m.importance, m.is_core, m.agent_id,"
            " m.tick, m.kind, m.content_hash FROM memory m, index_generation g"
            " WHERE g.status = 'retired'",
        ):
            await session.execute(text(statement))
        hashes = {content_hash(content): vector for content in ("old", "new")}
        await store_vectors(session, generation.space_id + 1, hashes)
    agent_id = await _agent(database, "town", "alice")
    async with database.reading() as session:
        (found,) = await _ask(session, generation, agent_id, vector, weights=None)
    assert (found.content, found.relevance) == ("new", -1)
