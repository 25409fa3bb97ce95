"""The recall index built anew over the space that recalls use: with a mean that is fixed, and with
signatures.

The new generation is `building` beside the active one. Linking fills both from the moment it is
there; what was indexed before is signed and copied in short transactions, each of which may be done
twice, by two at once, too: rows are taken in the order of their keys. It takes the other's place
once it misses nothing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from uuid import UUID

import numpy as np
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.signature import new_basis
from tickmind.store.locking import change_alone, lock_out_links, share_links
from tickmind.store.signing import Signers, sign
from tickmind.store.spaces import MEAN_FROM, MEAN_UNTIL

__all__ = [
    "Build",
    "activate_build",
    "begin_build",
    "copy_some",
    "current_build",
    "distinct_vectors",
    "hold_lease",
    "let_go",
    "resign_some",
    "sign_some",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """The active generation, and the one that is being built to take its place, if any."""

    space_id: int
    dimensions: int
    active_id: int
    active_signed: bool
    building_id: int | None


_CURRENT = text("""
    SELECT g.space_id, s.dimensions, g.id AS active_id, g.basis IS NOT NULL AS active_signed,
           (SELECT min(b.id) FROM index_generation b
            WHERE b.space_id = g.space_id AND b.status = 'building') AS building_id
    FROM index_generation g JOIN embedding_space s ON s.id = g.space_id
    WHERE g.status = 'active'
""")


async def current_build(session: AsyncSession) -> Build | None:
    """How it stands; None: there is no active generation."""
    row = (await session.execute(_CURRENT)).one_or_none()
    return None if row is None else Build(**row._asdict())


# Updated in place and held for seconds: no session's lock would survive PgBouncer.
_HOLD = text("""
    INSERT INTO task_lease AS l (task, token, lease_until)
    VALUES (:task, :token, clock_timestamp() + make_interval(secs => :lease_s))
    ON CONFLICT (task) DO UPDATE
    SET token = excluded.token, lease_until = excluded.lease_until
    WHERE l.token = excluded.token OR l.lease_until < clock_timestamp()
    RETURNING 1
""")
_LET_GO = text("DELETE FROM task_lease WHERE task = :task AND token = :token")


async def hold_lease(session: AsyncSession, task: str, token: UUID, *, lease_s: float) -> bool:
    """Take or keep a task for so long; False: another has it."""
    parameters = {"task": task, "token": token, "lease_s": lease_s}
    return (await session.execute(_HOLD, parameters)).first() is not None


async def let_go(session: AsyncSession, task: str, token: UUID) -> None:
    """Leave a task to whoever wants it, where we hold it."""
    await session.execute(_LET_GO, {"task": task, "token": token})


_DISTINCT = text("""
    SELECT count(*) FROM (SELECT FROM embedding WHERE space_id = :space_id LIMIT :most) AS counted
""")


async def distinct_vectors(session: AsyncSession, space_id: int, *, most: int) -> int:
    """How many texts have a vector, counted no further than `most`."""
    parameters = {"space_id": space_id, "most": most}
    return int((await session.execute(_DISTINCT, parameters)).scalar_one())


# In the order of the hashes, which is none: a mean of the vectors that came first would be that of
# the first world. Zero vectors stand for texts without a meaning.
_MEAN = text("""
    SELECT avg(vector)::vector::real[] AS mean, count(*) AS over
    FROM (SELECT vector FROM embedding WHERE space_id = :space_id AND l2_norm(vector) > 0
          ORDER BY content_hash LIMIT :most) AS sample
""")
_INSERT = text("""
    INSERT INTO index_generation (space_id, status, mean, mean_over, basis)
    VALUES (:space_id, 'building', :mean, :over, :basis) RETURNING id
""")


async def begin_build(session: AsyncSession, random: np.random.Generator) -> Build | None:
    """Have a generation built beside the active one, or go on with the one there is; how it stands.

    None: there is nothing to build over, or too few vectors (MEAN_FROM) to know a mean. Linkers
    under way are waited for: who links from now on fills the new one, too.
    """
    await change_alone(session)
    build = await current_build(session)
    if build is None or build.building_id is not None:
        return build
    sample = {"space_id": build.space_id, "most": MEAN_UNTIL}
    row = (await session.execute(_MEAN, sample)).one()
    if row.over < MEAN_FROM:
        return None
    # In a thread: 1536 wide, half a second of arithmetic.
    basis = await asyncio.to_thread(new_basis, build.dimensions, random)
    await lock_out_links(session)
    await session.execute(
        _INSERT,
        {
            "space_id": build.space_id,
            "mean": np.asarray(row.mean, dtype="<f4").tobytes(),
            "over": row.over,
            "basis": basis,
        },
    )
    return await current_build(session)


# By what is looked at, not by what is found: a plan for the latter may read all of it each time.
_UNSIGNED = text("""
    WITH chunk AS MATERIALIZED (
        SELECT content_hash FROM embedding
        WHERE space_id = :space_id AND content_hash > :after
        ORDER BY content_hash LIMIT :most
    )
    SELECT c.content_hash, e.vector FROM chunk c
    LEFT JOIN LATERAL (
        SELECT vector FROM embedding
        WHERE space_id = :space_id AND content_hash = c.content_hash
          AND NOT EXISTS (SELECT FROM signature s WHERE s.generation_id = :generation_id
                          AND s.content_hash = c.content_hash OFFSET 0)
        OFFSET 0
    ) AS e ON true
    ORDER BY c.content_hash
""")


async def sign_some(
    session: AsyncSession,
    signers: Signers,
    build: Build,
    generation_id: int,
    *,
    after: bytes,
    most: int,
) -> tuple[int, bytes]:
    """Sign vectors of texts above the hash `after` where they are not signed yet; how many were
    looked at, and the highest, to go on from. Nobody takes vectors away meanwhile."""
    await share_links(session)
    parameters = {
        "space_id": build.space_id,
        "generation_id": generation_id,
        "after": after,
        "most": most,
    }
    rows = (await session.execute(_UNSIGNED, parameters)).all()
    signer = await signers.of(session, generation_id)
    if not rows or signer is None:
        return 0, after
    vectors = {row.content_hash: row.vector.to_numpy() for row in rows if row.vector is not None}
    if vectors:
        await sign(session, {generation_id: signer}, list(vectors), vectors)
    return len(rows), rows[-1].content_hash


_COPY = text("""
    WITH chunk AS MATERIALIZED (
        SELECT r.* FROM recall_index r
        WHERE r.generation_id = :active_id AND r.memory_id > :after
        ORDER BY r.memory_id LIMIT :most
    ), copied AS (
        INSERT INTO recall_index (memory_id, generation_id, importance, is_core, agent_id, tick,
                                  kind, content_hash, signature)
        SELECT c.memory_id, g.id, c.importance, c.is_core, c.agent_id, c.tick, c.kind,
               c.content_hash,
               (SELECT s.bits FROM signature s
                WHERE s.generation_id = g.id AND s.content_hash = c.content_hash)
        FROM chunk c
        CROSS JOIN unnest(ARRAY(
            SELECT id FROM index_generation WHERE id = :building_id AND status = 'building'
        )) AS g (id)
        ORDER BY c.memory_id
        ON CONFLICT DO NOTHING
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM chunk) AS seen, (SELECT count(*) FROM copied) AS copied,
           (SELECT coalesce(max(memory_id), :after) FROM chunk) AS highest
""")


async def copy_some(
    session: AsyncSession, build: Build, *, after: int, most: int
) -> tuple[int, int, int]:
    """Copy index rows of memories above the id `after`; how many were looked at, how many were
    missing, and the highest, to go on from. Nobody deletes memories meanwhile."""
    await share_links(session)
    parameters = {
        "active_id": build.active_id,
        "building_id": build.building_id,
        "after": after,
        "most": most,
    }
    seen, copied, highest = (await session.execute(_COPY, parameters)).one()
    return seen, copied, highest


_RESIGN = text("""
    WITH chunk AS MATERIALIZED (
        SELECT memory_id, content_hash, signature IS NULL AS unsigned FROM recall_index
        WHERE generation_id = :generation_id AND memory_id > :after
        ORDER BY memory_id LIMIT :most
    ), mine AS MATERIALIZED (
        SELECT locked.memory_id FROM chunk c CROSS JOIN LATERAL (
            SELECT memory_id FROM recall_index r
            WHERE r.generation_id + 0 = :generation_id AND r.memory_id = c.memory_id
            FOR UPDATE
        ) AS locked
        WHERE c.unsigned
          AND EXISTS (SELECT FROM signature s WHERE s.generation_id = :generation_id
                      AND s.content_hash = c.content_hash AND s.bits IS NOT NULL OFFSET 0)
    ), signed AS (
        UPDATE recall_index r
        SET signature = (SELECT s.bits FROM signature s WHERE s.generation_id = :generation_id
                         AND s.content_hash = r.content_hash)
        WHERE r.generation_id + 0 = :generation_id
          AND r.memory_id = ANY(ARRAY(SELECT memory_id FROM mine))
    )
    SELECT count(*) AS seen, coalesce(max(memory_id), :after) AS highest FROM chunk
""")


async def resign_some(
    session: AsyncSession, generation_id: int, *, after: int, most: int
) -> tuple[int, int]:
    """Give rows that were linked before their text was signed their signature, by the memories' ids
    as `copy_some`. Recalls find them meanwhile, too: what has no signature is scored exactly."""
    await share_links(session)
    parameters = {"generation_id": generation_id, "after": after, "most": most}
    seen, highest = (await session.execute(_RESIGN, parameters)).one()
    return seen, highest


_MISSES = text("""
    SELECT EXISTS (
        SELECT FROM recall_index r
        WHERE r.generation_id = :active_id
          AND NOT EXISTS (SELECT FROM recall_index other
                          WHERE other.generation_id + 0 = :building_id
                            AND other.memory_id = r.memory_id OFFSET 0))
        OR EXISTS (
        SELECT FROM embedding e
        WHERE e.space_id = :space_id
          AND NOT EXISTS (SELECT FROM signature s WHERE s.generation_id = :building_id
                          AND s.content_hash = e.content_hash OFFSET 0))
""")
_RETIRE = text("""
    UPDATE index_generation SET status = 'retired' WHERE id = :active_id AND status = 'active'
    RETURNING 1
""")
_ACTIVATE = text("""
    UPDATE index_generation SET status = 'active', activated_at = clock_timestamp()
    WHERE id = :building_id AND status = 'building'
    RETURNING 1
""")


async def activate_build(session: AsyncSession, build: Build) -> bool:
    """Have recalls answered from the new generation; False: it misses something, or another was
    faster, and nothing changed."""
    await change_alone(session)
    if await current_build(session) != build or build.building_id is None:
        return False
    parameters = {
        "space_id": build.space_id,
        "active_id": build.active_id,
        "building_id": build.building_id,
    }
    if (await session.execute(_MISSES, parameters)).scalar_one():
        return False
    # Both rows are there and as we saw them: who changes them waits for us.
    await session.execute(_RETIRE, {"active_id": build.active_id})
    await session.execute(_ACTIVATE, {"building_id": build.building_id})
    return True
