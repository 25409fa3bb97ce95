"""Statements of recalls, sent by the driver itself: compiling, binding and wrapping them by
SQLAlchemy was a fifth of what a recall costs the retriever.

Its pool, transactions and errors stay. And a statement that a deadline cuts off costs no
connection: SQLAlchemy drops the one that a cancelled task used, and making another takes more than
the statement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import asyncpg
from sqlalchemy import text
from sqlalchemy.dialects.postgresql.asyncpg import dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from tickmind.database_errors import DRIVER_ERRORS
from tickmind.statement_spans import statement_span

__all__ = ["Statement", "fetch", "numbered"]

#: PostgreSQL ends a statement within milliseconds of being told to. What has not ended by then is
#: on a connection that died in silence.
_END_S = 1.0
_DIALECT = dialect()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """SQL with numbers for its parameters, and their names in that order."""

    sql: str
    names: tuple[str, ...]


def numbered(sql: str) -> Statement:
    """From SQL with `:name` for each parameter, each with a CAST or where its type is plain."""
    compiled = text(sql).compile(dialect=_DIALECT)
    return Statement(sql=compiled.string, names=tuple(compiled.positiontup or ()))


async def fetch(
    session: AsyncSession, asked: Statement, parameters: Mapping[str, object]
) -> Sequence[asyncpg.Record]:
    """The rows; in a transaction, where one has begun by another statement. Cancelled, it ends
    the statement in PostgreSQL and keeps the connection. Raises DBAPIError, and where the
    connection breaks OSError or what the driver says of its state."""
    connection = await session.connection()
    raw: asyncpg.Connection[asyncpg.Record] | None
    raw = (await connection.get_raw_connection()).driver_connection
    assert raw is not None
    values = [parameters[name] for name in asked.names]
    try:
        with statement_span(connection.engine.url, asked.sql):
            rows: list[asyncpg.Record] = await raw.fetch(asked.sql, *values)
            return rows
    except asyncio.CancelledError:
        await _ended(connection, raw)
        raise
    except (*DRIVER_ERRORS, OSError) as exc:
        if raw.is_closed() or not _is_of_the_statement(exc):
            # SQLAlchemy sees for itself, and drops whatever else died with the server.
            await connection.exec_driver_sql("SELECT 1")
        if isinstance(exc, OSError):
            raise
        raise DBAPIError(None, None, exc, connection_invalidated=raw.is_closed()) from exc


def _is_of_the_statement(exc: Exception) -> bool:
    """Whether the connection is as good as before. 08: it broke; 57P: the server is going down."""
    code = getattr(exc, "sqlstate", None)
    return isinstance(code, str) and not code.startswith(("08", "57P"))


async def _ended(connection: AsyncConnection, raw: asyncpg.Connection[asyncpg.Record]) -> None:
    """Wait until PostgreSQL has ended the statement that the driver told it to cancel; a connection
    on which it does not is dropped."""
    try:
        async with asyncio.timeout(_END_S):
            await raw.execute("SELECT 1")
    except (TimeoutError, *DRIVER_ERRORS, OSError):
        await connection.invalidate()
