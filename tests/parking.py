"""Texts given up on, as an embedder leaves them."""

from __future__ import annotations

from sqlalchemy import text

from tickmind.database import Database
from tickmind.store.spaces import Space, ensure_space

__all__ = ["SPACE", "park_all"]

#: The space of the hash embedder under the tests' settings.
SPACE = Space(model="hash", dimensions=64)

_PARK = text("""
    WITH job AS (
        INSERT INTO embedding_job (space_id, content_hash, due_order, attempts, parked_reason,
                                   parked_at)
        SELECT DISTINCT p.space_id, p.content_hash, 0, 5, CAST(:reason AS text), now()
        FROM pending_embedding p JOIN world w ON w.id = p.world_id WHERE w.name = :world
        RETURNING space_id, content_hash
    )
    UPDATE pending_embedding p SET parked = true
    FROM job WHERE p.space_id = job.space_id AND p.content_hash = job.content_hash
""")


async def park_all(database: Database, world: str, *, reason: str) -> None:
    """Park all that waits in a world, in a space that is made if there is none."""
    async with database.writing() as session:
        await ensure_space(session, SPACE)
    async with database.writing() as session:
        await session.execute(_PARK, {"world": world, "reason": reason})
