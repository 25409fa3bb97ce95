"""The end of an embedding space, in short transactions: in full it may be millions of rows."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.store.locking import (
    change_alone,
    lock_for_cascades,
    lock_out_links,
    lock_out_recorders,
    share_links,
)

__all__ = [
    "begin_drop",
    "begin_drop_of_superseded",
    "delete_generation",
    "delete_some",
    "delete_some_of_generation",
    "delete_space",
    "since_activation_s",
    "superseded",
]

_SINCE_ACTIVATION = text("""
    SELECT CAST(extract(epoch FROM clock_timestamp() - activated_at) AS float8)
    FROM index_generation WHERE status = 'active'
""")


async def since_activation_s(session: AsyncSession) -> float | None:
    """How long recalls have used the active generation; None: there is none."""
    found: float | None = (await session.execute(_SINCE_ACTIVATION)).scalar_one_or_none()
    return found


_BEGIN_DROP = text("""
    UPDATE index_generation SET status = 'dropping'
    WHERE space_id = :space_id
      AND NOT EXISTS (SELECT FROM index_generation WHERE space_id = :space_id AND status = 'active')
    RETURNING id
""")
# A generation may be dropped and its space kept.
_DROPPING = """
    space_id = :space_id AND (SELECT bool_and(g.status = 'dropping') FROM index_generation g
                              WHERE g.space_id = :space_id)
"""
_OF_DROPPING = """
    generation_id = ANY(ARRAY(SELECT g.id FROM index_generation g
                              WHERE g.space_id = :space_id AND g.status = 'dropping'))
"""
# What another is at stays for the next chunk, or for the end.
_CHUNK = """
    DELETE FROM @table
    WHERE ctid = ANY(ARRAY(SELECT ctid FROM @table WHERE @rows LIMIT :most FOR UPDATE SKIP LOCKED))
    RETURNING 1
"""
# What no cascade should have to take in one long transaction.
_CHUNKS = tuple(
    text(_CHUNK.replace("@table", table).replace("@rows", rows))
    for table, rows in (
        ("recall_index", _OF_DROPPING),
        ("signature", _OF_DROPPING),
        ("pending_embedding", _DROPPING),
        ("embedding_job", _DROPPING),
        ("embedding", _DROPPING),
    )
)
# As workers come to them that still give theirs back.
_LOCK_JOBS = text("""
    SELECT FROM embedding_job WHERE space_id = :space_id ORDER BY content_hash FOR UPDATE
""")
_DELETE_SPACE = text("DELETE FROM embedding_space WHERE id = :space_id")


async def begin_drop(session: AsyncSession, space_id: int) -> bool:
    """Fill this space no more, for good; False: it is the active one, and nothing changed."""
    await change_alone(session)
    await lock_out_recorders(session)
    return bool((await session.execute(_BEGIN_DROP, {"space_id": space_id})).all())


async def delete_some(session: AsyncSession, space_id: int, *, most: int) -> int:
    """Delete rows of a space that is being dropped, at most `most` of each table; how many. Nobody
    deletes memories meanwhile."""
    await share_links(session)
    parameters = {"space_id": space_id, "most": most}
    return sum([len((await session.execute(chunk, parameters)).all()) for chunk in _CHUNKS])


async def delete_space(session: AsyncSession, space_id: int) -> None:
    """Delete a space that is being dropped, with what is left of it."""
    await lock_for_cascades(session)
    await session.execute(_LOCK_JOBS, {"space_id": space_id})
    await session.execute(_DELETE_SPACE, {"space_id": space_id})


# Whose place another of its space has taken, and whom no recall that has begun asks any more; and
# one that is dropped while its space is kept.
_SUPERSEDED = text("""
    SELECT g.id FROM index_generation g
    WHERE (g.status = 'retired'
           AND EXISTS (SELECT FROM index_generation n
                       WHERE n.space_id = g.space_id AND n.id > g.id AND n.status <> 'dropping'
                         AND n.activated_at < clock_timestamp() - make_interval(secs => :kept_s)))
       OR (g.status = 'dropping'
           AND EXISTS (SELECT FROM index_generation n
                       WHERE n.space_id = g.space_id AND n.status <> 'dropping'))
    ORDER BY g.id
""")
_BEGIN_DROP_OF_GENERATIONS = text("""
    UPDATE index_generation SET status = 'dropping' WHERE id = ANY(CAST(:ids AS integer[]))
""")


async def superseded(session: AsyncSession, *, kept_s: float) -> list[int]:
    """Generations to be deleted though their space stays; `kept_s`: so long after another of the
    space took its place one may still be in use."""
    return list((await session.execute(_SUPERSEDED, {"kept_s": kept_s})).scalars())


async def begin_drop_of_superseded(session: AsyncSession, *, kept_s: float) -> list[int]:
    """Have nothing revive these any more; which they are."""
    await change_alone(session)
    ids = await superseded(session, kept_s=kept_s)
    await session.execute(_BEGIN_DROP_OF_GENERATIONS, {"ids": ids})
    return ids


# By their key, not by where they lie: a search that began at the first row each time would pass all
# that were deleted before. Rows that another is deleting are left to it; signatures are deleted by
# one at a time, who holds the lease (and embedders may not lock them).
_ROWS = text("""
    WITH chunk AS (
        SELECT memory_id FROM recall_index
        WHERE generation_id = :id AND memory_id > :after ORDER BY memory_id LIMIT :most
        FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM recall_index
        WHERE generation_id + 0 = :id AND memory_id = ANY(ARRAY(SELECT memory_id FROM chunk))
    )
    SELECT max(memory_id) FROM chunk
""")
_SIGNATURES = text("""
    WITH chunk AS (
        SELECT content_hash, ctid AS at FROM signature
        WHERE generation_id = :id AND content_hash > :after ORDER BY content_hash LIMIT :most
    ), gone AS (
        DELETE FROM signature WHERE ctid = ANY(ARRAY(SELECT at FROM chunk))
    )
    SELECT content_hash FROM chunk ORDER BY content_hash DESC LIMIT 1
""")
_DELETE_GENERATION = text("DELETE FROM index_generation WHERE id = :id AND status = 'dropping'")


async def delete_some_of_generation(
    session: AsyncSession, generation_id: int, *, after: int | bytes, most: int
) -> int | bytes | None:
    """Delete index rows above the memory id `after`, or signatures above the hash; the highest
    gone, to go on from; None: there are no more. Nobody deletes memories meanwhile."""
    await share_links(session)
    statement = _SIGNATURES if isinstance(after, bytes) else _ROWS
    parameters = {"id": generation_id, "after": after, "most": most}
    found: int | bytes | None = (await session.execute(statement, parameters)).scalar_one_or_none()
    return found


async def delete_generation(session: AsyncSession, generation_id: int) -> None:
    """Delete a generation that is being dropped, with what is left of it."""
    await lock_out_links(session)
    await session.execute(_DELETE_GENERATION, {"id": generation_id})
