"""The fleet's budget, as replicas come to its rows in the order that would be a deadlock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tests.interleaving import crossed, deadlocks
from tests.remembering import counted
from tickmind.budget import Budget, Reserved
from tickmind.database import Database
from tickmind.database_errors import DatabaseUnavailable
from tickmind.limits import Limit
from tickmind.settings import DatabaseSettings
from tickmind.store import budget as store

_PROVIDER = "api/model"


class _Away(Database):
    """A database that is away while it is told to be."""

    away = True

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncSession]:
        if self.away:
            raise DatabaseUnavailable("away")
        async with super().writing() as session:
            yield session


async def _reserved(database: Database, slot: int) -> int:
    """A call that was allowed in so many tenths of minutes; its reservation."""
    async with database.writing() as session:
        await session.execute(
            text("INSERT INTO provider_budget VALUES (:provider) ON CONFLICT DO NOTHING"),
            {"provider": _PROVIDER},
        )
        await session.execute(
            text(
                "INSERT INTO provider_usage VALUES (:provider, :slot, 'documents', 1, 5, 50)"
                " ON CONFLICT (provider, slot, purpose) DO UPDATE SET texts = provider_usage.texts"
                " + 5, tokens = provider_usage.tokens + 50, calls = provider_usage.calls + 1"
            ),
            {"provider": _PROVIDER, "slot": slot},
        )
        found = await session.execute(
            text(
                "INSERT INTO provider_reservation (provider, counted_at, purpose, slot, calls,"
                " texts, tokens) VALUES (:provider, now(), 'documents', :slot, 1, 5, 50)"
                " RETURNING id"
            ),
            {"provider": _PROVIDER, "slot": slot},
        )
        return int(found.scalar_one())


async def test_two_replicas_settle_what_they_owe_of_two_times(
    database: Database, database_settings: DatabaseSettings
) -> None:
    """Calls of before and after the full ten minutes, answered in another order."""
    first_slot, second_slot = 1, 2
    mine = [await _reserved(database, slot) for slot in (second_slot, first_slot)]
    theirs = [await _reserved(database, slot) for slot in (first_slot, second_slot)]
    budgets: list[tuple[Budget, _Away]] = []
    for owed in (mine, theirs):
        behind = _Away(database_settings, application="test")
        budget = Budget(behind, _PROVIDER, ())
        for reservation in owed:
            await budget.settle(Reserved(id=reservation, texts=5, tokens=50), tokens=40)
        behind.away = False
        budgets.append((budget, behind))
    (one, _), (other, _) = budgets
    await crossed(
        database,
        f"SELECT FROM provider_reservation WHERE id = {mine[1]} FOR UPDATE",
        one.close,
        other.close,
    )
    assert await deadlocks(database) == 0
    assert await counted(database, "provider_usage WHERE tokens = 80") == 2
    for _, behind in budgets:
        await behind.dispose()


async def test_calls_are_booked_while_others_are_reserved(database: Database) -> None:
    """By a replica whose settings name no limit yet."""
    async with database.writing() as session:
        await store.record(session, _PROVIDER, "documents", calls=1, texts=1, tokens=1)
        await session.execute(  # of one that is dead, for the line to be held at
            text("INSERT INTO provider_ticket VALUES (:provider, 0, '-infinity', 1, 1, 1)"),
            {"provider": _PROVIDER},
        )

    async def reserve() -> object:
        async with database.writing() as session:
            return await store.reserve(
                session,
                _PROVIDER,
                "documents",
                limits=(Limit(amount=1000, unit="texts", window_s=60),),
                tokens=[10],
                floor=1,
                guard_s=0.25,
                kept=0.1,
                ticket=None,
            )

    async def record() -> None:
        async with database.writing() as session:
            await store.record(session, _PROVIDER, "documents", calls=1, texts=1, tokens=1)

    gate = "SELECT FROM provider_ticket WHERE ticket = 0 FOR UPDATE"
    await crossed(database, gate, reserve, record)
    assert await counted(database, "provider_usage WHERE calls = 3 AND texts = 3") == 1
