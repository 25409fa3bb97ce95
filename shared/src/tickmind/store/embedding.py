"""What the embedder does in the database: link, make jobs, claim, store, release, park.

The protocol keeps one promise: a memory is indexed or pending, never neither (`inspection.audit`
proves it). The recorder inserts memory and pending row together; only a transaction that puts
the row into the recall index deletes it from pending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

__all__ = [
    "LINK_LOCK",
    "Job",
    "Swept",
    "claim",
    "park",
    "release",
    "retry_later",
    "store_vectors",
    "sweep",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One distinct text to embed, leased to us. `attempts` counts this one."""

    content_hash: bytes
    content: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """One chunk of the pending rows: how many were looked at, linked, and given new jobs.

    `highest`: the last memory id looked at, to go on from.
    """

    seen: int
    linked: int
    jobs: int
    highest: int


# Rows of one space by memory id. Those whose text is embedded already go into the index at once,
# whatever the provider does; the rest get a job, one per distinct text. A text whose job is
# parked parks its new rows too. Its order: a minute of waiting outweighs a point of importance,
# so that what matters comes first and nothing starves.
_SWEEP = text("""
    WITH chunk AS MATERIALIZED (
        SELECT p.memory_id, p.content_hash, p.importance,
               e.content_hash IS NOT NULL AS embedded
        FROM pending_embedding p
        LEFT JOIN embedding e ON e.space_id = p.space_id AND e.content_hash = p.content_hash
        WHERE p.space_id = :space_id AND p.memory_id > :after AND NOT p.parked
        ORDER BY p.memory_id
        LIMIT :most
    ), done AS (
        DELETE FROM pending_embedding p USING chunk
        WHERE chunk.embedded AND p.memory_id = chunk.memory_id AND p.space_id = :space_id
        RETURNING p.memory_id
    ), indexed AS (
        INSERT INTO recall_index (memory_id, generation_id, importance, is_core, agent_id, tick,
                                  kind, content_hash)
        SELECT m.id, g.id, m.importance, m.is_core, m.agent_id, m.tick, m.kind, m.content_hash
        FROM done JOIN memory m ON m.id = done.memory_id
        JOIN index_generation g ON g.space_id = :space_id AND g.status IN ('building', 'active')
        ON CONFLICT DO NOTHING
    ), wanted AS (
        SELECT content_hash, max(importance) AS importance FROM chunk
        WHERE NOT embedded GROUP BY content_hash
    ), made AS (
        INSERT INTO embedding_job (space_id, content_hash, due_order)
        SELECT :space_id, content_hash,
               CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint) - importance * 60000
        FROM wanted ORDER BY content_hash
        ON CONFLICT DO NOTHING
        RETURNING content_hash
    ), stuck AS (
        UPDATE pending_embedding p SET parked = true
        FROM chunk JOIN embedding_job j
            ON j.space_id = :space_id AND j.content_hash = chunk.content_hash
        WHERE NOT chunk.embedded AND j.parked_reason IS NOT NULL
          AND p.memory_id = chunk.memory_id AND p.space_id = :space_id
    )
    SELECT (SELECT count(*) FROM done) AS linked, (SELECT count(*) FROM made) AS jobs,
           (SELECT coalesce(max(memory_id), :after) FROM chunk) AS highest,
           (SELECT count(*) FROM chunk) AS seen
""")


#: Key of the advisory lock between linking (shared) and collecting unused vectors (exclusive):
#: a statement that has seen a vector must not link to it once it is gone. "tm-link\0".
LINK_LOCK = int.from_bytes(b"tm-link\0", "big")
_LOCK_LINKS = text("SELECT pg_advisory_xact_lock_shared(:key)")


async def sweep(session: AsyncSession, space_id: int, *, after: int, most: int) -> Swept:
    """Link or make jobs for at most `most` pending rows whose memory id is above `after`."""
    await session.execute(_LOCK_LINKS, {"key": LINK_LOCK})
    row = (
        await session.execute(_SWEEP, {"space_id": space_id, "after": after, "most": most})
    ).one()
    return Swept(seen=row.seen, linked=row.linked, jobs=row.jobs, highest=row.highest)


# Leased jobs at the head are passed over by SKIP LOCKED while claimed, by lease_until after.
# A job whose last memory was deleted has no text any more and goes.
_CLAIM = text("""
    WITH head AS (
        SELECT space_id, content_hash FROM embedding_job
        WHERE space_id = :space_id AND parked_reason IS NULL
          AND not_before <= clock_timestamp()
          AND (lease_until IS NULL OR lease_until < clock_timestamp())
        ORDER BY due_order
        LIMIT :most
        FOR UPDATE SKIP LOCKED
    ), claimed AS (
        UPDATE embedding_job j
        SET attempts = j.attempts + 1, lease_token = :token,
            lease_until = clock_timestamp() + make_interval(secs => :lease_s)
        FROM head
        WHERE j.space_id = head.space_id AND j.content_hash = head.content_hash
        RETURNING j.content_hash, j.attempts, j.due_order
    )
    SELECT c.content_hash, c.attempts, m.content
    FROM claimed c
    LEFT JOIN LATERAL (
        SELECT memory.content FROM pending_embedding p JOIN memory ON memory.id = p.memory_id
        WHERE p.space_id = :space_id AND p.content_hash = c.content_hash
        LIMIT 1
    ) m ON true
    ORDER BY c.due_order
""")
_DROP = text("""
    DELETE FROM embedding_job
    WHERE space_id = :space_id AND content_hash = ANY(CAST(:hashes AS bytea[]))
      AND lease_token = :token
""")


async def claim(
    session: AsyncSession, space_id: int, *, token: UUID, most: int, lease_s: float
) -> list[Job]:
    """Lease at most `most` distinct texts, important and old first; each claim is an attempt."""
    rows = (
        await session.execute(
            _CLAIM, {"space_id": space_id, "token": token, "most": most, "lease_s": lease_s}
        )
    ).all()
    orphans = [row.content_hash for row in rows if row.content is None]
    if orphans:
        await session.execute(_DROP, {"space_id": space_id, "hashes": orphans, "token": token})
    return [
        Job(content_hash=row.content_hash, content=row.content, attempts=row.attempts)
        for row in rows
        if row.content is not None
    ]


# Blank texts come as zero vectors, which score below everything. The pending rows that this
# statement sees become index rows; one committed meanwhile waits for the next sweep.
_STORE = text("""
    INSERT INTO embedding (space_id, content_hash, vector)
    SELECT :space_id, * FROM unnest(CAST(:hashes AS bytea[]), CAST(:vectors AS halfvec[]))
    ON CONFLICT DO NOTHING
""")
_LINK = text("""
    WITH done AS (
        DELETE FROM pending_embedding
        WHERE space_id = :space_id AND content_hash = ANY(CAST(:hashes AS bytea[]))
        RETURNING memory_id
    ), indexed AS (
        INSERT INTO recall_index (memory_id, generation_id, importance, is_core, agent_id, tick,
                                  kind, content_hash)
        SELECT m.id, g.id, m.importance, m.is_core, m.agent_id, m.tick, m.kind, m.content_hash
        FROM done JOIN memory m ON m.id = done.memory_id
        JOIN index_generation g ON g.space_id = :space_id AND g.status IN ('building', 'active')
        ON CONFLICT DO NOTHING
    ), finished AS (
        DELETE FROM embedding_job
        WHERE space_id = :space_id AND content_hash = ANY(CAST(:hashes AS bytea[]))
    )
    SELECT count(*) FROM done
""")


async def store_vectors(
    session: AsyncSession, space_id: int, vectors: Mapping[bytes, NDArray[np.float32]]
) -> int:
    """Store the vectors of these texts, (dimensions,) each, and link who waits; how many did."""
    hashes = sorted(vectors)
    await session.execute(_LOCK_LINKS, {"key": LINK_LOCK})
    await session.execute(
        _STORE,
        {
            "space_id": space_id,
            "hashes": hashes,
            "vectors": [HalfVector(vectors[hash_]) for hash_ in hashes],
        },
    )
    result = await session.execute(_LINK, {"space_id": space_id, "hashes": hashes})
    return int(result.scalar_one())


_RELEASE = text("""
    UPDATE embedding_job
    SET attempts = greatest(0, attempts - CAST(:uncharged AS integer)),
        lease_token = NULL, lease_until = NULL,
        not_before = clock_timestamp() + make_interval(secs => :delay_s)
    WHERE space_id = :space_id AND content_hash = ANY(CAST(:hashes AS bytea[]))
      AND lease_token = :token
""")


async def release(
    session: AsyncSession, space_id: int, jobs: Sequence[Job], *, token: UUID, delay_s: float = 0.0
) -> None:
    """Give leased texts back uncharged: they did nothing wrong."""
    await _give_back(session, space_id, jobs, token=token, delay_s=delay_s, uncharged=1)


async def retry_later(
    session: AsyncSession, space_id: int, jobs: Sequence[Job], *, token: UUID, delay_s: float
) -> None:
    """Give leased texts back, the attempt counted, to be tried again after `delay_s` seconds."""
    await _give_back(session, space_id, jobs, token=token, delay_s=delay_s, uncharged=0)


async def _give_back(
    session: AsyncSession,
    space_id: int,
    jobs: Sequence[Job],
    *,
    token: UUID,
    delay_s: float,
    uncharged: int,
) -> None:
    await session.execute(
        _RELEASE,
        {
            "space_id": space_id,
            "hashes": [job.content_hash for job in jobs],
            "token": token,
            "delay_s": delay_s,
            "uncharged": uncharged,
        },
    )


_PARK = text("""
    WITH job AS (
        UPDATE embedding_job
        SET parked_reason = :reason, parked_at = now(), lease_token = NULL, lease_until = NULL
        WHERE space_id = :space_id AND content_hash = ANY(CAST(:hashes AS bytea[]))
          AND lease_token = :token
        RETURNING content_hash
    )
    UPDATE pending_embedding p SET parked = true
    FROM job WHERE p.space_id = :space_id AND p.content_hash = job.content_hash
""")


async def park(
    session: AsyncSession, space_id: int, jobs: Sequence[Job], *, token: UUID, reason: str
) -> None:
    """Give up on these texts until a person says otherwise; their memories stay pending."""
    await session.execute(
        _PARK,
        {
            "space_id": space_id,
            "hashes": [job.content_hash for job in jobs],
            "token": token,
            "reason": reason[:500],
        },
    )
