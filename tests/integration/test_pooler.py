"""Behind a pooler in transaction mode, which may hand each statement to another server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text

from tests.integration.test_recall_choice import embedded
from tests.pooler import pooler
from tests.remembering import remember
from tests.retrieving import contents, retriever_settings, retrieving
from tickmind.database import Database
from tickmind.driver import fetch, numbered
from tickmind.local.postgres import LocalPostgres
from tickmind.settings import DatabaseSettings

_TWICE = "SELECT CAST(:n AS int) + CAST(:n AS int) AS twice, pg_backend_pid() AS server"


@pytest.fixture
async def pooled(postgres: LocalPostgres, database: Database) -> AsyncIterator[DatabaseSettings]:
    """The test's database, behind such a pooler."""
    async with pooler(postgres.socket_dir / ".s.PGSQL.5432") as port:
        yield DatabaseSettings(
            database_host="127.0.0.1",
            database_port=port,
            database_user="postgres",
            database_name=database.engine.url.database or "",
            database_sslmode="disable",
            database_pgbouncer=True,
            database_pool_size=1,
        )


async def test_statements_need_no_server_of_their_own(pooled: DatabaseSettings) -> None:
    """case 40: neither those that the driver sends, nor SQLAlchemy's, by themselves or in a
    transaction."""
    pool = Database(pooled, application="test")
    try:
        servers = set()
        async with pool.reading() as session:
            for n in range(4):
                (row,) = await fetch(session, numbered(_TWICE), {"n": n})
                assert row["twice"] == 2 * n
                servers.add(row["server"])
                found = (await session.execute(text(_TWICE), {"n": n})).one()
                assert found.twice == 2 * n
                servers.add(found.server)
        assert len(servers) == 2
        async with pool.writing() as session:
            servers = {
                (await session.execute(text(_TWICE), {"n": n})).one().server for n in range(4)
            }
            servers |= {(await fetch(session, numbered(_TWICE), {"n": 1}))[0]["server"]}
        assert len(servers) == 1
    finally:
        await pool.dispose()


async def test_recalls_and_recording_work_behind_it(
    database: Database, database_settings: DatabaseSettings, pooled: DatabaseSettings
) -> None:
    """case 40: vectors' types, transactions and ranking."""
    await embedded(database, ["Bob sells fish", "I saw rain"])
    pool = Database(pooled, application="test")
    try:
        async with retrieving(pool, retriever_settings(database_settings)) as retriever:
            for n in range(4):
                await remember(pool, [f"Carol told me of {n} mackerels"], tick=n)
                reply = await retriever.recall(
                    ("alice", f"{n} mackerels"), ("alice", "fish"), deadline_ms=60_000, explain=True
                )
                assert [answer.status for answer in reply.replies] == ["ok", "ok"]
                assert f"Carol told me of {n} mackerels" in contents(reply)[0]
    finally:
        await pool.dispose()
