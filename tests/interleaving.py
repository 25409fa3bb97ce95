"""Two transactions made to meet: each has locked something before the other can go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import text

from tests.remembering import counted
from tests.running import eventually
from tickmind.database import Database

__all__ = ["crossed", "deadlocks", "waiting_for_locks"]

_WAITING = "pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def waiting_for_locks(
    database: Database, number: int, *, unless: asyncio.Future[Any] | None = None
) -> None:
    """Wait until so many sessions wait for a lock; `unless`: or this has ended without one."""

    async def waiting() -> int:
        if unless is not None and unless.done():
            return number
        return await counted(database, _WAITING)

    await eventually(waiting, lambda now: now >= number, what="sessions that wait for a lock")


async def crossed(
    database: Database,
    gate: str,
    first: Callable[[], Awaitable[Any]],
    second: Callable[[], Awaitable[Any]],
) -> tuple[Any, Any]:
    """What both return. `gate`: SQL that locks what `first` comes to after it has locked something
    else; both go on once the second waits, too. One that ends without waiting is not waited for.
    Raises what either raises."""
    async with database.writing() as session:
        await session.execute(text(gate))
        one = asyncio.ensure_future(first())
        await waiting_for_locks(database, 1, unless=one)
        other = asyncio.ensure_future(second())
        await waiting_for_locks(database, 2, unless=other)
    ended = await asyncio.gather(one, other, return_exceptions=True)
    for result in ended:
        if isinstance(result, BaseException):
            raise result
    return ended[0], ended[1]


async def deadlocks(database: Database) -> int:
    """How many PostgreSQL has counted in this database."""
    async with database.reading() as session:
        found = await session.execute(
            text("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        )
        return int(found.scalar_one())
