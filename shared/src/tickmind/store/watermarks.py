"""How far the memory of worlds reaches."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.memory import Watermarks

__all__ = ["reaching", "watermarks"]

_WATERMARKS = text("""
    SELECT w.name, recorded.tick AS recorded,
           (SELECT min(p.tick) FROM pending_embedding p
            WHERE p.world_id = w.id AND p.space_id = :space_id AND NOT p.parked) AS first_pending
    FROM world w
    CROSS JOIN LATERAL (SELECT max(tick) AS tick FROM tick_receipt WHERE world_id = w.id) recorded
    WHERE w.name = ANY(CAST(:worlds AS text[]))
""")


async def watermarks(
    session: AsyncSession, worlds: Collection[str], *, space_id: int
) -> dict[str, Watermarks]:
    """Of those worlds that exist; `embedded` is told of one space."""
    parameters = {"worlds": sorted(worlds), "space_id": space_id}
    found = {}
    for row in (await session.execute(_WATERMARKS, parameters)).all():
        found[row.name] = reaching(row.recorded, row.first_pending)
    return found


def reaching(recorded: int | None, first_pending: int | None) -> Watermarks:
    """How far a world's memory reaches, of whose ticks `recorded` is the highest, and
    `first_pending` the lowest that still waits for a vector."""
    embedded = recorded
    if embedded is not None and first_pending is not None:
        embedded = min(embedded, first_pending - 1) if first_pending > 0 else None
    return Watermarks(recorded=recorded, embedded=embedded)
