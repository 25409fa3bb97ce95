"""What the retriever reads: who is asked, how far memory reaches, and the ranked memories.

Ranking scores every memory of the agent that has a vector by the definitions of `tickmind.scoring`,
which the tests hold these statements to; or, of a large agent, the best candidates of a
`recall_signature.Prefilter`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector
from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.memory import Scored, Watermarks, Weights
from tickmind.scoring import MAX_HALF_LIVES
from tickmind.store.recall_signature import Prefilter, candidates
from tickmind.store.spaces import Generation

__all__ = ["Filters", "Question", "Whom", "rank", "whom"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Whom:
    """Ids of the agents asked for that exist, by name, and how far their world's memory reaches."""

    agents: dict[str, int]
    watermarks: Watermarks


_WHOM = text("""
    SELECT recorded.tick AS recorded,
           (SELECT min(p.tick) FROM pending_embedding p
            WHERE p.world_id = w.id AND p.space_id = :space_id AND NOT p.parked) AS first_pending,
           ARRAY(SELECT a.name FROM agent a
                 WHERE a.world_id = w.id AND a.name = ANY(CAST(:names AS text[]))
                 ORDER BY a.name) AS names,
           ARRAY(SELECT a.id FROM agent a
                 WHERE a.world_id = w.id AND a.name = ANY(CAST(:names AS text[]))
                 ORDER BY a.name) AS ids
    FROM world w
    CROSS JOIN LATERAL (SELECT max(tick) AS tick FROM tick_receipt WHERE world_id = w.id) recorded
    WHERE w.name = :world
""")


async def whom(session: AsyncSession, world: str, names: Sequence[str], *, space_id: int) -> Whom:
    """Find the agents of one world by name. A world that does not exist has none."""
    parameters = {"world": world, "names": sorted(set(names)), "space_id": space_id}
    row = (await session.execute(_WHOM, parameters)).one_or_none()
    if row is None:
        return Whom(agents={}, watermarks=Watermarks())
    embedded = row.recorded
    if embedded is not None and row.first_pending is not None:
        embedded = min(embedded, row.first_pending - 1) if row.first_pending > 0 else None
    return Whom(
        agents=dict(zip(row.names, row.ids, strict=True)),
        watermarks=Watermarks(recorded=row.recorded, embedded=embedded),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One agent, and the vector of what it sees: (dimensions,) float32, unit length."""

    agent_id: int
    vector: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which memories may come back; None: no limit."""

    as_of_tick: int | None = None
    kinds: tuple[str, ...] | None = None
    min_importance: int | None = None


# relevance: cosine of the raw vectors; pgvector says NaN where one is zero.
_RAW = "coalesce(nullif(1 - (e.vector <=> q.vector), 'NaN'), -1)"
# relevance: cosine of (x - mean, q - mean). With c the unit vector along q - mean, this is
# (x.c - mean.c) / |x - mean|: two passes over the stored vector and no new one. A stored zero
# vector has x.c = 0, which hardly another has: only then is its norm looked at. A query without a
# direction comes without a mean.c.
_CENTRED = """
    least(1, greatest(-1, coalesce(
        (-nullif(e.vector <#> q.vector, 0) - q.mean_dot) / nullif(e.vector <-> :mean, 0),
        CASE WHEN l2_norm(e.vector) > 0 THEN -q.mean_dot / nullif(e.vector <-> :mean, 0) END,
        -1)))
"""
# Clamped, since PostgreSQL raises on underflow where floating point would say 0.
_RECENCY = f"""
    power(2::float8, -least({MAX_HALF_LIVES}, greatest(0, CAST(:tick AS bigint) - r.tick)
                                              / CAST(:half_life AS float8)))
"""
#: A shorter half-life than this gives the same recency to any past tick, and dividing by it
#: might overflow.
_SHORTEST_HALF_LIFE = 1e-6

# Which of the agent's rows are ranked: all that the filters let through.
_FILTERED = """
    r.generation_id = :generation_id AND r.agent_id = q.agent_id
    AND (CAST(:as_of_tick AS bigint) IS NULL OR r.tick <= :as_of_tick)
    AND (CAST(:kinds AS text[]) IS NULL OR r.kind = ANY(CAST(:kinds AS text[])))
    AND (CAST(:min_importance AS smallint) IS NULL OR r.importance >= :min_importance)
"""
_STATEMENT = """
    SELECT q.asked, m.id, top.tick, top.kind, m.content, top.importance, top.is_core,
           top.relevance, top.recency, top.score
    FROM unnest(CAST(:agent_ids AS bigint[]), CAST(:vectors AS halfvec[]),
                CAST(:mean_dots AS float8[]))
         WITH ORDINALITY AS q (agent_id, vector, mean_dot, asked)
    CROSS JOIN LATERAL (
        SELECT scored.*, {score} AS score
        FROM (
            SELECT r.memory_id, r.tick, r.kind, r.importance, r.is_core,
                   {relevance} AS relevance, {recency} AS recency
            FROM {rows} r
            JOIN embedding e
                ON e.space_id = :space_id AND e.content_hash = r.content_hash
        ) AS scored
        ORDER BY score DESC, scored.tick DESC, scored.memory_id DESC
        LIMIT :k
    ) AS top
    JOIN memory m ON m.id = top.memory_id
    ORDER BY q.asked, top.score DESC, top.tick DESC, top.memory_id DESC
"""
_ALL = f"(SELECT * FROM recall_index r WHERE {_FILTERED})"  # noqa: S608 (a constant)
_BLENDED = """
    (:w_relevance * scored.relevance + :w_recency * scored.recency
     + :w_importance * (scored.importance / 10::float8))
"""


def _statement(score: str, relevance: str, rows: str = _ALL) -> TextClause:
    return text(_STATEMENT.format(score=score, relevance=relevance, recency=_RECENCY, rows=rows))


_BY_RELEVANCE = _statement("scored.relevance", _RAW)
_BY_BLEND_RAW = _statement(_BLENDED, _RAW)
_BY_BLEND_CENTRED = _statement(_BLENDED, _CENTRED)
_BY_BLEND_OF_CANDIDATES = _statement(_BLENDED, _CENTRED, candidates(_FILTERED, _CENTRED, _RECENCY))


async def rank(
    session: AsyncSession,
    questions: Sequence[Question],
    *,
    generation: Generation,
    tick: int,
    k: int,
    filters: Filters,
    weights: Weights | None,
    half_life_ticks: float,
    prefilter: Prefilter | None = None,
) -> list[list[Scored]]:
    """The best `k` memories for each question, best first; ties: newer tick, then higher id.

    `weights` None: cosine alone, as `ranking: "relevance"` asks. `prefilter`: where there are
    weights, and a mean, only its candidates are scored exactly.
    """
    mean = _halved(generation.mean) if weights is not None and generation.mean is not None else None
    vectors: list[HalfVector] = []
    mean_dots: list[float | None] = []
    for question in questions:
        vector, mean_dot = question.vector, None
        if mean is not None and vector.any():
            vector = _unit(vector - mean)
            if vector.any():
                # With the rounded vector the database gets, so that rounding cancels.
                mean_dot = float(_halved(vector).astype(np.float64) @ mean)
        vectors.append(HalfVector(vector))
        mean_dots.append(mean_dot)
    parameters: dict[str, object] = {
        "agent_ids": [question.agent_id for question in questions],
        "vectors": vectors,
        "mean_dots": mean_dots,
        "space_id": generation.space_id,
        "generation_id": generation.id,
        "tick": tick,
        "half_life": max(half_life_ticks, _SHORTEST_HALF_LIFE),
        "as_of_tick": filters.as_of_tick,
        "kinds": list(filters.kinds) if filters.kinds is not None else None,
        "min_importance": filters.min_importance,
        "k": k,
    }
    statement = _BY_RELEVANCE
    if weights is not None:
        statement = _BY_BLEND_RAW if mean is None else _BY_BLEND_CENTRED
        parameters |= {
            "w_relevance": weights.relevance,
            "w_recency": weights.recency,
            "w_importance": weights.importance,
        }
        if mean is not None:
            parameters["mean"] = HalfVector(mean)
            if prefilter is not None:
                statement = _BY_BLEND_OF_CANDIDATES
                parameters |= prefilter.parameters([question.vector for question in questions])
    found: list[list[Scored]] = [[] for _ in questions]
    for row in (await session.execute(statement, parameters)).all():
        found[row.asked - 1].append(
            Scored(
                id=row.id,
                tick=row.tick,
                kind=row.kind,
                content=row.content,
                importance=row.importance,
                score=row.score,
                relevance=row.relevance,
                recency=row.recency,
                is_core=row.is_core,
            )
        )
    return found


def _halved(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounded to the half precision that vectors are stored in."""
    return vector.astype(np.float16).astype(np.float32)


def _unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Unit length, or zero where it was: what stands on the mean says nothing."""
    norm = float(np.linalg.norm(vector))
    return vector / np.float32(norm) if norm > 0 else vector
