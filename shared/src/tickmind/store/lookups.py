"""How statements find few rows among many, whatever PostgreSQL believes of its tables.

The planner knows a table by the statistics that were taken last. Ours fill and empty within
minutes: a space that is new since has no rows to it, and a table that was nearly empty then still
is. Taking hundreds of rows for one, it goes through a whole table, or through all other rows of the
statement, once for each of them: minutes under locks for what takes milliseconds, until autovacuum
comes by. So what concerns the rows of a chunk leaves it no choice:

- What belongs to a row is looked up by its key in a subquery that cannot be joined in another way:
  LATERAL or EXISTS, with OFFSET 0 or FOR UPDATE.
- What is changed is named by an array of keys, `id = ANY(ARRAY(SELECT ...))`, where an index begins
  with that key; before PostgreSQL 17 one on a second column may be compared row by row. There,
  rows that are there for certain are changed by ON CONFLICT DO UPDATE, and others by their ctids:
  where nobody changes them meanwhile, or it does no harm to miss who does, or by a statement that
  comes after the one that locked them.
- `space_id + 0 = :space_id` where an index that begins with the space would be the wrong one.
- `BY_INDEX`: by an index, and in its order, rather than all there is, sorted.

`tests/integration/test_stale_statistics.py` counts what each statement touches.
"""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

__all__ = ["BY_INDEX", "PENDING_LOCKED", "as_it_likes", "by_index", "compare_whole"]

#: What a statement that takes a lock may select besides, so that it costs no statement of its own.
#: Tables without an index for what is asked of them are read in an InitPlan: elsewhere the price
#: put on it would hide all others from a planner before PostgreSQL 18.
#: The same price would have each statement compiled, which takes a hundred times its time.
BY_INDEX = """
    set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
    set_config('enable_sort', 'off', true), set_config('jit', 'off', true)
"""
#: After rows with a `memory_id`, in their order: those of them that are pending in a space, locked.
PENDING_LOCKED = """CROSS JOIN LATERAL (
            SELECT memory_id FROM pending_embedding p
            WHERE p.memory_id = {of}.memory_id AND p.space_id + 0 = :space_id
            FOR UPDATE {how}
        ) AS locked"""
_BY_INDEX = text(f"SELECT {BY_INDEX}")
_AS_IT_LIKES = text("""
    SELECT set_config('enable_seqscan', 'on', true), set_config('enable_bitmapscan', 'on', true),
           set_config('enable_sort', 'on', true)
""")
_COMPARE_WHOLE = text("SELECT set_config('enable_nestloop', 'off', true)")


async def by_index(session: AsyncSession) -> None:
    """For the rest of the transaction rows are looked up by indexes, and taken in their order."""
    await session.execute(_BY_INDEX)


async def as_it_likes(session: AsyncSession) -> None:
    """The end of `by_index`: what follows has no index, or no order."""
    await session.execute(_AS_IT_LIKES)


async def compare_whole(session: AsyncSession) -> None:
    """For the rest of the transaction whole tables are joined, by hashing or sorting them."""
    await session.execute(_COMPARE_WHOLE)
