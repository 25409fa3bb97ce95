"""What the retriever reads: the ranked memories.

Ranking scores every memory of the agent that has a vector by the definitions of `tickmind.scoring`,
which the tests hold these statements to; or, of a large agent, the best candidates of a
`recall_signature.Prefilter`. What words find is scored beside them, with a vector or without
(`_BESIDE`): words only ever add to a score, so the best of all are among the best without words
and those that words found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.driver import Statement, fetch, numbered
from tickmind.memory import Scored, Weights
from tickmind.scoring import MAX_HALF_LIVES, WORDS_WEIGHT, counting
from tickmind.signature import BITS
from tickmind.store.hnsw import Hnsw
from tickmind.store.recall_signature import Prefilter, candidates, nearest
from tickmind.store.spaces import Generation

__all__ = ["Filters", "Question", "rank"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One agent, and the vector of what it sees: (dimensions,) float32, unit length.

    `vector` None: there is none, words, recency and importance must do. `words`: what they found
    (`lexical.find`): memory ids with how well, in (0, 1].
    """

    agent_id: int
    vector: NDArray[np.float32] | None
    words: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which memories may come back; None: no limit."""

    as_of_tick: int | None = None
    from_tick: int | None = None
    kinds: tuple[str, ...] | None = None
    min_importance: int | None = None
    core_only: bool = False


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

#: Memories of an agent that are looked at for want of a vector, the newest ones: what waits to be
#: embedded is mostly new. Older ones without a vector are found by their words.
_NEWEST = 50

_FILTERS = """
          (CAST(:as_of_tick AS bigint) IS NULL OR r.tick <= :as_of_tick)
          AND (CAST(:from_tick AS bigint) IS NULL OR r.tick >= :from_tick)
          AND (NOT CAST(:core_only AS boolean) OR r.is_core)
          AND (CAST(:kinds AS text[]) IS NULL OR r.kind = ANY(CAST(:kinds AS text[])))
          AND (CAST(:min_importance AS smallint) IS NULL OR r.importance >= :min_importance)
"""
# Most ask without filters: five conditions less for each row.
_NO_FILTERS = "true"
# Which of the agent's rows are ranked: all that the filters let through.
_RANKED = "r.generation_id = :generation_id AND r.agent_id = q.agent_id AND {filters}"
# What belongs to a row is looked up by its key, whatever the planner believes (see `lookups`).
_VECTOR = """
            CROSS JOIN LATERAL (
                SELECT vector FROM embedding
                WHERE space_id = :space_id AND content_hash = r.content_hash OFFSET 0
            ) AS e
"""
# The best by vectors alone.
_INDEXED = """
        SELECT scored.*, {score} AS score
        FROM (
            SELECT r.memory_id, r.tick, r.kind, r.importance, r.is_core,
                   {relevance} AS relevance, {recency} AS recency
            FROM {rows} r {vector}
        ) AS scored
        ORDER BY score DESC, scored.tick DESC, scored.memory_id DESC
        LIMIT :k
"""
_HITS = """
    WITH hits AS MATERIALIZED (
        SELECT * FROM unnest(CAST(:hit_asked AS integer[]), CAST(:hit_ids AS bigint[]),
                             CAST(:hit_words AS float8[])) AS h (asked, memory_id, words)
    )
"""
# Of the agent: what words found, and the newest.
_CANDIDATES = """
            FROM (
                SELECT memory_id, words FROM hits WHERE hits.asked = q.asked
                UNION ALL
                SELECT newest.id, 0 FROM (
                    SELECT r.id FROM memory r
                    WHERE r.agent_id = q.agent_id AND {filters}
                    ORDER BY r.tick DESC, r.id DESC LIMIT :newest) AS newest
            ) AS h
            CROSS JOIN LATERAL (
                SELECT id, tick, kind, importance, is_core FROM memory
                WHERE id = h.memory_id AND agent_id + 0 = q.agent_id OFFSET 0
            ) AS r
"""
# What words found, with its vector; and, of those candidates, what still waits for one: its cosine
# is not known, which is 0 here, neither a match nor the contrary.
_BESIDE = """
        SELECT scored.*, {score} AS score
        FROM (
            SELECT r.memory_id, r.tick, r.kind, r.importance, r.is_core,
                   {relevance} + {words_weight} * h.words AS relevance, {recency} AS recency
            FROM hits h
            CROSS JOIN LATERAL (
                SELECT * FROM recall_index
                WHERE memory_id = h.memory_id AND generation_id + 0 = :generation_id
                  AND agent_id + 0 = q.agent_id OFFSET 0
            ) AS r {vector}
            WHERE h.asked = q.asked AND {filters}
            UNION ALL
            SELECT r.id, r.tick, r.kind, r.importance, r.is_core,
                   {words_weight} * h.words AS relevance, {recency} AS recency
            {candidates}
            WHERE EXISTS (SELECT FROM pending_embedding p
                          WHERE p.memory_id = r.id AND p.space_id + 0 = :space_id OFFSET 0)
              AND {filters}
        ) AS scored
"""
_WITHOUT_VECTOR = """
        SELECT scored.*, {score} AS score
        FROM (
            SELECT r.id AS memory_id, r.tick, r.kind, r.importance, r.is_core,
                   {words_weight} * h.words AS relevance, {recency} AS recency
            {candidates}
            WHERE {filters}
        ) AS scored
"""
# The same memory may come from both, with words and without.
_BEST = """
        SELECT * FROM (
            SELECT DISTINCT ON (memory_id) * FROM ({found}) AS found
            ORDER BY memory_id, score DESC
        ) AS once
        ORDER BY score DESC, tick DESC, memory_id DESC
        LIMIT :k
"""
_STATEMENT = """
    SELECT q.asked, m.id, top.tick, top.kind, m.content, top.importance, top.is_core,
           top.relevance, top.recency, top.score
    FROM unnest({asked}) WITH ORDINALITY AS q ({columns}, asked)
    CROSS JOIN LATERAL ({top}) AS top
    CROSS JOIN LATERAL (
        SELECT id, content FROM memory WHERE id = top.memory_id OFFSET 0
    ) AS m
    ORDER BY q.asked, top.score DESC, top.tick DESC, top.memory_id DESC
"""
_ALL = "(SELECT * FROM recall_index r WHERE {filtered})"
_ASKED = """CAST(:agent_ids AS bigint[]), CAST(:vectors AS halfvec[]),
                CAST(:mean_dots AS float8[])"""
_BLENDED = """
    (:w_relevance * scored.relevance + :w_recency * scored.recency
     + :w_importance * (scored.importance / 10::float8))
"""


#: How rows of the index are found that are scored; the first and the last by signatures.
_Plan = Literal["all", "candidates", "nearest"]
#: Columns of a question, and what they are of.
_SIGNATURES: dict[_Plan, dict[str, str]] = {
    "all": {},
    "candidates": {"bits": "signatures"},
    "nearest": {"bits": "signatures", "raw_bits": "raw_signatures"},
}


# Each agent with an HNSW index has a statement of its own, see there.
@lru_cache(maxsize=256)
def _statement(
    score: str,
    relevance: str | None,
    *,
    words: bool,
    filtering: bool,
    plan: _Plan = "all",
    hnsw: Hnsw | None = None,
    most: int = 0,
) -> Statement:
    """`relevance` None: of questions without a vector. `words`: those count, too. `filtering`:
    there are filters. `most`: rows that are taken from the index `hnsw`."""
    filters = _FILTERS if filtering else _NO_FILTERS
    parts = {
        "score": score,
        "relevance": relevance,
        "recency": _RECENCY,
        "filters": filters,
        "candidates": _CANDIDATES.format(filters=filters),
        "words_weight": WORDS_WEIGHT,
        "vector": _VECTOR,
    }
    if relevance is None:
        asked, columns = "CAST(:agent_ids AS bigint[])", "agent_id"
        top = _BEST.format(found=_WITHOUT_VECTOR.format(**parts))
    else:
        asked, columns = _ASKED, "agent_id, vector, mean_dot"
        for column, parameter in _SIGNATURES[plan].items():
            asked += f", CAST(:{parameter} AS bit({BITS})[])"
            columns += f", {column}"
        filtered = _RANKED.format(filters=filters)
        if plan == "candidates":
            rows = candidates(filtered, relevance, _RECENCY, hnsw=hnsw, nearest=most)
        elif plan == "nearest":
            rows = nearest(filtered, relevance)
        else:
            rows = _ALL.format(filtered=filtered)
        top = _INDEXED.format(**parts, rows=rows)
        if words:
            found = f"({top}) UNION ALL ({_BESIDE.format(**parts)})"
            top = _BEST.format(found=found)
    return numbered(
        (_HITS if words else "") + _STATEMENT.format(asked=asked, columns=columns, top=top)
    )


async def rank(
    session: AsyncSession,
    questions: Sequence[Question],
    *,
    generation: Generation | None,
    tick: int,
    k: int,
    filters: Filters,
    weights: Weights | None,
    half_life_ticks: float,
    prefilter: Prefilter | None = None,
) -> list[list[Scored]]:
    """The best `k` memories for each question, best first; ties: newer tick, then higher id.

    `weights` None: cosine alone, as `ranking: "relevance"` asks; words do not count then.
    Questions have a vector all or none: without, relevance is what words give, and nothing is
    found where it is all that was asked for. `generation` None: there are no vectors yet.
    `prefilter`: where there is a mean, only its candidates, and what words found, are scored
    exactly.
    """
    parameters: dict[str, object] = {
        "agent_ids": [question.agent_id for question in questions],
        "tick": tick,
        "half_life": max(half_life_ticks, _SHORTEST_HALF_LIFE),
        "as_of_tick": filters.as_of_tick,
        "from_tick": filters.from_tick,
        "core_only": filters.core_only,
        "kinds": list(filters.kinds) if filters.kinds is not None else None,
        "min_importance": filters.min_importance,
        "k": k,
    }
    if weights is not None:
        weights = counting(weights)
        parameters |= {
            "newest": _NEWEST,
            "w_relevance": weights.relevance,
            "w_recency": weights.recency,
            "w_importance": weights.importance,
            "hit_asked": [n for n, q in enumerate(questions, 1) for _ in q.words],
            "hit_ids": [id_ for q in questions for id_ in q.words],
            "hit_words": [words for q in questions for words in q.words.values()],
        }
    filtering = filters != Filters()
    if generation is None or any(question.vector is None for question in questions):
        if weights is None:
            return [[] for _ in questions]
        statement = _statement(_BLENDED, None, words=True, filtering=filtering)
    else:
        mean = None
        if weights is not None and generation.mean is not None:
            mean = _halved(generation.mean)
        parameters |= _vectors(questions, mean)
        parameters |= {"space_id": generation.space_id, "generation_id": generation.id}
        vectors = [question.vector for question in questions if question.vector is not None]
        plan: _Plan = "all"
        hnsw, most = None, 0
        if weights is None and prefilter is not None:
            plan = "nearest"
            parameters |= prefilter.raw_parameters(vectors)
        if weights is not None and mean is not None and prefilter is not None:
            plan = "candidates"
            parameters |= prefilter.parameters(
                vectors, weights, tick=tick, half_life_ticks=half_life_ticks
            )
            if prefilter.hnsw is not None and "hnsw_bits" in parameters:
                hnsw, most = prefilter.hnsw, prefilter.nearest
        statement = _statement(
            "scored.relevance" if weights is None else _BLENDED,
            _RAW if mean is None else _CENTRED,
            words=weights is not None,
            filtering=filtering,
            plan=plan,
            hnsw=hnsw,
            most=most,
        )
    found: list[list[Scored]] = [[] for _ in questions]
    for row in await fetch(session, statement, parameters):
        place, id_, at, kind, content, importance, is_core, relevance, recency, score = row
        found[place - 1].append(
            Scored(
                id=id_,
                tick=at,
                kind=kind,
                content=content,
                importance=importance,
                score=score,
                relevance=relevance,
                recency=recency,
                is_core=is_core,
            )
        )
    return found


def _vectors(questions: Sequence[Question], mean: NDArray[np.float32] | None) -> dict[str, object]:
    """The questions' vectors, centred where there is a mean, as parameters."""
    vectors: list[HalfVector] = []
    mean_dots: list[float | None] = []
    for question in questions:
        vector, mean_dot = question.vector, None
        assert vector is not None
        if mean is not None and vector.any():
            vector = _unit(vector - mean)
            if vector.any():
                # With the rounded vector the database gets, so that rounding cancels.
                mean_dot = float(_halved(vector).astype(np.float64) @ mean)
        vectors.append(HalfVector(vector))
        mean_dots.append(mean_dot)
    parameters: dict[str, object] = {"vectors": vectors, "mean_dots": mean_dots}
    return parameters if mean is None else parameters | {"mean": HalfVector(mean)}


def _halved(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounded to the half precision that vectors are stored in."""
    return vector.astype(np.float16).astype(np.float32)


def _unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Unit length, or zero where it was: what stands on the mean says nothing."""
    norm = float(np.linalg.norm(vector))
    return vector / np.float32(norm) if norm > 0 else vector
