"""Brings a database to the newest schema. Safe to start any number of times at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from tickmind.database import Database, pgvector_version, server_version
from tickmind.errors import ConfigurationError
from tickmind.schema import SCHEMA_LOCK, SCHEMA_VERSION
from tickmind.settings import DatabaseSettings
from tickmind.store.lexical import backfill
from tickmind_migrations.rights import grant
from tickmind_migrations.timeouts import LOCK_TIMEOUT_S, STATEMENT_TIMEOUT_S

__all__ = ["config", "upgrade"]

#: Older ones work and are warned about.
ADVISED_PGVECTOR = (0, 8, 4)

#: Longest wait for another migrator, and between two looks at it.
WAIT_S = 300.0
#: Older memories given their words at once: half a second.
MEMORIES_A_TRANSACTION = 2000
LOOK_AGAIN_S = 0.1


def config(connection: Connection) -> Config:
    """Alembic's configuration for one open connection."""
    cfg = Config()
    cfg.set_main_option("script_location", str(Path(__file__).parent))
    cfg.attributes["connection"] = connection
    return cfg


def _ensure_extension(connection: Connection, report: Callable[[str], None]) -> None:
    """pgvector installed, new enough; ConfigurationError with what to type where it cannot be."""
    if pgvector_version(connection) is None:
        try:
            connection.exec_driver_sql("CREATE EXTENSION IF NOT EXISTS vector")
            connection.commit()
        except DBAPIError as exc:
            connection.rollback()
            if pgvector_version(connection) is not None:  # another migrator was faster
                return
            code = getattr(exc.orig, "sqlstate", None)
            if code == "42501":
                msg = (
                    "this role may not create the pgvector extension: have a superuser run"
                    " CREATE EXTENSION vector; in this database once, then migrate again"
                )
            elif code in ("0A000", "58P01"):
                msg = (
                    "this PostgreSQL server does not have pgvector: install the package"
                    " postgresql-<version>-pgvector there, then migrate again"
                )
            else:
                raise
            raise ConfigurationError(msg) from exc
    version = pgvector_version(connection)
    if version is not None and version < (0, 7):
        found = ".".join(map(str, version))
        msg = f"pgvector {found} is too old: 0.7 or newer is needed (ALTER EXTENSION vector UPDATE)"
        raise ConfigurationError(msg)
    if version is not None and version < ADVISED_PGVECTOR:
        found, advised = (".".join(map(str, v)) for v in (version, ADVISED_PGVECTOR))
        report(f"pgvector {found} works; {advised} or newer is advised, for its mended faults")


# JIT compiles for 100 ms what runs in 3; a generic plan turned 3 ms into 740. Set with each
# migration, since a copy or restore of a database comes without its settings.
_PLANNING = """
    DO $$ BEGIN
        EXECUTE format('ALTER DATABASE %I SET jit = off', current_database());
        EXECUTE format('ALTER DATABASE %I SET plan_cache_mode = force_custom_plan',
                       current_database());
    EXCEPTION WHEN insufficient_privilege THEN
        ALTER ROLE CURRENT_USER SET jit = off;
        ALTER ROLE CURRENT_USER SET plan_cache_mode = force_custom_plan;
    END $$
"""


async def _lock(connection: AsyncConnection) -> None:
    """Wait for our turn among migrators, outside any transaction: one that waits inside holds a
    snapshot, and CREATE INDEX CONCURRENTLY in the migration of another would wait for it."""
    until = time.monotonic() + WAIT_S
    key = {"key": SCHEMA_LOCK}
    while not await connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), key):
        await connection.rollback()
        if time.monotonic() > until:
            msg = (
                "another migration, or an HNSW index that is being built, has held the lock for"
                f" {WAIT_S:g} s: see what it waits for, then migrate again"
            )
            raise ConfigurationError(msg)
        await asyncio.sleep(LOOK_AGAIN_S)
    await connection.commit()


def _upgrade(connection: Connection, report: Callable[[str], None]) -> None:
    if server_version(connection) < 150000:
        msg = "PostgreSQL 15 or newer is needed"
        raise ConfigurationError(msg)
    connection.exec_driver_sql(f"SET statement_timeout = '{STATEMENT_TIMEOUT_S}s'")
    connection.exec_driver_sql(f"SET lock_timeout = '{LOCK_TIMEOUT_S}s'")
    connection.commit()
    _ensure_extension(connection, report)
    before = MigrationContext.configure(connection).get_current_revision()
    connection.commit()
    if before is not None and before > SCHEMA_VERSION:
        grant(connection)
        connection.commit()
        report(f"the schema is at {before}, newer than this release's {SCHEMA_VERSION}: kept")
        return
    command.upgrade(config(connection), SCHEMA_VERSION)
    connection.exec_driver_sql(_PLANNING)
    # Once more, for roles that came after the tables.
    grant(connection)
    connection.commit()
    report(
        f"the schema was at {SCHEMA_VERSION} already"
        if before == SCHEMA_VERSION
        else f"the schema went from {before or 'nothing'} to {SCHEMA_VERSION}"
    )


async def _fill_words(database: Database, report: Callable[[str], None]) -> None:
    """Give memories their words that were recorded before there were any, or by a recorder of a
    release before, in short transactions: it may be interrupted and begun again."""
    after, filled = 0, 0
    while True:
        async with database.writing() as session:
            done = await backfill(session, after=after, most=MEMORIES_A_TRANSACTION)
        if done is None:
            break
        after, filled = done.last, filled + done.filled
    if filled:
        report(f"{filled} older memories can be found by their words now")


async def upgrade(settings: DatabaseSettings, report: Callable[[str], None]) -> None:
    """Migrate to the newest schema. Raises ConfigurationError; the driver's errors pass through.

    Needs a direct connection: the advisory lock belongs to a session, which PgBouncer in
    transaction mode does not keep.
    """
    database = Database(settings, application="tickmind-migrate", vectors=False)
    try:
        async with database.engine.connect() as connection:
            await _lock(connection)
            # The lock belongs to this session and goes with it, whatever happens.
            await connection.run_sync(_upgrade, report)
            await _fill_words(database, report)
    finally:
        # asyncpg closes in the background; shielded, so that Ctrl-C leaves nothing half open.
        await asyncio.shield(database.dispose())
