"""What waits for vectors, and how much of a budget is used: for metrics, so cheap to ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.limits import Limit

__all__ = ["MOST_COUNTED", "Waiting", "budget_used", "pending"]

#: Rows counted of one space: 100,000 take 20 to 50 ms (measured on two busy cores), and alarm as
#: much as more would.
MOST_COUNTED = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Pending memories of the space recalls use (`active`), or of those being filled beside it:
    how many, at most MOST_COUNTED of each space, and the seconds since the oldest was recorded."""

    active: bool
    memories: int
    oldest_s: float


# Parked rows are not waited for. The oldest is the lowest id: the primary key's first.
_PENDING = text("""
    WITH space AS (
        SELECT space_id, bool_or(status = 'active') AS active FROM index_generation
        WHERE status IN ('active', 'building') GROUP BY space_id
    )
    SELECT space.active, CAST(sum(counted.memories) AS bigint) AS memories,
           CAST(coalesce(max(extract(epoch FROM clock_timestamp() - oldest.recorded_at)), 0)
                AS float8) AS oldest_s
    FROM space
    CROSS JOIN LATERAL (
        SELECT count(*) AS memories FROM (
            SELECT FROM pending_embedding p
            WHERE p.space_id = space.space_id AND NOT p.parked LIMIT :most
        ) AS first_ones
    ) AS counted
    LEFT JOIN LATERAL (
        SELECT m.recorded_at
        FROM (
            SELECT memory_id FROM pending_embedding p
            WHERE p.space_id = space.space_id AND NOT p.parked
            ORDER BY p.memory_id LIMIT 1
        ) AS first_one
        CROSS JOIN LATERAL (
            SELECT recorded_at FROM memory WHERE id = first_one.memory_id OFFSET 0
        ) AS m
    ) AS oldest ON true
    GROUP BY space.active
""")


async def pending(session: AsyncSession) -> list[Waiting]:
    """What waits, of the active space and of the others; nothing before there is a space."""
    rows = (await session.execute(_PENDING, {"most": MOST_COUNTED})).all()
    return [Waiting(**row._asdict()) for row in rows]


_USED = text("""
    SELECT tickmind_used(:provider, l.unit, l.seconds, clock_timestamp()) AS used
    FROM unnest(CAST(:units AS text[]), CAST(:seconds AS float8[]))
         WITH ORDINALITY AS l (unit, seconds, n)
    ORDER BY l.n
""")


async def budget_used(session: AsyncSession, provider: str, limits: Sequence[Limit]) -> list[float]:
    """Units that each limit's window counts now, in their order."""
    if not limits:
        return []
    given = {
        "provider": provider,
        "units": [limit.unit for limit in limits],
        "seconds": [limit.window_s for limit in limits],
    }
    return [float(row.used) for row in (await session.execute(_USED, given)).all()]
