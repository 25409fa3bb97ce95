"""The end of an embedding space, in short transactions: in full it may be millions of rows."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.store.changing import change_alone
from tickmind.store.embedding import LINK_LOCK
from tickmind.store.spaces import lock_out_recorders

__all__ = ["begin_drop", "delete_some", "delete_space", "since_activation_s"]

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
    WHERE space_id = :space_id AND status <> 'active'
    RETURNING id
""")
_DROPPING = """
    space_id = :space_id AND EXISTS (SELECT FROM index_generation g
                                     WHERE g.space_id = :space_id AND g.status = 'dropping')
"""
_CHUNK = """
    DELETE FROM @table
    WHERE ctid = ANY(ARRAY(SELECT ctid FROM @table WHERE @rows LIMIT :most))
    RETURNING 1
"""
# What no cascade should have to take in one long transaction.
_CHUNKS = tuple(
    text(_CHUNK.replace("@table", table).replace("@rows", rows))
    for table, rows in (
        (
            "recall_index",
            "generation_id = ANY(ARRAY(SELECT g.id FROM index_generation g"
            " WHERE g.space_id = :space_id AND g.status = 'dropping'))",
        ),
        ("pending_embedding", _DROPPING),
        ("embedding_job", _DROPPING),
        ("embedding", _DROPPING),
    )
)
_DELETE_SPACE = text("DELETE FROM embedding_space WHERE id = :space_id")


async def begin_drop(session: AsyncSession, space_id: int) -> bool:
    """Fill this space no more, for good; False: it is the active one, and nothing changed."""
    await change_alone(session)
    await lock_out_recorders(session)
    return bool((await session.execute(_BEGIN_DROP, {"space_id": space_id})).all())


async def delete_some(session: AsyncSession, space_id: int, *, most: int) -> int:
    """Delete rows of a space that is being dropped, at most `most` of each table; how many."""
    parameters = {"space_id": space_id, "most": most}
    return sum([len((await session.execute(chunk, parameters)).all()) for chunk in _CHUNKS])


async def delete_space(session: AsyncSession, space_id: int) -> None:
    """Delete a space that is being dropped, with what is left of it."""
    await session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LINK_LOCK})
    await session.execute(_DELETE_SPACE, {"space_id": space_id})
