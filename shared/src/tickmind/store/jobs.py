"""Texts to be embedded, as jobs: one a distinct text, claimed by lease, given back, parked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.identity import embedded_text
from tickmind.store.locking import share_links
from tickmind.store.lookups import PENDING_LOCKED, by_index

__all__ = ["Claimed", "Job", "claim", "claimable", "park", "release", "renew", "retry_later"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One distinct text to embed, leased under `token`. `attempts` counts this one."""

    content_hash: bytes
    content: str
    attempts: int
    token: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """Texts leased by one claim; `exhausted`: there was nothing at all to lease."""

    jobs: list[Job]
    exhausted: bool


# Why they are written as they are: see `lookups`.

# Of jobs that are locked, so there for certain: each of the inserts is an update.
_UPDATE_MINE = """
        INSERT INTO embedding_job AS j (space_id, content_hash, due_order)
        SELECT :space_id, content_hash, 0 FROM mine
        ON CONFLICT (space_id, content_hash) DO UPDATE"""

# Leased jobs at the head are passed over by SKIP LOCKED while claimed, by lease_until after.
# A job whose last memory was deleted has no text any more and goes. So does one whose text is
# embedded by now: a sweep that waited for the storing transaction may have made it once more.
_CLAIM = text(
    """
    WITH mine AS MATERIALIZED (
        SELECT content_hash FROM embedding_job
        WHERE space_id = :space_id AND parked_reason IS NULL
          AND not_before <= clock_timestamp()
          AND (lease_until IS NULL OR lease_until < clock_timestamp())
        ORDER BY due_order
        LIMIT :most
        FOR UPDATE SKIP LOCKED
    ), claimed AS (@update
        SET attempts = j.attempts + 1, lease_token = :token,
            lease_until = clock_timestamp() + make_interval(secs => :lease_s)
        RETURNING j.content_hash, j.attempts, j.due_order
    )
    SELECT c.content_hash, c.attempts, m.content, m.context
    FROM claimed c
    LEFT JOIN LATERAL (
        SELECT told.content, told.context
        FROM (SELECT memory_id FROM pending_embedding
              WHERE space_id = :space_id AND content_hash = c.content_hash LIMIT 1) AS p
        CROSS JOIN LATERAL (SELECT content, context FROM memory
                            WHERE memory.id = p.memory_id OFFSET 0) AS told
        WHERE NOT EXISTS (SELECT FROM embedding e WHERE e.space_id = :space_id
                          AND e.content_hash = c.content_hash OFFSET 0)
    ) m ON true
    ORDER BY c.due_order, c.content_hash
""".replace("@update", _UPDATE_MINE)
)
_DROP = text("""
    DELETE FROM embedding_job
    WHERE space_id = :space_id AND content_hash = ANY(CAST(:hashes AS bytea[]))
      AND lease_token = :token
""")


async def claim(
    session: AsyncSession, space_id: int, *, token: UUID, most: int, lease_s: float
) -> Claimed:
    """Lease at most `most` distinct texts, important and old first; each claim is an attempt.

    `token`: of this claim alone, so that nobody can give back or park what was leased anew.
    """
    await by_index(session)
    rows = (
        await session.execute(
            _CLAIM, {"space_id": space_id, "token": token, "most": most, "lease_s": lease_s}
        )
    ).all()
    needless = [row.content_hash for row in rows if row.content is None]
    if needless:
        await session.execute(_DROP, {"space_id": space_id, "hashes": needless, "token": token})
    jobs = [
        Job(
            content_hash=row.content_hash,
            content=embedded_text(row.content, row.context, row.content_hash),
            attempts=row.attempts,
            token=token,
        )
        for row in rows
        if row.content is not None
    ]
    return Claimed(jobs=jobs, exhausted=not rows)


_CLAIMABLE = text("""
    SELECT EXISTS (
        SELECT FROM embedding_job
        WHERE space_id = :space_id AND parked_reason IS NULL
          AND not_before <= clock_timestamp()
          AND (lease_until IS NULL OR lease_until < clock_timestamp()))
""")


async def claimable(session: AsyncSession, space_id: int) -> bool:
    """Whether there is a text to lease."""
    return bool((await session.execute(_CLAIMABLE, {"space_id": space_id})).scalar_one())


# Several jobs are locked in the order of their hashes, whoever does it: a batch's leases are
# renewed while its answer is stored.
_MINE = """
    told AS (
        SELECT DISTINCT content_hash, token
        FROM unnest(CAST(:hashes AS bytea[]), CAST(:tokens AS uuid[])) AS t (content_hash, token)
        WHERE @first ORDER BY content_hash
    ), mine AS MATERIALIZED (
        SELECT locked.content_hash FROM told CROSS JOIN LATERAL (
            SELECT content_hash FROM embedding_job j
            WHERE j.space_id = :space_id AND j.content_hash = told.content_hash
              AND j.lease_token = told.token
            FOR UPDATE
        ) AS locked
    )"""
_RENEW = text(
    """
    WITH @mine @update
    SET lease_until = clock_timestamp() + make_interval(secs => :lease_s)
""".replace("@mine", _MINE.replace("@first", "true")).replace("@update", _UPDATE_MINE)
)


async def renew(
    session: AsyncSession, space_id: int, jobs: Sequence[Job], *, lease_s: float
) -> None:
    """Keep the leases of texts that are still being worked on; those given back stay so."""
    await by_index(session)
    await session.execute(_RENEW, {"space_id": space_id, **_named(jobs), "lease_s": lease_s})


def _named(jobs: Sequence[Job]) -> dict[str, object]:
    return {
        "hashes": [job.content_hash for job in jobs],
        "tokens": [job.token for job in jobs],
    }


_RELEASE = text(
    """
    WITH @mine @update
    SET attempts = greatest(0, j.attempts - CAST(:uncharged AS integer)),
        lease_token = NULL, lease_until = NULL,
        not_before = clock_timestamp() + make_interval(secs => :delay_s)
""".replace("@mine", _MINE.replace("@first", "true")).replace("@update", _UPDATE_MINE)
)


async def release(
    session: AsyncSession, space_id: int, jobs: Sequence[Job], *, delay_s: float = 0.0
) -> None:
    """Give leased texts back uncharged: they did nothing wrong."""
    await _give_back(session, space_id, jobs, delay_s=delay_s, uncharged=1)


async def retry_later(
    session: AsyncSession, space_id: int, jobs: Sequence[Job], *, delay_s: float
) -> None:
    """Give leased texts back, the attempt counted, to be tried again after `delay_s` seconds."""
    await _give_back(session, space_id, jobs, delay_s=delay_s, uncharged=0)


async def _give_back(
    session: AsyncSession, space_id: int, jobs: Sequence[Job], *, delay_s: float, uncharged: int
) -> None:
    await by_index(session)
    await session.execute(
        _RELEASE,
        {"space_id": space_id, **_named(jobs), "delay_s": delay_s, "uncharged": uncharged},
    )


# Pending rows before jobs, as linking takes them: no job is looked at before all of them are
# counted. What is recorded meanwhile is parked by the next sweep.
_PARK = text(
    """
    WITH waiting AS MATERIALIZED (
        SELECT p.memory_id, t.content_hash
        FROM (SELECT DISTINCT unnest(CAST(:hashes AS bytea[])) AS content_hash) AS t
        CROSS JOIN LATERAL (
            SELECT memory_id FROM pending_embedding
            WHERE space_id = :space_id AND content_hash = t.content_hash OFFSET 0
        ) AS p
        ORDER BY p.memory_id
    ), held AS MATERIALIZED (
        SELECT waiting.* FROM waiting @locked
    ), @mine, job AS (@update
        SET parked_reason = :reason, parked_at = now(), lease_token = NULL, lease_until = NULL
        RETURNING j.content_hash
    ), marked AS (
        UPDATE pending_embedding SET parked = true
        WHERE space_id + 0 = :space_id AND memory_id = ANY(ARRAY(
            SELECT memory_id FROM held WHERE content_hash IN (SELECT content_hash FROM job)))
    )
    SELECT count(*) FROM job
""".replace("@mine", _MINE.replace("@first", "(SELECT count(*) FROM held) >= 0"))
    .replace("@update", _UPDATE_MINE)
    .replace("@locked", PENDING_LOCKED.format(of="waiting", how=""))
)


async def park(session: AsyncSession, space_id: int, jobs: Sequence[Job], *, reason: str) -> int:
    """Give up on these texts until a person says otherwise; how many were still ours to park.

    Their memories stay pending.
    """
    await share_links(session)
    parameters = {"space_id": space_id, **_named(jobs), "reason": reason[:500]}
    return int((await session.execute(_PARK, parameters)).scalar_one())
