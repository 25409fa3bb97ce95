"""Transactions that do not end: nobody waits for them for ever, and a person is told what to do."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text

from tests.interleaving import waiting_for_locks
from tests.remembering import counted, insert, remember
from tests.running import eventually
from tickmind import database as database_module
from tickmind.cli.servers import CommandFailed, open_database
from tickmind.database import Database
from tickmind.database_errors import DatabaseUnavailable
from tickmind.settings import DatabaseSettings
from tickmind.store import locking, removal
from tickmind.store.spaces import Space, ensure_space


async def test_recorders_do_not_wait_behind_one_who_waits_for_them(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is stuck costs the others a moment, not their time until it ends."""
    monkeypatch.setattr(locking, "RECORDERS_END_S", 1.0)
    async with database.writing() as session:
        await ensure_space(session, Space(model="test", dimensions=8))
    async with database.writing() as stuck:
        await insert(stuck, ["a"], agent="stuck")

        async def since() -> None:
            async with database.writing() as session:
                await removal.since_now(session)

        waiting = asyncio.create_task(since())
        await waiting_for_locks(database, 1)
        await remember(database, ["b"], world="other")
        with pytest.raises(DatabaseUnavailable, match="lock timeout"):
            await waiting
    assert await counted(database, "memory") == 2


async def test_transaction_that_is_left_open_is_ended(
    database: Database, database_settings: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a process that was frozen, say, with its locks."""
    await remember(database, ["a"])
    monkeypatch.setattr(database_module, "IDLE_S", 0.2)
    frozen = Database(database_settings, application="frozen")

    async def freeze() -> None:
        async with frozen.writing() as session:
            await session.execute(text("SELECT FROM memory FOR UPDATE"))
            await eventually(
                lambda: counted(database, "pg_stat_activity WHERE application_name = 'frozen'"),
                lambda there: there == 0,
                what="the session",
            )
            await session.execute(text("SELECT 1"))

    with pytest.raises(DatabaseUnavailable):
        await freeze()
    async with database.writing() as session:
        await session.execute(text("SELECT FROM memory FOR UPDATE NOWAIT"))
    await frozen.dispose()


async def test_command_whose_connection_breaks_says_what_to_do(
    database_settings: DatabaseSettings,
) -> None:
    with pytest.raises(CommandFailed, match="what is done stays done, run this again"):
        async with open_database(database_settings) as pool, pool.writing() as session:
            await session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
