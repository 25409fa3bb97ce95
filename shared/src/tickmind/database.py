"""The way to PostgreSQL: one engine a process, sessions that read and sessions that write."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakSet

import asyncpg
from pgvector.asyncpg import register_vector
from sqlalchemy import Connection, event, text
from sqlalchemy.engine.interfaces import ExceptionContext
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from tickmind.database_errors import (
    DRIVER_ERRORS,
    DatabaseUnavailable,
    brief,
    is_of_the_drivers_state,
    is_transient,
    sqlstate,
)
from tickmind.database_url import address
from tickmind.schema import SCHEMA_VERSION
from tickmind.settings import DatabaseSettings
from tickmind.statement_spans import trace_statements
from tickmind.telemetry import log
from tickmind.tracing import tracing

__all__ = ["Database", "ended_within", "pgvector_version", "schema_fault", "server_version"]


_logger = logging.getLogger("tickmind.database")

# Ranking 1,000 memories takes 0.9 ms and planning it 1.1, each time anew: hence one plan for all.
# It is the right one only by nested loops over indexes; left to itself, PostgreSQL may join with
# all there is, and take 6 ms. An agent of 30,000 memories takes twice the time of its best plan
# (57 ms), where it is ranked exactly. (PostgreSQL 18, 384 dimensions.)
_LOOKUPS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_seqscan": "off",
}

#: A process that is frozen, or gone without a word, holds its locks no longer than this. Ours wait
#: for nothing within a transaction but PostgreSQL, and half a second for arithmetic.
IDLE_S = 60.0

#: A server that is there closes a connection within milliseconds.
_GOODBYE_S = 2.0


@asynccontextmanager
async def ended_within(most_s: float, database: Database) -> AsyncIterator[None]:
    """What takes longer, on a connection that died in silence maybe, is DatabaseUnavailable; the
    others that are as old are given up with it."""
    try:
        async with asyncio.timeout(most_s):
            yield
    except TimeoutError as exc:
        database.distrust()
        msg = f"PostgreSQL did not answer within {most_s:g} s"
        raise DatabaseUnavailable(msg) from exc


class Database:
    """One pool of connections. Nothing connects before the first session.

    `application`: the name shown in pg_stat_activity. `vectors`: whether the halfvec codec is
    wanted (the recorder and the migrations do without). `lookups`: all that is asked are few rows
    by key, so that a statement is planned once a connection (not so behind PgBouncer).
    """

    def __init__(
        self,
        settings: DatabaseSettings,
        *,
        application: str,
        vectors: bool = True,
        lookups: bool = False,
    ) -> None:
        url, arguments = address(settings)
        if settings.database_pgbouncer:
            # In transaction mode the next message may reach another server connection: keep no
            # prepared statement, and name none. One without a name the driver sends again with its
            # parameters; one with a name would be looked for where it never was.
            arguments |= {"statement_cache_size": 0, "prepared_statement_cache_size": 0}
        else:
            arguments["server_settings"] = {
                "application_name": application,
                "idle_in_transaction_session_timeout": str(round(IDLE_S * 1000)),
            }
            if lookups:
                arguments["server_settings"] |= _LOOKUPS
        arguments |= {"timeout": 10.0, "command_timeout": None}
        self.engine: AsyncEngine = create_async_engine(
            url,
            connect_args=arguments,
            pool_size=settings.database_pool_size,
            max_overflow=0,
            pool_timeout=settings.database_pool_timeout_s,
            pool_use_lifo=True,
            # Else errors quote what stands for placeholders: texts and vectors.
            hide_parameters=True,
        )
        #: Whether what holds for a session holds for one transaction only.
        self.pgbouncer = settings.database_pgbouncer
        # Made once: each making costs 0.1 ms, more than many a statement.
        self._autocommit = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        event.listen(self.engine.sync_engine, "handle_error", _drop_unusable)
        #: What was opened, for when it takes no leave.
        self._opened: WeakSet[asyncpg.Connection[asyncpg.Record]] = WeakSet()
        self._vectors = vectors
        event.listen(self.engine.sync_engine, "connect", self._connected)
        if tracing():
            trace_statements(self.engine.sync_engine)

    def _connected(self, dbapi_connection: Any, _record: Any) -> None:
        raw = dbapi_connection.driver_connection
        self._opened.add(raw)
        if not self._vectors:
            return
        try:
            dbapi_connection.run_async(_register)
        except BaseException:  # the pool does not know of it yet: nobody else would close it
            raw.terminate()
            raise

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncSession]:
        """One transaction: committed at the end, rolled back on any exception.

        Raises DatabaseUnavailable for what may pass; other errors as they are.
        """
        async with self._session(self.engine) as session, session.begin():
            yield session

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        """Single statements, each its own transaction (no BEGIN to wait for), nothing to commit.

        Raises DatabaseUnavailable for what may pass; other errors as they are.
        """
        async with self._session(self._autocommit) as session:
            yield session

    @asynccontextmanager
    async def _session(self, bind: AsyncEngine) -> AsyncIterator[AsyncSession]:
        try:
            async with AsyncSession(bind, expire_on_commit=False, autoflush=False) as session:
                yield session
        except (*DRIVER_ERRORS, SQLAlchemyError, OSError, TimeoutError) as exc:
            if is_transient(exc):
                msg = f"PostgreSQL is not able to serve this now ({brief(exc)})"
                raise DatabaseUnavailable(msg) from exc
            raise

    async def check(self) -> str | None:
        """What keeps the database from being used, in one sentence; None: nothing does."""
        try:
            async with self.reading() as session:
                connection = await session.connection()
                return await connection.run_sync(schema_fault)
        except DatabaseUnavailable as exc:
            return str(exc)
        except (
            *DRIVER_ERRORS,
            DBAPIError,
        ) as exc:  # a right that is missing, say: for a person to mend
            return f"PostgreSQL does not answer as it should ({brief(exc)})"

    def distrust(self) -> None:
        """Something did not answer: what was connected before now is connected anew before it is
        used, or each dead connection of a pool would be waited for in turn."""
        # As SQLAlchemy itself invalidates a pool, which it does only where the driver tells of a
        # loss (Pool._invalidate).
        self.engine.sync_engine.pool._invalidate_time = time.time()

    async def dispose(self) -> None:
        """Close what is idle. One that takes no leave (a connection that died in silence) is
        dropped after a moment."""
        try:
            async with asyncio.timeout(_GOODBYE_S):
                await self.engine.dispose()
        except TimeoutError:
            left = [raw for raw in self._opened if not raw.is_closed()]
            for raw in left:
                raw.terminate()
            log(_logger, logging.INFO, "connections_dropped", connections=len(left))
            await self.engine.dispose()


async def _register(connection: Any) -> None:
    schema = await connection.fetchval(
        "SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace"
        " WHERE e.extname = 'vector'"
    )
    if schema is not None:  # absent before the first migration
        await register_vector(connection, schema=schema)


def _drop_unusable(context: ExceptionContext) -> None:
    """A session stuck on a node that became read-only is closed, so that the pool moves on; and one
    that the driver cannot use, whose end it has not seen."""
    original = context.original_exception
    if sqlstate(original) == "25006" or is_of_the_drivers_state(original):
        context.is_disconnect = True
        context.invalidate_pool_on_disconnect = True


def server_version(connection: Connection) -> int:
    """PostgreSQL's version as a number, 150000 for 15.0."""
    return int(connection.exec_driver_sql("SHOW server_version_num").scalar_one())


def pgvector_version(connection: Connection) -> tuple[int, ...] | None:
    """The extension's version in this database; None: not installed."""
    found = connection.execute(
        text("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
    ).scalar_one_or_none()
    return tuple(int(part) for part in found.split(".")) if found else None


def schema_fault(connection: Connection) -> str | None:
    """Why the schema cannot be used, in one sentence; None: it can."""
    exists = connection.execute(text("SELECT to_regclass('alembic_version')")).scalar_one()
    found = (
        connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
        if exists
        else None
    )
    if found is None:
        return "the database has no tickmind schema yet: run tickmind migrate"
    if found < SCHEMA_VERSION:
        return f"the schema is at {found}, {SCHEMA_VERSION} is needed: run tickmind migrate"
    return None
