"""What a person wants to see: counts, gaps, rejects, parked texts, the audit of the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.store.locking import lock_out_links

__all__ = [
    "Audit",
    "Gap",
    "ParkedText",
    "RejectedInput",
    "WorldStatus",
    "audit",
    "drop_parked",
    "drop_rejects",
    "forget_retried",
    "gaps",
    "parked_reasons",
    "parked_texts",
    "reject_ids",
    "rejects",
    "retry_parked",
    "stray_rejects",
    "world_statuses",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldStatus:
    """One world in numbers, in the space that recalls use. `kinds`: memories by kind; `parked`:
    pending memories given up on."""

    world: str
    agents: int
    kinds: dict[str, int]
    pending: int
    parked: int
    rejects: int
    first_tick: int | None
    last_tick: int | None


_WORLDS = text("""
    SELECT w.name,
           (SELECT count(*) FROM agent a WHERE a.world_id = w.id) AS agents,
           (SELECT count(*) FROM pending_embedding p WHERE p.world_id = w.id AND NOT p.parked
            AND p.space_id = (SELECT space_id FROM index_generation WHERE status = 'active')
           ) AS pending,
           (SELECT count(*) FROM pending_embedding p WHERE p.world_id = w.id AND p.parked
            AND p.space_id = (SELECT space_id FROM index_generation WHERE status = 'active')
           ) AS parked,
           (SELECT count(*) FROM reject r WHERE r.world = w.name) AS rejects,
           (SELECT min(tick) FROM tick_receipt r WHERE r.world_id = w.id) AS first_tick,
           (SELECT max(tick) FROM tick_receipt r WHERE r.world_id = w.id) AS last_tick
    FROM world w WHERE CAST(:world AS text) IS NULL OR w.name = :world
    ORDER BY w.name
""")
_KINDS = text("""
    SELECT w.name, m.kind, count(*) AS memories
    FROM world w
    CROSS JOIN LATERAL (SELECT id FROM agent WHERE world_id = w.id OFFSET 0) AS a
    CROSS JOIN LATERAL (SELECT kind FROM memory WHERE agent_id = a.id OFFSET 0) AS m
    WHERE CAST(:world AS text) IS NULL OR w.name = :world
    GROUP BY w.name, m.kind ORDER BY w.name, m.kind
""")


async def world_statuses(session: AsyncSession, world: str | None = None) -> list[WorldStatus]:
    """Every world, or the one named, by name."""
    kinds: dict[str, dict[str, int]] = {}
    for name, kind, count in await session.execute(_KINDS, {"world": world}):
        kinds.setdefault(name, {})[kind] = count
    rows = (await session.execute(_WORLDS, {"world": world})).all()
    return [
        WorldStatus(
            world=row.name,
            agents=row.agents,
            kinds=kinds.get(row.name, {}),
            pending=row.pending,
            parked=row.parked,
            rejects=row.rejects,
            first_tick=row.first_tick,
            last_tick=row.last_tick,
        )
        for row in rows
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Ticks `first` to `last`, both included, that never came."""

    first: int
    last: int


_GAPS = text("""
    SELECT previous + 1 AS first, tick - 1 AS last
    FROM (
        SELECT tick, lag(tick) OVER (ORDER BY tick) AS previous
        FROM tick_receipt WHERE world_id = (SELECT id FROM world WHERE name = :world)
    ) AS t
    WHERE tick > previous + 1
    ORDER BY first
""")


async def gaps(session: AsyncSession, world: str) -> list[Gap]:
    """Ticks between a world's first and last that were never received."""
    rows = (await session.execute(_GAPS, {"world": world})).all()
    return [Gap(first=row.first, last=row.last) for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedInput:
    """Refused input as it was kept."""

    id: int
    first_received: datetime
    last_received: datetime
    times: int
    reason: str
    detail: str
    routing_key: str
    world: str | None
    body: bytes


_REJECTS = text("""
    SELECT id, first_received, last_received, times, reason, detail, routing_key, world, body
    FROM reject
    WHERE (CAST(:ids AS bigint[]) IS NULL OR id = ANY(CAST(:ids AS bigint[]))) AND id > :after
      AND (CAST(:world AS text) IS NULL OR world = :world)
    ORDER BY id LIMIT :most
""")


async def rejects(
    session: AsyncSession,
    *,
    ids: Sequence[int] | None = None,
    world: str | None = None,
    after: int = 0,
    most: int = 100,
) -> list[RejectedInput]:
    """Refused input, of one world or all, oldest first; `after`: an id to go on from."""
    wanted = list(ids) if ids is not None else None
    rows = await session.execute(
        _REJECTS, {"ids": wanted, "world": world, "after": after, "most": most}
    )
    return [RejectedInput(**row._asdict()) for row in rows.all()]


_REJECT_IDS = text("""
    SELECT id FROM reject WHERE CAST(:world AS text) IS NULL OR world = :world ORDER BY id
""")


async def reject_ids(session: AsyncSession, world: str | None = None) -> list[int]:
    """Ids of all refused input, or of one world's, oldest first."""
    return list((await session.execute(_REJECT_IDS, {"world": world})).scalars())


_STRAY_REJECTS = text("""
    SELECT count(*) FROM reject r
    WHERE r.world IS NULL OR NOT EXISTS (SELECT FROM world w WHERE w.name = r.world)
""")


async def stray_rejects(session: AsyncSession) -> int:
    """How many rejects belong to no world that was recorded."""
    return int((await session.execute(_STRAY_REJECTS)).scalar_one())


# What the recorder refused again meanwhile has been counted once more, and stays.
_FORGET_RETRIED = text("""
    DELETE FROM reject WHERE id = ANY(ARRAY(
        SELECT locked.id
        FROM unnest(CAST(:ids AS bigint[]), CAST(:times AS bigint[])) AS sent (id, times)
        CROSS JOIN LATERAL (
            SELECT id FROM reject r WHERE r.id = sent.id AND r.times = sent.times FOR UPDATE
        ) AS locked))
    RETURNING id
""")


async def forget_retried(session: AsyncSession, sent: Sequence[RejectedInput]) -> int:
    """Forget rejects that were published again, as they were read; how many were still so."""
    rows = await session.execute(
        _FORGET_RETRIED, {"ids": [row.id for row in sent], "times": [row.times for row in sent]}
    )
    return len(rows.all())


# In the order in which recorders come to them.
_DROP_REJECTS = text("""
    WITH these AS MATERIALIZED (
        SELECT id FROM reject
        WHERE (CAST(:ids AS bigint[]) IS NULL OR id = ANY(CAST(:ids AS bigint[])))
          AND (CAST(:world AS text) IS NULL OR world = :world)
        ORDER BY reject_key FOR UPDATE
    )
    DELETE FROM reject WHERE id = ANY(ARRAY(SELECT id FROM these)) RETURNING id
""")


async def drop_rejects(
    session: AsyncSession, ids: Sequence[int] | None = None, *, world: str | None = None
) -> int:
    """Forget these rejects, or all, of one world or any; how many there were."""
    parameters = {"ids": list(ids) if ids is not None else None, "world": world}
    return len((await session.execute(_DROP_REJECTS, parameters)).all())


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedText:
    """A text given up on, why, and how many memories wait for it. `hash`: hex, to name it by."""

    hash: str
    reason: str
    parked_at: datetime
    attempts: int
    memories: int
    content: str | None


_PARKED = text("""
    SELECT encode(j.content_hash, 'hex') AS hash, j.parked_reason AS reason, j.parked_at,
           j.attempts, p.memories,
           (SELECT m.content FROM memory m WHERE m.id = p.first) AS content
    FROM embedding_job j
    CROSS JOIN LATERAL (
        SELECT count(*) AS memories, min(memory_id) AS first FROM pending_embedding
        WHERE space_id = j.space_id AND content_hash = j.content_hash
    ) AS p
    WHERE j.parked_reason IS NOT NULL
      AND EXISTS (SELECT FROM index_generation g
                  WHERE g.space_id = j.space_id AND g.status IN ('active', 'building'))
    ORDER BY j.parked_at, j.content_hash LIMIT :most
""")


async def parked_texts(session: AsyncSession, *, most: int = 100) -> list[ParkedText]:
    """Texts given up on, oldest first; one that is parked in two spaces comes twice."""
    rows = (await session.execute(_PARKED, {"most": most})).all()
    return [ParkedText(**row._asdict()) for row in rows]


_PARKED_REASONS = text("""
    SELECT w.name, held.reason, held.memories
    FROM (
        SELECT p.world_id, j.parked_reason AS reason, count(*) AS memories
        FROM embedding_job j
        CROSS JOIN LATERAL (
            SELECT world_id FROM pending_embedding
            WHERE space_id = j.space_id AND content_hash = j.content_hash AND parked OFFSET 0
        ) AS p
        WHERE j.parked_reason IS NOT NULL
          AND j.space_id = (SELECT space_id FROM index_generation WHERE status = 'active')
        GROUP BY p.world_id, j.parked_reason
    ) AS held
    CROSS JOIN LATERAL (SELECT name FROM world WHERE id = held.world_id OFFSET 0) AS w
    WHERE CAST(:world AS text) IS NULL OR w.name = :world
    ORDER BY w.name, held.memories DESC, held.reason
""")


async def parked_reasons(
    session: AsyncSession, world: str | None = None
) -> dict[str, dict[str, int]]:
    """By world: parked memories by the reason why, the most frequent first."""
    reasons: dict[str, dict[str, int]] = {}
    for name, reason, count in await session.execute(_PARKED_REASONS, {"world": world}):
        reasons.setdefault(name, {})[reason] = count
    return reasons


_RETRY_PARKED = text("""
    WITH job AS (
        UPDATE embedding_job
        SET parked_reason = NULL, parked_at = NULL, attempts = 0, not_before = now()
        WHERE parked_reason IS NOT NULL AND (CAST(:hashes AS text[]) IS NULL
              OR encode(content_hash, 'hex') = ANY(CAST(:hashes AS text[])))
        RETURNING space_id, content_hash
    ), waiting AS (
        UPDATE pending_embedding SET parked = false
        WHERE ctid = ANY(ARRAY(
            SELECT p.at FROM job CROSS JOIN LATERAL (
                SELECT ctid AS at FROM pending_embedding
                WHERE space_id = job.space_id AND content_hash = job.content_hash OFFSET 0
            ) AS p))
    )
    SELECT count(*) FROM job
""")
# A dropped text keeps its memories: they get the zero vector, which scores below everything.
_DROP_PARKED = text("""
    SELECT j.space_id, j.content_hash, s.dimensions
    FROM embedding_job j JOIN embedding_space s ON s.id = j.space_id
    WHERE j.parked_reason IS NOT NULL AND (CAST(:hashes AS text[]) IS NULL
          OR encode(j.content_hash, 'hex') = ANY(CAST(:hashes AS text[])))
    ORDER BY j.space_id, j.content_hash FOR UPDATE OF j
""")


async def retry_parked(session: AsyncSession, hashes: Sequence[str] | None = None) -> int:
    """Try these texts, or all parked ones, again from the first attempt; how many there were.

    No sweep goes on meanwhile that has seen them parked, and would park what was said since.
    """
    await lock_out_links(session)
    wanted = list(hashes) if hashes is not None else None
    return int((await session.execute(_RETRY_PARKED, {"hashes": wanted})).scalar_one())


async def drop_parked(
    session: AsyncSession, hashes: Sequence[str] | None = None
) -> list[tuple[int, bytes, int]]:
    """Parked texts to be dropped, locked: (space id, content hash, dimensions) each."""
    wanted = list(hashes) if hashes is not None else None
    return [
        (space_id, content_hash, dimensions)
        for space_id, content_hash, dimensions in (
            await session.execute(_DROP_PARKED, {"hashes": wanted})
        )
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The protocol's promises, counted where broken: all zero in a sound database."""

    lost: int
    both: int
    without_vector: int
    without_job: int


_AUDIT = text("""
    WITH space AS (SELECT id AS generation_id, space_id FROM index_generation
                   WHERE id = coalesce(CAST(:generation_id AS integer),
                                       (SELECT id FROM index_generation WHERE status = 'active')))
    SELECT
        (SELECT count(*) FROM memory m CROSS JOIN space
         WHERE NOT EXISTS (SELECT FROM pending_embedding p
                           WHERE p.memory_id = m.id AND p.space_id + 0 = space.space_id OFFSET 0)
           AND NOT EXISTS (SELECT FROM recall_index r WHERE r.memory_id = m.id
                           AND r.generation_id + 0 = space.generation_id OFFSET 0)) AS lost,
        (SELECT count(*) FROM space JOIN pending_embedding p USING (space_id)
         WHERE EXISTS (SELECT FROM recall_index r WHERE r.memory_id = p.memory_id
                       AND r.generation_id + 0 = space.generation_id OFFSET 0)) AS both,
        (SELECT count(*) FROM space JOIN recall_index r USING (generation_id)
         WHERE NOT EXISTS (SELECT FROM embedding e WHERE e.space_id = space.space_id
                           AND e.content_hash = r.content_hash OFFSET 0)) AS without_vector,
        (SELECT count(*) FROM pending_embedding p WHERE p.parked
           AND NOT EXISTS (SELECT FROM embedding_job j WHERE j.space_id = p.space_id
                           AND j.content_hash = p.content_hash
                           AND j.parked_reason IS NOT NULL OFFSET 0)) AS without_job
""")


async def audit(session: AsyncSession, generation_id: int | None = None) -> Audit:
    """Check the whole database against the protocol, for the active generation or another.

    `lost`: memories neither indexed nor pending; `both`: memories that are both;
    `without_vector`: indexed memories whose text has no vector; `without_job`: parked rows, of any
    space, whose text is not.
    """
    row = (await session.execute(_AUDIT, {"generation_id": generation_id})).one()
    return Audit(**row._asdict())
