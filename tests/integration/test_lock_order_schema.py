"""What changes the schema, beside services and beside another that does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest
from alembic import command
from pydantic import SecretStr
from sqlalchemy import Connection, text

from tests.interleaving import crossed, waiting_for_locks
from tests.remembering import counted, known, remember
from tests.running import eventually
from tickmind.cli import hnsw_indexes
from tickmind.cli.hnsw_indexes import Index
from tickmind.database import Database
from tickmind.local.postgres import LocalPostgres
from tickmind.reindexing import Reindexing
from tickmind.settings import DatabaseSettings
from tickmind.store.spaces import Space
from tickmind_migrations import config, upgrade

_SPACE = Space(model="hash", dimensions=64)


@pytest.fixture
async def old(postgres: LocalPostgres) -> AsyncIterator[DatabaseSettings]:
    """A database without anything in it."""
    await postgres.create_database("old")
    yield DatabaseSettings(database_url=SecretStr(postgres.database_url("old")))
    await postgres.drop_database("old")


async def _to(settings: DatabaseSettings, revision: str) -> None:
    database = Database(settings, application="test", vectors=False)

    def up(connection: Connection) -> None:
        connection.exec_driver_sql("CREATE EXTENSION IF NOT EXISTS vector")
        connection.commit()
        command.upgrade(config(connection), revision)
        connection.commit()

    async with database.engine.connect() as connection:
        await connection.run_sync(up)
    await database.dispose()


async def test_services_read_spaces_while_they_are_altered(old: DatabaseSettings) -> None:
    """A reader locks one table after the other, and so did the migration, in the other order."""
    await _to(old, "0002")
    database = Database(old, application="test", vectors=False)

    async def read() -> None:
        async with database.reading() as session:
            await session.execute(
                text("SELECT FROM index_generation g JOIN embedding_space s ON s.id = g.space_id")
            )

    await crossed(
        database,
        "LOCK TABLE embedding_space IN ACCESS SHARE MODE",
        lambda: upgrade(old, lambda _: None),
        read,
    )
    assert await database.check() is None
    await database.dispose()


@pytest.mark.parametrize("revision", ["0003", "0004"])
async def test_index_is_built_behind_a_transaction_that_outlasts_the_lock_timeout(
    old: DatabaseSettings, revision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dump, say: nobody queues behind the index, so it may wait."""
    await _to(old, revision)
    for module in ("tickmind_migrations", "tickmind_migrations.timeouts"):
        monkeypatch.setattr(f"{module}.LOCK_TIMEOUT_S", 0.2)
    database = Database(old, application="test", vectors=False)
    async with database.engine.connect() as dump:
        await dump.execution_options(isolation_level="REPEATABLE READ")
        await dump.execute(text("SELECT FROM world"))
        migrating = asyncio.create_task(upgrade(old, lambda _: None))
        await waiting_for_locks(database, 1, unless=migrating)
        done, _ = await asyncio.wait({migrating}, timeout=1.0)
        assert not done, migrating.exception()
    await migrating
    assert await database.check() is None
    await database.dispose()


async def _large_agents(database: Database) -> None:
    random = np.random.default_rng(1)
    names = [f"saw {n}" for n in range(40)]
    await known(database, {}, _SPACE)
    for agent in ("alice", "bob"):
        await remember(database, names, agent=agent, tick=range(40))
    vectors = {name: random.normal(size=64).astype(np.float32) for name in names}
    await known(database, vectors, _SPACE)
    assert await Reindexing(database.writing).build() is not None


async def test_indexes_are_made_and_dropped_by_several_at_once(
    database: Database, database_settings: DatabaseSettings
) -> None:
    """Each waits for whoever began to read before it: not for one that waits for it."""
    await _large_agents(database)

    async def add(agent: str) -> Index:
        return await hnsw_indexes.added(database_settings, "town", agent, force=True)

    async with database.writing() as session:
        # What the first index waits for while the second comes.
        await session.execute(text("UPDATE recall_index SET importance = importance"))
        first = asyncio.create_task(add("alice"))
        await waiting_for_locks(database, 1)
        others = [
            asyncio.create_task(add("bob")),
            asyncio.create_task(upgrade(database_settings, lambda _: None)),
        ]
        asked = "pg_stat_activity WHERE query LIKE '%pg_try_advisory_lock%' AND state = 'idle'"
        build = "pg_stat_activity WHERE query LIKE 'CREATE INDEX CONCURRENTLY%'"
        # The second builder has come: it waits for the first, by whatever means.
        come = (
            f"(SELECT 1 WHERE (SELECT count(*) FROM {asked}) >= 2"
            f" OR (SELECT count(*) FROM {build}) >= 2) AS come"
        )
        await eventually(
            lambda: counted(database, come), lambda found: found > 0, what="a second builder"
        )
    made = await asyncio.gather(first, *others)
    assert [index.state for index in made[:2] if index is not None] == ["used", "used"]
    names = await asyncio.gather(
        hnsw_indexes.dropped(database_settings, "town", "alice"),
        hnsw_indexes.dropped(database_settings, "town", "bob"),
    )
    assert sum(map(len, names)) == 2
    assert await counted(database, "pg_class WHERE relname LIKE 'hnsw_recall_index_%'") == 0
