"""How a memory becomes recallable: made a job of, its vector stored, linked into the index.

The protocol keeps one promise: a memory is indexed or pending, never neither (`inspection.audit`
proves it). The recorder inserts memory and pending row together; only a transaction that puts
the row into the recall index deletes it from pending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.store.locking import share_links
from tickmind.store.lookups import PENDING_LOCKED
from tickmind.store.signing import Signers, sign

__all__ = ["Swept", "link", "store_vectors", "sweep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """One chunk of the pending rows: how many were looked at, linked, and given new jobs.

    `highest`: the last memory id looked at, to go on from. Of the transactions that this chunk
    could not see, all are numbered `running_from` or above; below `begun_until` are all that had
    begun. A row below `highest` that it did not see belongs to one in between.
    """

    seen: int
    linked: int
    jobs: int
    highest: int
    running_from: int
    begun_until: int


# Why they are written as they are: see `lookups`.

# From pending to the recall index, the heart of the protocol: what is inserted is what the DELETE
# returned. `mine`: the pending rows that this transaction has locked.
_INDEX_MINE = """), done AS (
        DELETE FROM pending_embedding
        WHERE memory_id = ANY(ARRAY(SELECT memory_id FROM mine)) AND space_id + 0 = :space_id
        RETURNING memory_id
    ), indexed AS (
        INSERT INTO recall_index (memory_id, generation_id, importance, is_core, agent_id, tick,
                                  kind, content_hash, signature)
        SELECT m.id, g.id, m.importance, m.is_core, m.agent_id, m.tick, m.kind, m.content_hash,
               (SELECT s.bits FROM signature s
                WHERE s.generation_id = g.id AND s.content_hash = m.content_hash)
        FROM done
        CROSS JOIN LATERAL (
            SELECT id, importance, is_core, agent_id, tick, kind, content_hash FROM memory
            WHERE id = done.memory_id OFFSET 0
        ) AS m
        CROSS JOIN unnest(ARRAY(
            SELECT id FROM index_generation
            WHERE space_id = :space_id AND status IN ('building', 'active'))) AS g (id)
        ON CONFLICT DO NOTHING
"""
_FILLED = """EXISTS (SELECT FROM index_generation g
                      WHERE g.space_id = :space_id AND g.status IN ('building', 'active'))"""

# Rows of one space by memory id. Those whose text is embedded already go into the index at once,
# whatever the provider does; the rest get a job, one per distinct text. A text whose job is
# parked parks its new rows too. Its order: a minute of waiting outweighs a point of importance,
# so that what matters comes first and nothing starves. What another embedder is linking or parking
# at this moment is left to it: waiting in each other's order would be a deadlock.
_SWEEP_SQL = """
    WITH chunk AS MATERIALIZED (
        SELECT p.memory_id, p.content_hash, p.importance,
               EXISTS (SELECT FROM embedding e WHERE e.space_id = :space_id
                       AND e.content_hash = p.content_hash OFFSET 0) AS embedded
        FROM (
            SELECT memory_id, content_hash, importance FROM pending_embedding
            WHERE space_id = :space_id AND memory_id > :after AND NOT parked
            ORDER BY memory_id
            LIMIT :most
        ) AS p
    ), mine AS MATERIALIZED (
        SELECT locked.memory_id FROM chunk {locked}
        WHERE chunk.embedded AND {filled}
    {index_mine}
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
    ), stuck AS MATERIALIZED (
        SELECT locked.memory_id FROM chunk {locked}
        WHERE NOT chunk.embedded
          AND EXISTS (SELECT FROM embedding_job j
                      WHERE j.space_id = :space_id AND j.content_hash = chunk.content_hash
                        AND j.parked_reason IS NOT NULL OFFSET 0)
    ), marked AS (
        UPDATE pending_embedding SET parked = true
        WHERE memory_id = ANY(ARRAY(SELECT memory_id FROM stuck)) AND space_id + 0 = :space_id
    )
    SELECT (SELECT count(*) FROM done) AS linked, (SELECT count(*) FROM made) AS jobs,
           (SELECT coalesce(max(memory_id), :after) FROM chunk) AS highest,
           (SELECT count(*) FROM chunk) AS seen,
           CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint) AS running_from,
           CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint) AS begun_until
"""
_SWEEP = text(
    _SWEEP_SQL.format(
        index_mine=_INDEX_MINE,
        filled=_FILLED,
        locked=PENDING_LOCKED.format(of="chunk", how="SKIP LOCKED"),
    )
)


async def sweep(session: AsyncSession, space_id: int, *, after: int, most: int) -> Swept:
    """Link or make jobs for at most `most` pending rows whose memory id is above `after`."""
    await share_links(session)
    row = (
        await session.execute(_SWEEP, {"space_id": space_id, "after": after, "most": most})
    ).one()
    return Swept(**row._asdict())


# Blank texts come as zero vectors, which score below everything. Of a space that was dropped
# meanwhile nothing is kept.
_STORE = text("""
    INSERT INTO embedding (space_id, content_hash, vector)
    SELECT s.id, new.* FROM embedding_space s
    CROSS JOIN unnest(CAST(:hashes AS bytea[]), CAST(:vectors AS halfvec[])) AS new
    WHERE s.id = :space_id
    ON CONFLICT DO NOTHING
    RETURNING content_hash
""")
# The pending rows that this statement sees become index rows, parked or not; one committed
# meanwhile is linked in the next round. A generation that was retired meanwhile gets nothing more:
# what is pending in it stays so.
_LINK_SQL = """
    WITH known AS MATERIALIZED (
        SELECT content_hash FROM unnest(CAST(:hashes AS bytea[])) AS told (content_hash)
        WHERE EXISTS (SELECT FROM embedding e WHERE e.space_id = :space_id
                      AND e.content_hash = told.content_hash OFFSET 0)
        ORDER BY content_hash
    ), waiting AS MATERIALIZED (
        SELECT p.memory_id FROM known CROSS JOIN LATERAL (
            SELECT memory_id FROM pending_embedding
            WHERE space_id = :space_id AND content_hash = known.content_hash OFFSET 0
        ) AS p
        WHERE {filled}
        ORDER BY p.memory_id
    ), mine AS MATERIALIZED (
        SELECT locked.memory_id FROM waiting {locked}
    {index_mine}
    ), ended AS MATERIALIZED (
        SELECT locked.at FROM known CROSS JOIN LATERAL (
            SELECT ctid AS at FROM embedding_job j
            WHERE j.space_id = :space_id AND j.content_hash = known.content_hash
              AND (SELECT count(*) FROM done) >= 0
            FOR UPDATE
        ) AS locked
    )
    SELECT (SELECT count(*) FROM done) AS linked,
           ARRAY(SELECT CAST(at AS text) FROM ended) AS ended
"""
_LINK = text(
    _LINK_SQL.format(
        index_mine=_INDEX_MINE,
        filled=_FILLED,
        locked=PENDING_LOCKED.format(of="waiting", how=""),
    )
)
# A job that somebody changed before it was locked is not what the statement that locked it sees.
_END = text("DELETE FROM embedding_job WHERE ctid = ANY(CAST(CAST(:ended AS text[]) AS tid[]))")


async def store_vectors(
    session: AsyncSession,
    space_id: int,
    vectors: Mapping[bytes, NDArray[np.float32]],
    signers: Signers | None = None,
) -> int:
    """Store the vectors of these texts, (dimensions,) each, and link who waits; how many did.

    They are signed for each generation that has signatures. `signers`: what was read of them
    before; None: they are read for this once.
    """
    hashes = sorted(vectors)
    await share_links(session)
    stored = await session.execute(
        _STORE,
        {
            "space_id": space_id,
            "hashes": hashes,
            "vectors": [HalfVector(vectors[hash_]) for hash_ in hashes],
        },
    )
    # Signed is what is stored: whose text was embedded twice at once keeps the first vector.
    new = sorted(stored.scalars())
    if new:
        signers = signers or Signers()
        await sign(session, await signers.of_space(session, space_id), new, vectors)
    return await _link(session, space_id, hashes)


async def link(session: AsyncSession, space_id: int, hashes: Sequence[bytes]) -> int:
    """Link who waits for these texts, as far as they are embedded; how many did.

    After `store_vectors` has committed: a memory that came too late for it and too early for a
    sweep to see the vector is linked by this.
    """
    await share_links(session)
    return await _link(session, space_id, hashes)


async def _link(session: AsyncSession, space_id: int, hashes: Sequence[bytes]) -> int:
    parameters = {"space_id": space_id, "hashes": list(hashes)}
    row = (await session.execute(_LINK, parameters)).one()
    if row.ended:
        await session.execute(_END, {"ended": row.ended})
    return int(row.linked)
