"""Ranking where the observation has no vector: by what is known of each memory without one."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.memory import Scored, Weights
from tickmind.scoring import MAX_HALF_LIVES
from tickmind.store.recall import Filters

__all__ = ["rank_by_recency_and_importance"]

# From `memory`, not from the index: those that have no vector either are remembered, too. The
# clamps are those of `store.recall`.
_RANK = text("""
    SELECT q.asked, top.*
    FROM unnest(CAST(:agent_ids AS bigint[])) WITH ORDINALITY AS q (agent_id, asked)
    CROSS JOIN LATERAL (
        SELECT known.*,
               :w_recency * known.recency + :w_importance * (known.importance / 10::float8)
                   AS score
        FROM (
            SELECT m.id, m.tick, m.kind, m.content, m.importance, m.is_core,
                   power(2::float8, -least(CAST(:most_half_lives AS float8),
                       greatest(0, CAST(:tick AS bigint) - m.tick) / CAST(:half_life AS float8)))
                       AS recency
            FROM memory m
            WHERE m.agent_id = q.agent_id
              AND (CAST(:as_of_tick AS bigint) IS NULL OR m.tick <= :as_of_tick)
              AND (CAST(:from_tick AS bigint) IS NULL OR m.tick >= :from_tick)
              AND (CAST(:kinds AS text[]) IS NULL OR m.kind = ANY(CAST(:kinds AS text[])))
              AND (CAST(:min_importance AS smallint) IS NULL OR m.importance >= :min_importance)
              AND (NOT CAST(:core_only AS boolean) OR m.is_core)
        ) AS known
        ORDER BY score DESC, known.tick DESC, known.id DESC
        LIMIT :k
    ) AS top
    ORDER BY q.asked, top.score DESC, top.tick DESC, top.id DESC
""")
_SHORTEST_HALF_LIFE = 1e-6


async def rank_by_recency_and_importance(
    session: AsyncSession,
    agent_ids: Sequence[int],
    *,
    tick: int,
    k: int,
    filters: Filters,
    weights: Weights,
    half_life_ticks: float,
) -> list[list[Scored]]:
    """The best `k` memories of each agent by those two terms, best first, pending ones among them;
    ties: newer tick, then higher id. Their relevance is 0: nothing is known of it."""
    parameters: dict[str, object] = {
        "agent_ids": list(agent_ids),
        "tick": tick,
        "half_life": max(half_life_ticks, _SHORTEST_HALF_LIFE),
        "as_of_tick": filters.as_of_tick,
        "from_tick": filters.from_tick,
        "kinds": list(filters.kinds) if filters.kinds is not None else None,
        "min_importance": filters.min_importance,
        "core_only": filters.core_only,
        "k": k,
        "most_half_lives": MAX_HALF_LIVES,
        "w_recency": weights.recency,
        "w_importance": weights.importance,
    }
    found: list[list[Scored]] = [[] for _ in agent_ids]
    for row in (await session.execute(_RANK, parameters)).all():
        found[row.asked - 1].append(
            Scored(
                id=row.id,
                tick=row.tick,
                kind=row.kind,
                content=row.content,
                importance=row.importance,
                score=row.score,
                relevance=0.0,
                recency=row.recency,
                is_core=row.is_core,
            )
        )
    return found
