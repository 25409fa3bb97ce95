"""How far the memory of worlds reaches."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.memory import Watermarks

__all__ = ["watermarks"]

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
        embedded = row.recorded
        if embedded is not None and row.first_pending is not None:
            embedded = min(embedded, row.first_pending - 1) if row.first_pending > 0 else None
        found[row.name] = Watermarks(recorded=row.recorded, embedded=embedded)
    return found
