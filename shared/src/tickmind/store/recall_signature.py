"""Ranking a large agent: its rows by their signatures, then the best exactly.

Every row that the filters let through gets an approximate score from the covering index alone: its
own recency and importance, and the cosine that its signature's bits stand for. Only the best
candidates' vectors are read, of those that the signatures' error may have kept from the best k.
What is too far behind the best of the newest rows is neither scored nor sorted. (The best by cosine
alone would not do: on 10,000 memories the best 200 by cosine held .14 of the 10 best by score.)

By raw cosine alone (`nearest`), the approximate score is what its bits differ by from the
question's signature and from that of the question not centred, together (`Signer.sign_question`).
Of 200 questions about real texts (384 wide; 1,000 to 20,000 memories) and made vectors (1536;
10,000 and 50,000) the best 400 held all of the 10 nearest, the best 200 at least .999.

Of an agent with an HNSW index (`store.hnsw`), only what is newer than the index is looked at so;
its best of what is older come from there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.driver import fetch, numbered
from tickmind.memory import Weights
from tickmind.signature import BITS, Signer
from tickmind.store.hnsw import Hnsw, older
from tickmind.store.signing import bit_string

__all__ = ["CANDIDATES", "PAYS_FROM", "RAW_FACTOR", "Prefilter", "candidates", "nearest", "rows_of"]

#: Candidates of each agent that are scored exactly, from `exactness` in benchmarks/NOTES.md.
CANDIDATES = 200
#: From so many rows on the prefilter costs less than scoring all exactly (same place).
PAYS_FROM = 1000
#: By the raw cosine so many times as many are scored exactly, for the measurement above.
RAW_FACTOR = 2
#: What a cosine told by bits may be off by: so many standard deviations of independent bits, which
#: is sqrt(differing * (bits - differing)) times the cosine's slope. Measured: .77 of that is one.
_DEVIATIONS = 2.5
_MARGIN = _DEVIATIONS * math.pi / BITS**1.5
#: By the raw cosine, bits by which one that differs more than the k-th nearest may be nearer.
_RAW_MARGIN = 100
#: So many are scored exactly in any case, where there are more.
_LEAST = "greatest(50, 2 * :k)"
#: Of so many of the newest the best are looked at first.
_SAMPLE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilter:
    """Rank the best `most` of each agent by the signatures of a generation.

    `hnsw`: of the one agent that is asked for; what it covers is found by it, `nearest` memories.
    """

    signer: Signer
    most: int = CANDIDATES
    hnsw: Hnsw | None = None
    nearest: int = 0

    def parameters(
        self,
        queries: Sequence[NDArray[np.float32]],
        weights: Weights,
        *,
        tick: int,
        half_life_ticks: float,
    ) -> dict[str, object]:
        """`queries`: (d,) each, not centred. `hnsw_bits` is among them where the index is able to
        answer all."""
        signatures = self.signer.sign(np.stack(list(queries)))
        parameters: dict[str, object] = {
            "signatures": [bit_string(signature) for signature in signatures],
            "candidates": self.most,
        }
        if self.hnsw is not None:
            sought = [
                self.hnsw.sought(signature, weights, tick=tick, half_life_ticks=half_life_ticks)
                for signature in signatures
            ]
            if None not in sought:
                parameters["hnsw_bits"] = sought
        return parameters

    def raw_parameters(self, queries: Sequence[NDArray[np.float32]]) -> dict[str, object]:
        """The same for `nearest`."""
        signed = self.signer.sign_question(np.stack(list(queries)))
        return {
            "signatures": [bit_string(both[0] if both else None) for both in signed],
            "raw_signatures": [bit_string(both[1] if both else None) for both in signed],
            "candidates": self.most * RAW_FACTOR,
        }


# Of the best candidates those that may be among the best :k, for what a signature's cosine may be
# off by. A text that is not signed is placed exactly, but among others that are not: it gets the
# widest margin. 1e-9: sums that are made up in another order.
_CANDIDATES = """
    (WITH near AS MATERIALIZED (
         SELECT r.memory_id, r.tick, r.kind, r.importance, r.is_core, r.content_hash,
                coalesce(r.signature <~> q.bits, {half}) AS differing, {score} AS score
         FROM {rows} r
         WHERE {filtered} {bounded}
         ORDER BY score DESC, r.tick DESC, r.memory_id DESC
         LIMIT :candidates)
     SELECT memory_id, tick, kind, importance, is_core, content_hash FROM near
     WHERE score >= coalesce(
               (SELECT score FROM near ORDER BY score DESC OFFSET {least} - 1 LIMIT 1), '-infinity')
        OR score + 1e-9 + :w_relevance * {margin} * sin(differing * {angle})
                          * sqrt(differing * ({bits} - differing))
           >= coalesce((SELECT score FROM near ORDER BY score DESC OFFSET :k - 1 LIMIT 1),
                       '-infinity'))
"""
# A row whose text is not signed, or has no direction, is scored exactly, so that nothing hangs on
# signatures being complete.
_SCORE = """
    CAST(:w_relevance AS float8) * CASE
        WHEN q.bits IS NULL THEN -1
        WHEN r.signature IS NULL THEN (
            SELECT {relevance} FROM embedding e
            WHERE e.space_id = :space_id AND e.content_hash = r.content_hash)
        ELSE cos((r.signature <~> q.bits) * {angle}) END
    + :w_recency * {recency} + :w_importance * (r.importance / 10::float8)
"""
# What cannot be among them, told by one operator: most rows are neither scored nor sorted then. The
# best of the newest are no better than the best of all; recency and importance are at most 1.
# Asked once a question (an InitPlan: it names nothing of the row).
_BOUNDED = """
    AND coalesce(r.signature <~> q.bits, 0) <= (
        WITH newest AS MATERIALIZED (
            SELECT {score} AS score FROM (
                SELECT * FROM recall_index r WHERE {filtered} ORDER BY r.tick DESC LIMIT {newest}
            ) AS r)
        SELECT coalesce(max(1 + acos(least(1, greatest(-1,
                   (least(best.kth - :w_relevance * {margin} * {half}, best.least) - 1e-9
                    - :w_recency - :w_importance) / nullif(:w_relevance, 0)))) / {angle}), {bits})
        FROM (SELECT (SELECT score FROM newest ORDER BY score DESC OFFSET :k - 1 LIMIT 1) AS kth,
                     (SELECT score FROM newest ORDER BY score DESC OFFSET {least} - 1 LIMIT 1)
                         AS least) AS best
        WHERE best.kth IS NOT NULL AND best.least IS NOT NULL)
"""


# Of an agent with an HNSW index: what is newer than that, and what it finds.
_NEWER_AND_NEAREST = """
    (SELECT r.memory_id, r.tick, r.kind, r.importance, r.is_core, r.content_hash, r.signature
     FROM recall_index r WHERE {filtered} AND r.tick >= {before:d}
     UNION ALL {older})
"""


def candidates(
    filtered: str, relevance: str, recency: str, *, hnsw: Hnsw | None = None, nearest: int = 0
) -> str:
    """The rows of recall_index, as a subquery, that are worth to be scored exactly. Rows found
    otherwise (by words, say) are to be united with them."""
    numbers = {
        "bits": BITS,
        "half": BITS // 2,
        "angle": math.pi / BITS,
        "margin": _MARGIN,
        "least": _LEAST,
    }
    score = _SCORE.format(relevance=relevance, recency=recency, **numbers)
    if hnsw is None:
        rows = "recall_index"
        bounded = _BOUNDED.format(score=score, filtered=filtered, newest=_SAMPLE, **numbers)
    else:
        found = older(hnsw, nearest)
        rows = _NEWER_AND_NEAREST.format(filtered=filtered, before=hnsw.before, older=found)
        filtered, bounded = "true", ""
    return _CANDIDATES.format(score=score, rows=rows, filtered=filtered, bounded=bounded, **numbers)


# A row without a signature (there is hardly one) is placed by its exact cosine, early at any rate;
# so it is none to measure others by.
_NEAREST = """
    (WITH near AS MATERIALIZED (
         SELECT r.memory_id, r.tick, r.kind, r.importance, r.is_core, r.content_hash,
                r.signature IS NOT NULL AS signed, {differing} AS differing
         FROM recall_index r
         WHERE {filtered} AND {differing} <= (
             WITH newest AS MATERIALIZED (
                 SELECT {differing} AS differing FROM (
                     SELECT * FROM recall_index r WHERE {filtered}
                     ORDER BY r.tick DESC LIMIT {newest}
                 ) AS r WHERE r.signature IS NOT NULL)
             SELECT greatest(
                 {margin} + (SELECT differing FROM newest ORDER BY differing OFFSET :k - 1 LIMIT 1),
                 coalesce((
                     SELECT differing FROM newest ORDER BY differing OFFSET {least} - 1 LIMIT 1),
                     'infinity')))
         ORDER BY differing, r.tick DESC, r.memory_id DESC
         LIMIT :candidates)
     SELECT memory_id, tick, kind, importance, is_core, content_hash FROM near
     WHERE differing <= greatest(
         {margin} + (
             SELECT differing FROM near WHERE signed ORDER BY differing OFFSET :k - 1 LIMIT 1),
         coalesce((
             SELECT differing FROM near WHERE signed ORDER BY differing OFFSET {least} - 1 LIMIT 1),
             'infinity')))
"""
_DIFFERING = """
    coalesce((r.signature <~> q.bits) + (r.signature <~> q.raw_bits),
             {bits} * (1 - (SELECT {relevance} FROM embedding e
                            WHERE e.space_id = :space_id AND e.content_hash = r.content_hash)))
"""


def nearest(filtered: str, relevance: str) -> str:
    """The same for ranking by the raw cosine alone."""
    return _NEAREST.format(
        differing=_DIFFERING.format(bits=BITS, relevance=relevance),
        filtered=filtered,
        bits=BITS,
        margin=_RAW_MARGIN,
        least=_LEAST,
        newest=_SAMPLE,
    )


# Bounded: of a large agent only that it is large is asked.
_ROWS = numbered("""
    SELECT a.id, counted.rows FROM unnest(CAST(:agent_ids AS bigint[])) AS a (id)
    CROSS JOIN LATERAL (
        SELECT count(*) AS rows FROM (
            SELECT FROM recall_index r
            WHERE r.generation_id = :generation_id AND r.agent_id = a.id
            LIMIT CAST(:most AS bigint)
        ) AS bounded
    ) AS counted
""")


async def rows_of(
    session: AsyncSession, generation_id: int, agent_ids: Sequence[int], *, most: int | None
) -> dict[int, int]:
    """How many rows each of these agents has, counted no further than `most`."""
    parameters = {"generation_id": generation_id, "agent_ids": list(agent_ids), "most": most}
    return {row["id"]: row["rows"] for row in await fetch(session, _ROWS, parameters)}
