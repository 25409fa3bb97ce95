"""Taking away: a world, an agent, and the vectors nobody remembers any more; `tickmind.removing`
does all of it, in short transactions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.store.embedding import store_vectors
from tickmind.store.inspection import drop_parked, drop_rejects
from tickmind.store.locking import (
    lock_for_cascades,
    lock_out_links,
    lock_out_recorders,
    lock_out_world,
)
from tickmind.store.lookups import as_it_likes, compare_whole

__all__ = [
    "Deleted",
    "Since",
    "Text",
    "agent_ids",
    "agent_memories",
    "collect",
    "collect_jobs",
    "delete_agent",
    "delete_some_memories",
    "delete_world",
    "give_up_parked",
    "look_for_unused",
    "since_now",
]

_DELETE_WORLD = text("DELETE FROM world WHERE id = :id RETURNING id")
_DELETE_AGENT = text("""
    DELETE FROM agent
    WHERE name = :agent AND world_id = (SELECT id FROM world WHERE name = :world)
    RETURNING id
""")
_AGENTS = text("""
    SELECT a.id FROM agent a JOIN world w ON w.id = a.world_id
    WHERE w.name = :world AND (CAST(:agent AS text) IS NULL OR a.name = :agent)
    ORDER BY a.id
""")
# In the order of an index, from where the last one ended: a search that began at the first row
# each time would pass all that were deleted before.
_DELETE_MEMORIES = text("""
    WITH chunk AS MATERIALIZED (
        SELECT id, tick FROM memory
        WHERE agent_id = :agent_id AND tick >= :from_tick ORDER BY tick LIMIT :most
    ), gone AS (
        DELETE FROM memory WHERE id = ANY(ARRAY(SELECT id FROM chunk)) RETURNING tick
    )
    SELECT count(*) AS memories, max(tick) AS tick FROM gone
""")


async def agent_ids(session: AsyncSession, world: str, agent: str | None = None) -> list[int]:
    """Of all agents of a world, or of one."""
    found = await session.execute(_AGENTS, {"world": world, "agent": agent})
    return list(found.scalars())


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """One chunk of an agent's memories: how many went, and the tick to go on from; None: there
    are no more."""

    memories: int
    tick: int | None


async def delete_some_memories(
    session: AsyncSession, agent_id: int, *, from_tick: int, most: int
) -> Deleted:
    """Delete at most `most` memories of an agent, from this tick on."""
    await lock_for_cascades(session)
    parameters = {"agent_id": agent_id, "from_tick": from_tick, "most": most}
    row = (await session.execute(_DELETE_MEMORIES, parameters)).one()
    return Deleted(memories=row.memories, tick=row.tick)


async def delete_world(session: AsyncSession, world: str) -> bool:
    """Delete a world and all that still hangs on it, rejects too; whether there was one."""
    id_ = await lock_out_world(session, world)
    await lock_for_cascades(session)
    # By its id: one that began again under this name is another's, whom nobody waited for.
    found = (await session.execute(_DELETE_WORLD, {"id": id_})).first() is not None
    await as_it_likes(session)
    await drop_rejects(session, world=world)
    return found


async def delete_agent(session: AsyncSession, world: str, agent: str) -> bool:
    """Delete one agent and what memories it still has; whether there was one."""
    await lock_for_cascades(session)
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
    # Alone: a worker that lost its lease may be storing one of them, which it locks before the job.
    await lock_out_links(session)
    spaces: dict[int, dict[bytes, NDArray[np.float32]]] = defaultdict(dict)
    for space_id, content_hash, dimensions in await drop_parked(session, hashes):
        spaces[space_id][content_hash] = np.zeros(dimensions, dtype=np.float32)
    for space_id, vectors in spaces.items():
        await store_vectors(session, space_id, vectors)
    return sum(len(vectors) for vectors in spaces.values())


# Unused is a text that nobody waits for and nobody indexed. What is being filled for the first
# time is left alone: there, a memory of any age may come to want a vector.
_LOOK_FOR_UNUSED = text("""
    SELECT e.space_id, e.content_hash FROM embedding e
    WHERE e.space_id IN (
            SELECT space_id FROM index_generation GROUP BY space_id
            HAVING bool_or(status = 'active') OR NOT bool_or(status = 'building'))
      AND NOT EXISTS (
            SELECT FROM recall_index r JOIN index_generation g ON g.id = r.generation_id
            WHERE g.space_id = e.space_id AND r.content_hash = e.content_hash)
      AND NOT EXISTS (
            SELECT FROM pending_embedding p
            WHERE p.space_id = e.space_id AND p.content_hash = e.content_hash)
    LIMIT :most
""")
_STATUSES = "SELECT string_agg(id || status, ' ' ORDER BY id) FROM index_generation"
_SINCE = text(
    f"SELECT (SELECT max(id) FROM memory) AS memory_id, ({_STATUSES}) AS statuses"  # noqa: S608
)
# Of what was found unused, what still is. Whoever came to use it meanwhile waits for it, or was
# linked to it; and then is a memory recorded since, of which there are few.
_COLLECT = text(
    """
    WITH lately AS MATERIALIZED (
        SELECT (SELECT g.space_id FROM index_generation g WHERE g.id = r.generation_id) AS space_id,
               r.content_hash
        FROM recall_index r
        WHERE r.memory_id > :memory_id
    ), gone AS (
        DELETE FROM embedding
        WHERE ctid = ANY(ARRAY(
            SELECT e.at
            FROM (
                SELECT * FROM unnest(CAST(:space_ids AS integer[]), CAST(:hashes AS bytea[]))
                EXCEPT SELECT space_id, content_hash FROM lately
            ) AS t (space_id, hash)
            CROSS JOIN LATERAL (
                SELECT ctid AS at FROM embedding
                WHERE space_id = t.space_id AND content_hash = t.hash OFFSET 0
            ) AS e
            WHERE (@statuses) = :statuses
              AND NOT EXISTS (SELECT FROM pending_embedding p
                              WHERE p.space_id = t.space_id AND p.content_hash = t.hash OFFSET 0)))
        RETURNING space_id, content_hash
    ), unsigned AS (
        DELETE FROM signature
        WHERE ctid = ANY(ARRAY(
            SELECT s.at FROM gone
            CROSS JOIN unnest(ARRAY(SELECT id FROM index_generation ORDER BY id),
                              ARRAY(SELECT space_id FROM index_generation ORDER BY id))
                AS g (id, space_id)
            CROSS JOIN LATERAL (
                SELECT ctid AS at FROM signature
                WHERE generation_id = g.id AND content_hash = gone.content_hash OFFSET 0
            ) AS s
            WHERE g.space_id = gone.space_id))
    )
    SELECT count(*) FROM gone
""".replace("@statuses", _STATUSES)
)
# One that is leased stays: a memory recorded now would have its text sent a second time. So does
# one that a worker is just giving back, or has just given back: nobody is waited for.
_UNUSED_JOBS = text("""
    WITH chunk AS MATERIALIZED (
        SELECT space_id, content_hash FROM embedding_job
        WHERE (space_id, content_hash) > (:space_id, CAST(:hash AS bytea))
        ORDER BY space_id, content_hash LIMIT :most
    ), unused AS MATERIALIZED (
        SELECT locked.at FROM chunk CROSS JOIN LATERAL (
            SELECT ctid AS at FROM embedding_job j
            WHERE j.space_id = chunk.space_id AND j.content_hash = chunk.content_hash
              AND (j.lease_until IS NULL OR j.lease_until < clock_timestamp())
            FOR UPDATE SKIP LOCKED
        ) AS locked
        WHERE NOT EXISTS (SELECT FROM pending_embedding p WHERE p.space_id = chunk.space_id
                          AND p.content_hash = chunk.content_hash OFFSET 0)
    ), gone AS (
        DELETE FROM embedding_job WHERE ctid = ANY(ARRAY(SELECT at FROM unused))
    )
    SELECT space_id, content_hash FROM chunk ORDER BY space_id DESC, content_hash DESC LIMIT 1
""")

#: A text in a space.
Text = tuple[int, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """From when on it matters what changes: the last memory, and what generations there were."""

    memory_id: int
    statuses: str


async def since_now(session: AsyncSession) -> Since:
    """Every memory up to the last one is committed, so that whoever looks from now on sees it."""
    await lock_out_recorders(session)
    row = (await session.execute(_SINCE)).one()
    return Since(memory_id=row.memory_id or 0, statuses=row.statuses or "")


async def look_for_unused(session: AsyncSession, *, most: int) -> list[Text]:
    """At most so many texts whose vectors no memory uses: one pass over what is indexed, without
    a lock. For the rest of the transaction whole tables are compared."""
    await compare_whole(session)
    rows = await session.execute(_LOOK_FOR_UNUSED, {"most": most})
    return [(row.space_id, row.content_hash) for row in rows]


async def collect(session: AsyncSession, since: Since, texts: Sequence[Text]) -> int:
    """Delete the vectors of these texts; how many. `texts`: what `look_for_unused` found after
    `since`. One that came to be used meanwhile stays, and so do all where a generation changed.

    A memory recorded meanwhile with such a text keeps its pending row and is embedded anew.
    """
    await lock_out_links(session)
    parameters = {
        "memory_id": since.memory_id,
        "statuses": since.statuses,
        "space_ids": [space_id for space_id, _ in texts],
        "hashes": [hash_ for _, hash_ in texts],
    }
    return int((await session.execute(_COLLECT, parameters)).scalar_one())


async def collect_jobs(session: AsyncSession, *, after: Text, most: int) -> Text | None:
    """Delete jobs of texts nobody waits for, of at most `most` above `after`; the last one looked
    at, to go on from. None: there are no more."""
    await lock_out_links(session)
    parameters = {"space_id": after[0], "hash": after[1], "most": most}
    row = (await session.execute(_UNUSED_JOBS, parameters)).one_or_none()
    return None if row is None else (row.space_id, row.content_hash)
