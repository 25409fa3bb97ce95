"""Taking away: a world, an agent, and the vectors nobody remembers any more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.store.embedding import LINK_LOCK, store_vectors
from tickmind.store.inspection import drop_parked

__all__ = [
    "agent_memories",
    "collect_embeddings",
    "collect_some_embeddings",
    "delete_agent",
    "delete_world",
    "give_up_parked",
]

# Linking locks a pending row, then its memory; deleting the memory first, then its pending row:
# without this lock the two would wait for each other.
_LOCK_OUT_LINKS = text("SELECT pg_advisory_xact_lock(:key)")
_DELETE_WORLD = text("DELETE FROM world WHERE name = :world RETURNING id")
_DELETE_REJECTS = text("DELETE FROM reject WHERE world = :world")
_DELETE_AGENT = text("""
    DELETE FROM agent
    WHERE name = :agent AND world_id = (SELECT id FROM world WHERE name = :world)
    RETURNING id
""")
# A text nobody waits for and nobody indexed. Jobs too: their last memory is gone. One that is
# leased stays: a memory recorded now would have its text sent a second time.
_DELETE_EMBEDDINGS = """
    WITH gone AS (
        DELETE FROM embedding e @which
          NOT EXISTS (
                SELECT FROM recall_index r JOIN index_generation g ON g.id = r.generation_id
                WHERE g.space_id = e.space_id AND r.content_hash = e.content_hash)
          AND NOT EXISTS (
                SELECT FROM pending_embedding p
                WHERE p.space_id = e.space_id AND p.content_hash = e.content_hash)
        RETURNING e.space_id, e.content_hash
    ), unsigned AS (
        DELETE FROM signature s USING gone JOIN index_generation g ON g.space_id = gone.space_id
        WHERE s.generation_id = g.id AND s.content_hash = gone.content_hash
    )
    SELECT content_hash FROM gone
"""
_UNUSED_EMBEDDINGS = text(_DELETE_EMBEDDINGS.replace("@which", "WHERE"))
_UNUSED_JOBS = text("""
    DELETE FROM embedding_job j
    WHERE NOT EXISTS (SELECT FROM pending_embedding p
                      WHERE p.space_id = j.space_id AND p.content_hash = j.content_hash)
      AND (j.lease_until IS NULL OR j.lease_until < clock_timestamp())
""")


async def delete_world(session: AsyncSession, world: str) -> bool:
    """Delete a world and all that hangs on it, rejects too; whether there was one."""
    await session.execute(_LOCK_OUT_LINKS, {"key": LINK_LOCK})
    found = (await session.execute(_DELETE_WORLD, {"world": world})).first() is not None
    await session.execute(_DELETE_REJECTS, {"world": world})
    return found


async def delete_agent(session: AsyncSession, world: str, agent: str) -> bool:
    """Delete one agent and its memories; whether there was one."""
    await session.execute(_LOCK_OUT_LINKS, {"key": LINK_LOCK})
    found = await session.execute(_DELETE_AGENT, {"world": world, "agent": agent})
    return found.first() is not None


_AGENT_MEMORIES = text("""
    SELECT (SELECT count(*) FROM memory m WHERE m.agent_id = a.id) AS memories
    FROM agent a JOIN world w ON w.id = a.world_id
    WHERE w.name = :world AND a.name = :agent
""")


async def agent_memories(session: AsyncSession, world: str, agent: str) -> int | None:
    """How many memories an agent has; None: there is no such agent."""
    found = await session.execute(_AGENT_MEMORIES, {"world": world, "agent": agent})
    return found.scalar_one_or_none()


async def give_up_parked(session: AsyncSession, hashes: Sequence[str] | None = None) -> int:
    """Give up on these parked texts, or all, for good; how many there were.

    Their memories stay, and get the zero vector: it scores below every other, and nothing waits
    for it any more.
    """
    # Taken before the jobs' rows, as `collect_embeddings` takes them.
    await session.execute(text("SELECT pg_advisory_xact_lock_shared(:key)"), {"key": LINK_LOCK})
    spaces: dict[int, dict[bytes, NDArray[np.float32]]] = defaultdict(dict)
    for space_id, content_hash, dimensions in await drop_parked(session, hashes):
        spaces[space_id][content_hash] = np.zeros(dimensions, dtype=np.float32)
    for space_id, vectors in spaces.items():
        await store_vectors(session, space_id, vectors)
    return sum(len(vectors) for vectors in spaces.values())


async def collect_embeddings(session: AsyncSession) -> int:
    """Delete vectors and jobs of texts no memory holds; how many vectors.

    A memory recorded meanwhile with such a text keeps its pending row and is embedded anew.
    """
    await session.execute(_LOCK_OUT_LINKS, {"key": LINK_LOCK})
    await session.execute(_UNUSED_JOBS)
    return len((await session.execute(_UNUSED_EMBEDDINGS)).all())


# One pass over what is indexed, without a lock: nearly always it finds nothing.
_LOOK_FOR_UNUSED = text("""
    SELECT e.space_id, e.content_hash FROM embedding e
    WHERE NOT EXISTS (
            SELECT FROM recall_index r JOIN index_generation g ON g.id = r.generation_id
            WHERE g.space_id = e.space_id AND r.content_hash = e.content_hash)
      AND NOT EXISTS (
            SELECT FROM pending_embedding p
            WHERE p.space_id = e.space_id AND p.content_hash = e.content_hash)
    LIMIT :most
""")
_COLLECT_THESE = text(
    _DELETE_EMBEDDINGS.replace(
        "@which",
        """
        USING unnest(CAST(:space_ids AS integer[]), CAST(:hashes AS bytea[])) AS t (space_id, hash)
        WHERE e.space_id = t.space_id AND e.content_hash = t.hash AND
        """,
    )
)


async def collect_some_embeddings(session: AsyncSession, *, most: int) -> int:
    """Delete at most `most` vectors of texts no memory holds; how many. Linking waits for it only
    where there are some."""
    found = (await session.execute(_LOOK_FOR_UNUSED, {"most": most})).all()
    if not found:
        return 0
    await session.execute(_LOCK_OUT_LINKS, {"key": LINK_LOCK})
    parameters = {
        "space_ids": [row.space_id for row in found],
        "hashes": [row.content_hash for row in found],
    }
    return len((await session.execute(_COLLECT_THESE, parameters)).all())
