"""Migrations: what they build, that the metadata says the same, and who may run them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from pydantic import SecretStr
from sqlalchemy import Connection, text

from tickmind.database import Database, schema_fault
from tickmind.errors import ConfigurationError
from tickmind.local.postgres import LocalPostgres
from tickmind.schema import SCHEMA_VERSION
from tickmind.settings import DatabaseSettings
from tickmind.tables import metadata
from tickmind_migrations import config, upgrade

_numbers = itertools.count(1)


@pytest.fixture
async def empty(postgres: LocalPostgres) -> AsyncIterator[DatabaseSettings]:
    """A database without anything in it."""
    name = f"empty_{next(_numbers)}"
    await postgres.create_database(name)
    yield DatabaseSettings(database_url=SecretStr(postgres.database_url(name)))
    await postgres.drop_database(name)


async def _run(settings: DatabaseSettings, *statements: str) -> None:
    database = Database(settings, application="test", vectors=False)
    async with database.writing() as session:
        for statement in statements:
            await session.execute(text(statement))
    await database.dispose()


async def _catalogue(settings: DatabaseSettings) -> set[Any]:
    """Every column, constraint and index of our tables, as PostgreSQL tells them."""
    database = Database(settings, application="test", vectors=False)
    async with database.reading() as session:
        rows = await session.execute(
            text("""
                SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
                       a.attstorage::text, pg_get_expr(d.adbin, d.adrelid)
                FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
                LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
                WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
                  AND a.attnum > 0 AND NOT a.attisdropped
                UNION ALL
                SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid), NULL, NULL,
                       NULL
                FROM pg_constraint WHERE connamespace = 'public'::regnamespace
                UNION ALL
                SELECT tablename, indexname, indexdef, NULL, NULL, NULL
                FROM pg_indexes WHERE schemaname = 'public'
            """)
        )
        found = {tuple(row) for row in rows}
    await database.dispose()
    return found


async def test_the_metadata_says_what_the_migrations_build(database: Database) -> None:
    """Types, nullability, keys, indexes and defaults, both ways."""

    def differences(connection: Connection) -> list[Any]:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        return list(compare_metadata(context, metadata))

    async with database.engine.connect() as connection:
        assert await connection.run_sync(differences) == []


async def test_check_constraints_and_included_columns_are_what_the_metadata_says(
    database: Database,
) -> None:
    """What the comparison by the migration tool leaves out."""
    async with database.reading() as session:
        checks = set(
            await session.scalars(
                text("SELECT conname FROM pg_constraint WHERE contype = 'c' AND conrelid <> 0")
            )
        )
        on_delete = set(
            await session.scalars(
                text("SELECT confdeltype::text FROM pg_constraint WHERE contype = 'f'")
            )
        )
        included = set(
            await session.scalars(
                text("""
                    SELECT a.attname FROM pg_index i
                    JOIN pg_attribute a ON a.attrelid = i.indrelid
                     AND a.attnum = ANY(i.indkey[i.indnkeyatts:])
                    WHERE i.indexrelid =
                          'ix_recall_index_generation_id_agent_id_tick'::regclass
                """)
            )
        )

    described = {
        str(constraint.name)
        for table in metadata.tables.values()
        for constraint in table.constraints
        if constraint.__visit_name__ == "table_or_column_check_constraint"
        or constraint.__visit_name__ == "check_constraint"
    }
    assert checks == described
    assert on_delete == {"c"}  # each cascades
    index = next(iter(metadata.tables["recall_index"].indexes))
    assert included == set(index.dialect_options["postgresql"]["include"])


async def test_upgrading_again_changes_nothing(empty: DatabaseSettings) -> None:
    told: list[str] = []

    await upgrade(empty, told.append)
    first = await _catalogue(empty)
    await upgrade(empty, told.append)

    assert await _catalogue(empty) == first
    assert told == [
        f"the schema went from nothing to {SCHEMA_VERSION}",
        f"the schema was at {SCHEMA_VERSION} already",
    ]


async def test_downgrading_takes_everything_and_upgrading_brings_it_back(
    empty: DatabaseSettings,
) -> None:
    await upgrade(empty, lambda _: None)
    built = await _catalogue(empty)

    def down(connection: Connection) -> None:
        command.downgrade(config(connection), "base")
        connection.commit()

    database = Database(empty, application="test", vectors=False)
    async with database.engine.connect() as connection:
        await connection.run_sync(down)
    await database.dispose()
    assert {row[0] for row in await _catalogue(empty)} == {"alembic_version"}

    await upgrade(empty, lambda _: None)
    assert await _catalogue(empty) == built


async def test_five_migrators_at_once_all_succeed(empty: DatabaseSettings) -> None:
    """case 41: one migrates, the others find it done."""
    told: list[str] = []

    await asyncio.gather(*(upgrade(empty, told.append) for _ in range(5)))

    assert sorted(told) == [f"the schema was at {SCHEMA_VERSION} already"] * 4 + [
        f"the schema went from nothing to {SCHEMA_VERSION}"
    ]


async def test_a_newer_schema_is_kept(empty: DatabaseSettings) -> None:
    """An older release deployed again: its services work with the newer schema."""
    await upgrade(empty, lambda _: None)
    await _run(empty, "UPDATE alembic_version SET version_num = '9999'")
    told: list[str] = []

    await upgrade(empty, told.append)

    assert told == [f"the schema is at 9999, newer than this release's {SCHEMA_VERSION}: kept"]
    database = Database(empty, application="test", vectors=False)
    assert await database.check() is None
    await database.dispose()


async def test_readiness_tells_a_schema_that_is_absent_or_old(
    empty: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(empty, application="test", vectors=False)
    assert await database.check() == (
        "the database has no tickmind schema yet: run tickmind migrate"
    )

    await upgrade(empty, lambda _: None)
    assert await database.check() is None

    await _run(empty, "UPDATE alembic_version SET version_num = '0000'")
    async with database.engine.connect() as connection:
        fault = await connection.run_sync(schema_fault)
    assert fault == f"the schema is at 0000, {SCHEMA_VERSION} is needed: run tickmind migrate"
    await database.dispose()


class _Role:
    """A role that owns its database, and may not create extensions."""

    def __init__(self, server: LocalPostgres, name: str) -> None:
        self._server = server
        self.name = name

    @property
    def settings(self) -> DatabaseSettings:
        return DatabaseSettings(
            database_host=str(self._server.socket_dir),
            database_user=self.name,
            database_name=self.name,
        )

    @property
    def superuser(self) -> DatabaseSettings:
        return DatabaseSettings(database_url=SecretStr(self._server.database_url(self.name)))


@pytest.fixture
async def role(postgres: LocalPostgres) -> AsyncIterator[_Role]:
    plain = _Role(postgres, f"plain_{next(_numbers)}")
    server = DatabaseSettings(database_url=SecretStr(postgres.url))
    await _run(server, f"CREATE ROLE {plain.name} LOGIN")
    await postgres.create_database(plain.name)
    # pgvector is marked as trusted: its owner may create it, unless that is taken away.
    await _run(
        plain.superuser,
        f"REVOKE CREATE ON DATABASE {plain.name} FROM PUBLIC",
        f"GRANT CREATE ON SCHEMA public TO {plain.name}",
    )
    yield plain
    await postgres.drop_database(plain.name)
    await _run(server, f"DROP ROLE {plain.name}")


async def test_a_role_that_may_not_create_the_extension_migrates_where_it_is(role: _Role) -> None:
    """case 42: pre-created, by a superuser and in a schema of its own."""
    await _run(
        role.superuser,
        "CREATE SCHEMA extensions",
        f"GRANT USAGE ON SCHEMA extensions TO {role.name}",
        "CREATE EXTENSION vector SCHEMA extensions",
    )

    await upgrade(role.settings, lambda _: None)

    database = Database(role.settings, application="test")
    assert await database.check() is None
    await database.dispose()


async def test_a_role_that_may_not_create_the_extension_is_told_who_can(role: _Role) -> None:
    """case 42: absent: one clear message, and nothing half built."""
    with pytest.raises(ConfigurationError) as caught:
        await upgrade(role.settings, lambda _: None)

    assert str(caught.value) == (
        "this role may not create the pgvector extension: have a superuser run"
        " CREATE EXTENSION vector; in this database once, then migrate again"
    )
    assert await _catalogue(role.superuser) == set()


async def test_settings_that_queries_rely_on_hold_for_new_sessions(
    empty: DatabaseSettings,
) -> None:
    """JIT off and custom plans, for whoever connects, without startup parameters."""
    await upgrade(empty, lambda _: None)

    database = Database(empty, application="test")
    async with database.reading() as session:
        jit = (await session.execute(text("SHOW jit"))).scalar_one()
        plans = (await session.execute(text("SHOW plan_cache_mode"))).scalar_one()
    await database.dispose()

    assert (jit, plans) == ("off", "force_custom_plan")
