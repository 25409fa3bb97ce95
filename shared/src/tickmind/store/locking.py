"""Locks between whole transactions, and the order in which all of the store's are taken.

Who waits for one may hold only what comes before it (ARCHITECTURE.md, "Locks"):

1. a task's lease (`building.hold_lease`)
2. `change_alone`: who changes spaces and generations
3. `hold_worlds`, shared, by who stores; `lock_out_world`, alone
4. `share_links`, by who links; `lock_out_links`, alone
5. the table `pending_embedding`: `lock_out_recorders`, or what deletes its rows by cascade
6. rows: of one text its vector, then pending rows by memory id, then jobs by hash; rejects by
   their key

Whoever locks several memories, or several pending rows, holds 4: deleting goes by ticks, others by
ids.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.store.lookups import BY_INDEX

__all__ = [
    "change_alone",
    "hold_worlds",
    "lock_for_cascades",
    "lock_out_links",
    "lock_out_recorders",
    "lock_out_world",
    "share_links",
]

#: Keys of advisory locks, as text so that they are nobody else's by chance.
_SPACES = int.from_bytes(b"tm-space", "big")
_LINKS = int.from_bytes(b"tm-link\0", "big")
#: The first of 64, which tell worlds apart: a batch of however many needs few locks.
_WORLDS, _BUCKETS = int.from_bytes(b"tm-worl\0", "big"), 64

#: Transactions that write pending rows end within this; the longest are a deletion's.
RECORDERS_END_S = 10.0

_ALONE = text("SELECT pg_advisory_xact_lock(:key)")
_SHARED = text("SELECT pg_advisory_xact_lock_shared(:key)")


async def change_alone(session: AsyncSession) -> None:
    """One command at a time changes spaces; the others wait for our end."""
    await session.execute(_ALONE, {"key": _SPACES})


_HOLD_WORLDS = text(
    """
    SELECT count(pg_advisory_xact_lock_shared(:key + bucket)), @by_index
    FROM (SELECT DISTINCT id % :buckets AS bucket
          FROM unnest(CAST(:world_ids AS bigint[])) AS id ORDER BY bucket) AS buckets
""".replace("@by_index", BY_INDEX)
)
_LOCK_OUT_WORLD = text("""
    SELECT id, pg_advisory_xact_lock(:key + id % :buckets) FROM world WHERE name = :world
""")


async def hold_worlds(session: AsyncSession, world_ids: Iterable[int]) -> None:
    """Let nobody delete these worlds before we end. Who stores locks agents, by foreign keys, then
    their world; who deletes comes the other way: so this is the first thing either does."""
    parameters = {"key": _WORLDS, "buckets": _BUCKETS, "world_ids": sorted(set(world_ids))}
    await session.execute(_HOLD_WORLDS, parameters)


async def lock_out_world(session: AsyncSession, world: str) -> int | None:
    """Wait for all that is being stored in a world, and hold back what comes until we end; its id.

    None: there is no such world."""
    parameters = {"key": _WORLDS, "buckets": _BUCKETS, "world": world}
    row = (await session.execute(_LOCK_OUT_WORLD, parameters)).one_or_none()
    return None if row is None else row.id


_SHARE_LINKS = text(f"SELECT pg_advisory_xact_lock_shared(:key), {BY_INDEX}")
_LOCK_OUT_LINKS = text(f"SELECT pg_advisory_xact_lock(:key), {BY_INDEX}")


async def share_links(session: AsyncSession) -> None:
    """Let nobody take away vectors or memories before we end: what a statement of ours has seen
    may be linked to. The statement that looks comes after this."""
    await session.execute(_SHARE_LINKS, {"key": _LINKS})


async def lock_out_links(session: AsyncSession) -> None:
    """Wait for all who link, and hold the next ones back until we end."""
    await session.execute(_LOCK_OUT_LINKS, {"key": _LINKS})


async def lock_for_cascades(session: AsyncSession) -> None:
    """Lock out links, and be among those who write pending rows before the first memory, or the
    space, is locked: its cascades come to them last, and would wait there for who holds recorders
    back."""
    await lock_out_links(session)
    await session.execute(text("LOCK TABLE pending_embedding IN ROW EXCLUSIVE MODE"))


async def lock_out_recorders(session: AsyncSession) -> None:
    """Wait for every recorder's transaction in flight, and hold the next ones back until we end.

    A memory is then either committed, and seen by our next statement, or recorded after us, by a
    statement that sees what we did. Where one does not end, this gives up: all others would wait
    behind us.
    """
    timeout = text("SELECT set_config('lock_timeout', :value, true)")
    await session.execute(timeout, {"value": f"{round(RECORDERS_END_S * 1000)}ms"})
    await session.execute(text("LOCK TABLE pending_embedding IN SHARE ROW EXCLUSIVE MODE"))
    await session.execute(text("SET LOCAL lock_timeout TO DEFAULT"))
