"""`quality`: what comes back among the first five, on the labelled sets, and what it costs.

Memories and the real model's vectors are put into PostgreSQL as the services put them, and asked
by the statements that the retriever uses. A question's figure is how many relevant memories are
among the first five, over the most there could be; the mean over a set's questions is reported.

`recall5_<set>_…`: `raw` and `dense`, the cosine of raw and of centred vectors alone; `lexical`,
words alone; `fused`, both, held to the best of those three; `blended`, with recency and importance
by their default weights, asked after all that is remembered, or at the question's own tick of what
was told by then. `lead_<set>`: how much better `fused` is than the best alone; `_low` and `_high`,
where that lies at 95 %. The mean that vectors are centred by
is the set's own. Of `fused`, by the definitions in `scoring` over the same vectors: `no_context`
without what a talk answers, `context_embedded` with the vectors of both together, `rrf` by
reciprocal ranks (Cormack et al. 2009, k = 60), `noisy_or` as cosine + 0.7 * words * (1 - cosine).

`blended_town_zh_<recency>_<importance>_<half-life>` tries weights on the town.

`cpu_ms_<way>`: processor time of PostgreSQL for each of the town's questions, one to a statement.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import psutil
from numpy.typing import NDArray
from sqlalchemy import text

from benchmarks.cached_vectors import CachedVectors
from benchmarks.labelled import Labelled, Question, labelled
from benchmarks.report import Report, at_least, machine
from benchmarks.resampling import interval
from benchmarks.stack import running_database
from tickmind import scoring
from tickmind.database import Database
from tickmind.identity import content_hash, in_context
from tickmind.local.embedding_server import DIMENSIONS, MODEL
from tickmind.memory import Memory, Weights
from tickmind.store import lexical, recall
from tickmind.store.embedding import store_vectors
from tickmind.store.recording import AgentId, ensure_agents, ensure_worlds, insert_memories
from tickmind.store.spaces import Generation, Space, ensure_space
from tickmind.words import digests, query_digests

__all__ = ["run"]

_K = 5
_HALF_LIFE_TICKS = 500.0
_MEANING = Weights(relevance=1.0, recency=0.0, importance=0.0)
_RRF_K = 60
_NOISY_OR = 0.7
_GRID = [
    *((recency, importance, 500.0) for recency in (0, 0.05, 0.1, 0.2) for importance in (0, 0.1)),
    *((0.1, 0.2, 500.0), (0.2, 0.2, 500.0), (0, 0.2, 500.0), (0, 0.4, 500.0)),
    *((0.1, 0.1, half_life) for half_life in (50.0, 100.0, 1000.0, 5000.0)),
]


async def run(report: Callable[[str], None]) -> Report:
    """Measure; `report` is told in words how far it is. Raises ConfigurationError, StartFailed."""
    sets = labelled()
    vectors = CachedVectors()
    memories = [m for one in sets for told in one.memories.values() for m in told]
    vectors.add(
        [told for m in memories for told in (m.content, _together(m))],
        [question.observation for one in sets for question in one.questions],
        report,
    )
    found = Report(name="quality", machine=machine())
    async with running_database() as settings:
        database = Database(settings, application="quality")
        try:
            for one in sets:
                await _measure(database, one, vectors, found)
                report(f"{one.name}: {len(one.questions)} questions asked")
        finally:
            await database.dispose()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """A set in the database: agents' ids, the ids of their memories in order, the generation."""

    agents: Mapping[str, int]
    ids: Mapping[str, Sequence[int]]
    generation: Generation


async def _measure(
    database: Database, one: Labelled, vectors: CachedVectors, found: Report
) -> None:
    stored = await _store(database, one, vectors)
    shares: dict[str, list[float]] = {}
    costs: dict[str, float] = {}
    for way, weights, by_words in (
        ("raw", None, False),
        ("dense", _MEANING, False),
        ("lexical", None, True),
        ("fused", _MEANING, True),
        ("blended", Weights(), True),
    ):
        shares[way], costs[way] = await _ask(
            database, one, stored, vectors, way=way, weights=weights, by_words=by_words
        )
    recalls = {way: statistics.fmean(of_questions) for way, of_questions in shares.items()}
    best = max(("raw", "dense", "lexical"), key=lambda way: recalls[way])
    for way, value in recalls.items():
        aim = at_least(recalls[best]) if way == "fused" else None
        found.add(f"recall5_{one.name}_{way}", value, "share of the reachable five", aim)
    leads = [a - b for a, b in zip(shares["fused"], shares[best], strict=True)]
    low, high = interval(leads, [question.observation for question in one.questions])
    name = f"lead_{one.name}"
    found.add(name, statistics.fmean(leads), f"of the reachable five over {best}")
    found.add(f"{name}_low", low, "of the reachable five")
    found.add(f"{name}_high", high, "of the reachable five")
    for way, value in _by_definition(one, vectors).items():
        found.add(f"recall5_{one.name}_{way}", value, "share of the reachable five")
    if one.name == "town_zh":
        for (recency, importance, half_life), value in _by_weights(one, vectors).items():
            name = f"blended_{one.name}_{recency:g}_{importance:g}_{half_life:g}"
            found.add(name, value, "share of the reachable five")
        for way in ("dense", "lexical", "fused"):
            found.add(f"cpu_ms_{way}", costs[way], "ms of PostgreSQL / recall")


async def _store(database: Database, one: Labelled, vectors: CachedVectors) -> _Stored:
    """The set in a world of its own."""
    space = Space(model=MODEL, dimensions=DIMENSIONS)
    async with database.writing() as session:
        generation = await ensure_space(session, space)
        world = (await ensure_worlds(session, [one.name]))[one.name]
        agents = {
            name: id_
            for (_, name), id_ in (
                await ensure_agents(session, [(world, name) for name in one.memories])
            ).items()
        }
        rows: list[tuple[AgentId, int | None, Memory]] = [
            (AgentId(id=agents[name], world_id=world), None, memory)
            for name, memories in one.memories.items()
            for memory in memories
        ]
        await insert_memories(session, rows)
        contents = {memory.content for _, _, memory in rows}
        known = {content_hash(content): vectors.passage(content) for content in contents}
        await store_vectors(session, generation.space_id, known)
        ids = {
            (row.agent_id, row.event_key): row.id
            for row in await session.execute(text("SELECT id, agent_id, event_key FROM memory"))
        }
    async with database.engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(text("VACUUM ANALYZE"))
    return _Stored(
        agents=agents,
        ids={
            name: [ids[agents[name], memory.event_key] for memory in memories]
            for name, memories in one.memories.items()
        },
        generation=replace(generation, mean=np.mean(list(known.values()), axis=0)),
    )


async def _ask(
    database: Database,
    one: Labelled,
    stored: _Stored,
    vectors: CachedVectors,
    *,
    way: str,
    weights: Weights | None,
    by_words: bool,
) -> tuple[list[float], float]:
    """Recall@5 of each question asked in one way, and PostgreSQL's processor time for each, in
    ms."""
    shares = []
    async with database.reading() as session:
        pid = (await session.execute(text("SELECT pg_backend_pid()"))).scalar_one()
        sizes = await lexical.agent_sizes(session, list(stored.agents.values()))
        begun = _cpu_s(pid)
        for question in one.questions:
            agent = stored.agents[question.agent]
            filters = recall.Filters(as_of_tick=question.tick)
            hits: dict[int, float] = {}
            if by_words:
                asked = lexical.Asked(
                    agent_id=agent, observation=question.observation, size=sizes[agent]
                )
                (hits,) = await lexical.find(session, [asked], filters=filters)
            best = list(hits)[:_K]
            if way != "lexical":
                query = recall.Question(
                    agent_id=agent, vector=vectors.query(question.observation), words=hits
                )
                (ranked,) = await recall.rank(
                    session,
                    [query],
                    generation=stored.generation,
                    tick=one.tick if question.tick is None else question.tick,
                    k=_K,
                    filters=filters,
                    weights=weights,
                    half_life_ticks=_HALF_LIFE_TICKS,
                )
                best = [memory.id for memory in ranked]
            ids = stored.ids[question.agent]
            shares.append(_share(question, [ids.index(id_) for id_ in best]))
        spent = _cpu_s(pid) - begun
    return shares, spent / len(one.questions) * 1000


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _share(question: Question, best: Iterable[int]) -> float:
    return len(question.relevant & set(best)) / min(_K, len(question.relevant))


def _together(memory: Memory) -> str:
    return memory.content if memory.context is None else in_context(memory.content, memory.context)


Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """What the definitions need of one question: (n,) each. `plain`: words without context;
    `together`: the cosine where content and context are embedded together."""

    question: Question
    cosine: Scores
    together: Scores
    words: Scores
    plain: Scores
    ticks: Sequence[int]
    importances: NDArray[np.int64]
    now: int

    def share(self, scores: Scores) -> float:
        if self.question.tick is not None:
            scores = np.where(np.asarray(self.ticks) <= self.question.tick, scores, -np.inf)
        best = scoring.rank(scores, self.ticks, range(len(scores)), _K)
        return _share(self.question, best.tolist())


def _terms(one: Labelled, vectors: CachedVectors) -> list[_Terms]:
    alone = {
        name: np.stack([vectors.passage(m.content) for m in told])
        for name, told in one.memories.items()
    }
    together = {
        name: np.stack([vectors.passage(_together(m)) for m in told])
        for name, told in one.memories.items()
    }
    mean = np.concatenate(list(alone.values())).mean(axis=0)
    mean_together = np.concatenate(list(together.values())).mean(axis=0)
    found = []
    for question in one.questions:
        told = one.memories[question.agent]
        asked = frozenset(query_digests(question.observation))
        query = vectors.query(question.observation)
        with_context = [frozenset(digests(m.content, m.context)) for m in told]
        plain = [frozenset(digests(m.content)) for m in told]
        found.append(
            _Terms(
                question=question,
                cosine=scoring.relevance(alone[question.agent], query, mean),
                together=scoring.relevance(together[question.agent], query, mean_together),
                words=scoring.by_words(with_context, asked),
                plain=scoring.by_words(plain, asked),
                ticks=[memory.tick for memory in told],
                importances=np.array([memory.importance for memory in told]),
                now=one.tick if question.tick is None else question.tick,
            )
        )
    return found


def _by_definition(one: Labelled, vectors: CachedVectors) -> dict[str, float]:
    """Other ways to fuse, and the same way with other contexts."""
    ways: dict[str, Callable[[_Terms], Scores]] = {
        "no_context": lambda t: scoring.fused(t.cosine, t.plain),
        "context_embedded": lambda t: scoring.fused(t.together, t.words),
        "rrf": lambda t: _reciprocal(t.cosine) + np.where(t.words > 0, _reciprocal(t.words), 0),
        "noisy_or": lambda t: t.cosine + _NOISY_OR * t.words * (1 - t.cosine),
    }
    terms = _terms(one, vectors)
    return {way: statistics.fmean(t.share(score(t)) for t in terms) for way, score in ways.items()}


def _reciprocal(scores: Scores) -> Scores:
    ranks = np.empty(len(scores))
    ranks[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return 1 / (_RRF_K + ranks)


def _by_weights(one: Labelled, vectors: CachedVectors) -> dict[tuple[float, float, float], float]:
    """Recall@5 with weights of recency and importance, and half-lives."""
    terms = _terms(one, vectors)
    found = {}
    for recency, importance, half_life in _GRID:
        weights = Weights(relevance=1.0, recency=recency, importance=importance)
        found[recency, importance, half_life] = statistics.fmean(
            t.share(
                scoring.blended(
                    scoring.fused(t.cosine, t.words),
                    scoring.recency(t.ticks, t.now, half_life),
                    t.importances,
                    weights,
                )
            )
            for t in terms
        )
    return found
