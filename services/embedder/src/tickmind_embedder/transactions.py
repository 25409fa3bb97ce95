"""Transactions that come to an end, whatever has become of the connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.database import Database, ended_within

__all__ = ["BACKFILL_S", "reading", "writing"]

#: Longest that a transaction of ours may take. All are short (measured: a sweep's chunk 40 ms on
#: two busy cores), but one may wait for others' turns: a deletion's, a chunk of a backfill.
_MOST_S = 60.0
#: Longest that marking all there is as pending may take, for the first space of a database: a
#: minute a million memories, measured on two busy cores.
BACKFILL_S = 600.0


@asynccontextmanager
async def writing(
    database: Database, *, most_s: float | None = None
) -> AsyncIterator[AsyncSession]:
    """As `Database.writing`; a connection that died in silence is DatabaseUnavailable as well."""
    async with ended_within(most_s or _MOST_S, database), database.writing() as session:
        yield session


@asynccontextmanager
async def reading(database: Database) -> AsyncIterator[AsyncSession]:
    """As `Database.reading`, ended likewise."""
    async with ended_within(_MOST_S, database), database.reading() as session:
        yield session
