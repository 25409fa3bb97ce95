"""Changing the model: a space filled beside the active one, and the switch.

Recalls know one space at a time, the active generation's. Whatever happens here, each memory stays
indexed or pending in every generation that is active or being filled (see `embedding`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.store.locking import change_alone, lock_out_links, lock_out_recorders
from tickmind.store.spaces import (
    Space,
    Status,
    active_generation,
    ensure_space,
    insert_space,
)

__all__ = [
    "Behind",
    "Marked",
    "SpaceState",
    "activate",
    "add_space",
    "behind",
    "mark_missing",
    "refill",
    "space_states",
    "waiting",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceState:
    """A space and its generation in numbers: of several the one that is used, or was used last.

    `pending`: memories that wait, those given up on (`parked`) left out; `embeddings`: distinct
    texts that have a vector; `signed`: the generation has signatures; `building`: another is being
    built to take its place.
    """

    id: int
    generation_id: int
    status: Status
    model: str
    dimensions: int
    document_prefix: str
    query_prefix: str
    served: Mapping[str, Any] | None
    indexed: int
    pending: int
    parked: int
    embeddings: int
    created_at: datetime
    activated_at: datetime | None
    signed: bool = False
    building: bool = False

    @property
    def space(self) -> Space:
        return Space(
            model=self.model,
            dimensions=self.dimensions,
            document_prefix=self.document_prefix,
            query_prefix=self.query_prefix,
        )

    @property
    def saved(self) -> int:
        """Indexed memories whose text was embedded for another: texts that were not sent."""
        return max(0, self.indexed - self.embeddings)


# Of the statuses in this order, and of two alike the newer one: one that was superseded stays for
# some moments.
_PRIMARY = """
    SELECT DISTINCT ON (space_id) * FROM index_generation
    ORDER BY space_id, array_position(ARRAY['active', 'building', 'retired', 'dropping'],
                                      CAST(status AS text)), id DESC
"""
_STATES = text(
    """
    SELECT s.id, g.id AS generation_id, g.status, s.model, s.dimensions, s.document_prefix,
           s.query_prefix, s.served,
           (SELECT count(*) FROM recall_index r WHERE r.generation_id = g.id) AS indexed,
           waiting.pending, waiting.parked,
           (SELECT count(*) FROM embedding e WHERE e.space_id = s.id) AS embeddings,
           g.created_at, g.activated_at, g.basis IS NOT NULL AS signed,
           EXISTS (SELECT FROM index_generation b WHERE b.space_id = s.id AND b.id <> g.id
                   AND b.status = 'building') AS building
    FROM embedding_space s JOIN (@primary) AS g ON g.space_id = s.id
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE NOT p.parked) AS pending,
               count(*) FILTER (WHERE p.parked) AS parked
        FROM pending_embedding p WHERE p.space_id = s.id
    ) AS waiting
    ORDER BY s.id, g.id
""".replace("@primary", _PRIMARY)
).columns(served=JSONB)


async def space_states(session: AsyncSession) -> list[SpaceState]:
    """Every space, by its id."""
    return [SpaceState(**row._asdict()) for row in (await session.execute(_STATES)).all()]


_STATUS = text(
    "SELECT status FROM (@primary) AS g WHERE space_id = :space_id".replace("@primary", _PRIMARY)
)
_BUILD = text("INSERT INTO index_generation (space_id, status) VALUES (:space_id, 'building')")
_BUILD_AGAIN = text("""
    UPDATE index_generation SET status = 'building'
    WHERE id = (SELECT max(id) FROM index_generation
                WHERE space_id = :space_id AND status = 'retired')
      AND NOT EXISTS (SELECT FROM index_generation
                      WHERE space_id = :space_id AND status IN ('active', 'building'))
""")


async def add_space(
    session: AsyncSession, space: Space, served: Mapping[str, Any] | None
) -> tuple[int, Status]:
    """Have a space filled beside the active one; its id and status. In a database without any it
    is the active one at once.

    Memories recorded from now on are pending in it; those of before are after `mark_missing`. A
    space that is being dropped stays so.
    """
    await change_alone(session)
    if await active_generation(session) is None:
        await ensure_space(session, space, served)
    await lock_out_recorders(session)
    space_id = await insert_space(session, space, served)
    parameters = {"space_id": space_id}
    found = (await session.execute(_STATUS, parameters)).scalar_one_or_none()
    if found is None:
        await session.execute(_BUILD, parameters)
    elif found == "retired":
        await session.execute(_BUILD_AGAIN, parameters)
    return space_id, (await session.execute(_STATUS, parameters)).scalar_one()


async def refill(session: AsyncSession, space_id: int) -> None:
    """Have a retired space filled again, as `add_space` does."""
    await change_alone(session)
    await lock_out_recorders(session)
    await session.execute(_BUILD_AGAIN, {"space_id": space_id})


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """One chunk of the memories: how many were looked at, and how many are pending through it.

    `highest`: the last memory id looked at, to go on from.
    """

    seen: int
    marked: int
    highest: int


# What one generation of the space has, another that is built over it gets without a call.
_MARK_MISSING = text("""
    WITH chunk AS MATERIALIZED (
        SELECT id, agent_id, tick, importance, content_hash FROM memory
        WHERE id > :after ORDER BY id LIMIT :most
    ), filled AS MATERIALIZED (
        SELECT id FROM index_generation
        WHERE space_id = :space_id AND status IN ('building', 'active')
    ), marked AS (
        INSERT INTO pending_embedding (memory_id, world_id, tick, space_id, importance,
                                       content_hash)
        SELECT c.id, (SELECT a.world_id FROM agent a WHERE a.id = c.agent_id), c.tick, :space_id,
               c.importance, c.content_hash
        FROM chunk c
        WHERE EXISTS (SELECT FROM filled)
          AND NOT EXISTS (SELECT FROM recall_index r
                          WHERE r.memory_id = c.id
                            AND r.generation_id = ANY(ARRAY(SELECT id FROM filled)) OFFSET 0)
        ON CONFLICT DO NOTHING
        RETURNING 1
    )
    SELECT count(*) AS seen, (SELECT count(*) FROM marked) AS marked,
           coalesce(max(id), :after) AS highest
    FROM chunk
""")


async def mark_missing(session: AsyncSession, space_id: int, *, after: int, most: int) -> Marked:
    """Mark memories above the id `after` as pending where a space that is filled has none of them.

    It misses no memory of before, since `add_space` waited for those in flight; one recorded since
    is pending by itself. It may be begun anew at any time. Linking waits for the moment it takes:
    a row that were linked meanwhile would end up indexed and pending.
    """
    await lock_out_links(session)
    parameters = {"space_id": space_id, "after": after, "most": most}
    return Marked(**(await session.execute(_MARK_MISSING, parameters)).one()._asdict())


_WAITING = text("""
    SELECT count(*) FROM pending_embedding
    WHERE space_id = :space_id AND NOT parked AND memory_id <= :until
""")


async def waiting(session: AsyncSession, space_id: int, *, until: int) -> int:
    """How many memories up to the id `until` wait for a space, those given up on left out."""
    found = await session.execute(_WAITING, {"space_id": space_id, "until": until})
    return int(found.scalar_one())


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """What recalls find now and would not find in another space.

    `memories`: all of it; `overdue`: what was recorded before the last moments; `parked`: what was
    given up on there.
    """

    memories: int
    overdue: int
    parked: int


_BEHIND = text("""
    SELECT count(*) AS memories,
           count(*) FILTER (
               WHERE m.recorded_at < clock_timestamp() - make_interval(secs => :fresh_s)
           ) AS overdue,
           count(*) FILTER (
               WHERE EXISTS (SELECT FROM pending_embedding p
                             WHERE p.memory_id = m.id AND p.space_id + 0 = :space_id
                               AND p.parked OFFSET 0)
           ) AS parked
    FROM recall_index r
    CROSS JOIN LATERAL (SELECT id, recorded_at FROM memory WHERE id = r.memory_id OFFSET 0) AS m
    WHERE r.generation_id = (SELECT id FROM index_generation WHERE status = 'active')
      AND NOT EXISTS (SELECT FROM recall_index other
                      WHERE other.memory_id = r.memory_id
                        AND other.generation_id = ANY(ARRAY(
                            SELECT id FROM index_generation
                            WHERE space_id = :space_id AND status = 'building')) OFFSET 0)
""")


async def behind(session: AsyncSession, space_id: int, *, fresh_s: float) -> Behind:
    """What would be forgotten by activating this space now.

    `fresh_s`: a memory younger than this may still be on its way without being overdue.
    """
    parameters = {"space_id": space_id, "fresh_s": fresh_s}
    return Behind(**(await session.execute(_BEHIND, parameters)).one()._asdict())


_IS_BUILDING = text("""
    SELECT EXISTS (SELECT FROM index_generation WHERE space_id = :space_id AND status = 'building')
       AND NOT EXISTS (SELECT FROM index_generation
                       WHERE space_id = :space_id AND status = 'active')
""")
# One that was being built over the space that recalls leave.
_ABANDON = text("""
    UPDATE index_generation SET status = 'dropping'
    WHERE status = 'building'
      AND space_id = (SELECT space_id FROM index_generation WHERE status = 'active')
""")
_RETIRE_ACTIVE = text("UPDATE index_generation SET status = 'retired' WHERE status = 'active'")
_ACTIVATE = text("""
    UPDATE index_generation SET status = 'active', activated_at = clock_timestamp()
    WHERE space_id = :space_id AND status = 'building'
""")


async def activate(session: AsyncSession, space_id: int) -> bool:
    """Have recalls answered from this space; False: it is not being filled, and nothing changed.

    The one before is kept as it is, and gets nothing more.
    """
    await change_alone(session)
    if not (await session.execute(_IS_BUILDING, {"space_id": space_id})).scalar_one():
        return False
    await session.execute(_ABANDON)
    await session.execute(_RETIRE_ACTIVE)
    await session.execute(_ACTIVATE, {"space_id": space_id})
    return True
