"""Taking away: a world, an agent, and the vectors nobody remembers any more."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.store.embedding import LINK_LOCK

__all__ = ["collect_embeddings", "delete_agent", "delete_world"]

_DELETE_WORLD = text("DELETE FROM world WHERE name = :world RETURNING id")
_DELETE_REJECTS = text("DELETE FROM reject WHERE world = :world")
_DELETE_AGENT = text("""
    DELETE FROM agent
    WHERE name = :agent AND world_id = (SELECT id FROM world WHERE name = :world)
    RETURNING id
""")
# A text nobody waits for and nobody indexed. Jobs too: their last memory is gone.
_UNUSED_EMBEDDINGS = text("""
    DELETE FROM embedding e
    WHERE NOT EXISTS (
            SELECT FROM recall_index r JOIN index_generation g ON g.id = r.generation_id
            WHERE g.space_id = e.space_id AND r.content_hash = e.content_hash)
      AND NOT EXISTS (
            SELECT FROM pending_embedding p
            WHERE p.space_id = e.space_id AND p.content_hash = e.content_hash)
    RETURNING 1
""")
_UNUSED_JOBS = text("""
    DELETE FROM embedding_job j
    WHERE NOT EXISTS (SELECT FROM pending_embedding p
                      WHERE p.space_id = j.space_id AND p.content_hash = j.content_hash)
""")


async def delete_world(session: AsyncSession, world: str) -> bool:
    """Delete a world and all that hangs on it, rejects too; whether there was one."""
    found = (await session.execute(_DELETE_WORLD, {"world": world})).first() is not None
    await session.execute(_DELETE_REJECTS, {"world": world})
    return found


async def delete_agent(session: AsyncSession, world: str, agent: str) -> bool:
    """Delete one agent and its memories; whether there was one."""
    found = await session.execute(_DELETE_AGENT, {"world": world, "agent": agent})
    return found.first() is not None


async def collect_embeddings(session: AsyncSession) -> int:
    """Delete vectors and jobs of texts no memory holds; how many vectors.

    A memory recorded meanwhile with such a text keeps its pending row and is embedded anew.
    """
    await session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LINK_LOCK})
    await session.execute(_UNUSED_JOBS)
    return len((await session.execute(_UNUSED_EMBEDDINGS)).all())
