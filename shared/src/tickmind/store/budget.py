"""One budget per provider for the whole fleet: reserve, settle, give back, block.

The rules stand in the database (`tickmind_reserve`), since only there all replicas meet, under
one clock. A reservation is a row that its windows count from the moment the provider must have
counted the call at the latest: at first the grant and a guard, then the moment of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.limits import Limit

__all__ = [
    "Blocked",
    "Grant",
    "Purpose",
    "Usage",
    "all_blocked",
    "block",
    "blocked",
    "give_back",
    "record",
    "reserve",
    "settle",
    "unblock",
    "usage",
    "waiting",
]

Purpose = Literal["documents", "queries"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What was granted: the first `texts` of those asked for, or none and for how long to wait.

    `reason`, where none: `budget`, `line` (others came first), `never` (more than a window holds
    even when empty), or what blocked the provider.
    """

    texts: int
    wait_s: float
    ticket: int | None
    reservation: int | None
    reason: str | None


_RESERVE = text("""
    SELECT granted, wait_s, ticket, reservation, reason
    FROM tickmind_reserve(
        :provider, :purpose, CAST(:seconds AS float8[]), CAST(:units AS text[]),
        CAST(:amounts AS float8[]), :calls, CAST(:tokens AS bigint[]), :floor, :guard_s, :kept,
        :ticket)
""")


async def reserve(
    session: AsyncSession,
    provider: str,
    purpose: Purpose,
    *,
    limits: Sequence[Limit],
    tokens: Sequence[int],
    floor: int,
    guard_s: float,
    kept: float,
    ticket: int | None,
    calls: int = 1,
) -> Grant:
    """Ask for one call of up to `len(tokens)` texts, `tokens` estimated for each; or for several.

    `floor`: fewest texts worth a call; `guard_s`: how late the call may still reach the provider;
    `kept`: share of each limit that documents leave to queries while a retriever lives; `ticket`:
    our place in the line, from the grant before.
    """
    row = (
        await session.execute(
            _RESERVE,
            {
                "provider": provider,
                "purpose": purpose,
                "seconds": [limit.window_s for limit in limits],
                "units": [limit.unit for limit in limits],
                "amounts": [limit.amount for limit in limits],
                "calls": calls,
                "tokens": list(tokens),
                "floor": min(floor, len(tokens)),
                "guard_s": guard_s,
                "kept": kept,
                "ticket": ticket,
            },
        )
    ).one()
    return Grant(
        texts=row.granted,
        wait_s=row.wait_s,
        ticket=row.ticket,
        reservation=row.reservation,
        reason=row.reason,
    )


_SETTLE = text("""
    WITH settled AS (
        UPDATE provider_reservation r
        SET counted_at = least(r.counted_at, clock_timestamp()),
            calls = coalesce(CAST(:calls AS integer), r.calls),
            texts = coalesce(CAST(:texts AS integer), r.texts),
            tokens = coalesce(CAST(:tokens AS bigint), r.tokens)
        FROM (SELECT id, calls, texts, tokens FROM provider_reservation
              WHERE id = :id FOR UPDATE) AS before
        WHERE r.id = before.id
        RETURNING r.provider, r.slot, r.purpose, r.calls - before.calls AS calls,
                  r.texts - CAST(:free_texts AS integer) - before.texts AS texts,
                  r.tokens - CAST(:free_tokens AS bigint) - before.tokens AS tokens
    )
    UPDATE provider_usage u
    SET calls = u.calls + settled.calls, texts = u.texts + settled.texts,
        tokens = u.tokens + settled.tokens
    FROM settled
    WHERE (settled.calls, settled.texts, settled.tokens) <> (0, 0, 0)
      AND u.provider = settled.provider AND u.slot = settled.slot
      AND u.purpose = settled.purpose
""")
_GIVE_BACK = text("""
    WITH gone AS (
        DELETE FROM provider_reservation WHERE id = :id
        RETURNING provider, slot, purpose, calls, texts, tokens
    )
    UPDATE provider_usage u
    SET calls = u.calls - gone.calls, texts = u.texts - gone.texts,
        tokens = u.tokens - gone.tokens
    FROM gone
    WHERE u.provider = gone.provider AND u.slot = gone.slot AND u.purpose = gone.purpose
""")


async def settle(
    session: AsyncSession,
    reservation: int,
    *,
    calls: int | None = None,
    texts: int | None = None,
    tokens: int | None = None,
    free_texts: int = 0,
    free_tokens: int = 0,
) -> None:
    """The provider has answered: it counted the call before now, and so much, where that is known
    to differ from what was reserved.

    `free_…`: of that, in calls it refused: counted by its windows perhaps, but not paid for.
    """
    await session.execute(
        _SETTLE,
        {
            "id": reservation,
            "calls": calls,
            "texts": texts,
            "tokens": tokens,
            "free_texts": free_texts,
            "free_tokens": free_tokens,
        },
    )


async def give_back(session: AsyncSession, reservation: int) -> None:
    """The call was never made."""
    await session.execute(_GIVE_BACK, {"id": reservation})


_BLOCK = text("""
    INSERT INTO provider_budget AS b (provider, blocked_until, blocked_reason)
    VALUES (:provider, clock_timestamp() + make_interval(secs => :seconds), :reason)
    ON CONFLICT (provider) DO UPDATE
    SET blocked_until = excluded.blocked_until, blocked_reason = excluded.blocked_reason
    WHERE b.blocked_until IS NULL OR b.blocked_until < excluded.blocked_until
""")
_UNBLOCK = text("""
    UPDATE provider_budget SET blocked_until = NULL, blocked_reason = NULL
    WHERE provider = :provider AND blocked_until IS NOT NULL
""")


async def block(session: AsyncSession, provider: str, *, seconds: float, reason: str) -> None:
    """Nobody of the fleet calls the provider for so long; an earlier, longer block stays."""
    await session.execute(_BLOCK, {"provider": provider, "seconds": seconds, "reason": reason})


async def unblock(session: AsyncSession, provider: str) -> None:
    """The provider takes calls again."""
    await session.execute(_UNBLOCK, {"provider": provider})


# First the budget, then its sums, as `tickmind_reserve` comes to them: a statement for each.
_KNOW = text("INSERT INTO provider_budget (provider) VALUES (:provider) ON CONFLICT DO NOTHING")
_RECORD = text("""
    INSERT INTO provider_usage AS u (provider, slot, purpose, calls, texts, tokens)
    VALUES (:provider, CAST(floor(extract(epoch FROM clock_timestamp()) / 600) AS bigint),
            :purpose, :calls, :texts, :tokens)
    ON CONFLICT (provider, slot, purpose) DO UPDATE
    SET calls = u.calls + excluded.calls, texts = u.texts + excluded.texts,
        tokens = u.tokens + excluded.tokens
""")
_BLOCKED = text("""
    SELECT extract(epoch FROM blocked_until - clock_timestamp())::float8 AS wait_s, blocked_reason
    FROM provider_budget WHERE provider = :provider AND blocked_until > clock_timestamp()
""")


async def record(
    session: AsyncSession,
    provider: str,
    purpose: Purpose,
    *,
    calls: int,
    texts: int,
    tokens: int,
) -> None:
    """Calls that no limit had to allow."""
    await session.execute(_KNOW, {"provider": provider})
    await session.execute(
        _RECORD,
        {
            "provider": provider,
            "purpose": purpose,
            "calls": calls,
            "texts": texts,
            "tokens": tokens,
        },
    )


async def blocked(session: AsyncSession, provider: str) -> tuple[float, str] | None:
    """How many seconds nobody is to call, and why; None: calls are open."""
    row = (await session.execute(_BLOCKED, {"provider": provider})).one_or_none()
    return (row.wait_s, row.blocked_reason) if row else None


_WAITING = text("""
    SELECT count(*) FROM provider_ticket
    WHERE provider = :provider AND alive_until > clock_timestamp()
""")


async def waiting(session: AsyncSession, provider: str) -> int:
    """How many stand in line."""
    return int((await session.execute(_WAITING, {"provider": provider})).scalar_one())


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What was spent at one provider for one purpose."""

    provider: str
    purpose: str
    calls: int
    texts: int
    tokens: int


_USAGE = text("""
    SELECT provider, purpose, sum(calls) AS calls, sum(texts) AS texts, sum(tokens) AS tokens
    FROM provider_usage GROUP BY provider, purpose ORDER BY provider, purpose
""")


async def usage(session: AsyncSession) -> list[Usage]:
    """Everything spent so far."""
    return [
        Usage(
            provider=row.provider,
            purpose=row.purpose,
            calls=int(row.calls),
            texts=int(row.texts),
            tokens=int(row.tokens),
        )
        for row in (await session.execute(_USAGE)).all()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """A provider that nobody is to call for so many seconds, and why."""

    provider: str
    seconds: float
    reason: str


_ALL_BLOCKED = text("""
    SELECT provider, coalesce(blocked_reason, '') AS reason,
           CAST(extract(epoch FROM blocked_until - clock_timestamp()) AS float8) AS seconds
    FROM provider_budget WHERE blocked_until > clock_timestamp() ORDER BY provider
""")


async def all_blocked(session: AsyncSession) -> list[Blocked]:
    """Every provider that is blocked now."""
    return [Blocked(**row._asdict()) for row in (await session.execute(_ALL_BLOCKED)).all()]
