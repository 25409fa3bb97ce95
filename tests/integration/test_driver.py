"""Statements sent by the driver: rows, what cutting one off costs, and what failing ones are."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from tests.proxy import door
from tests.running import eventually
from tickmind.database import Database
from tickmind.database_errors import DatabaseUnavailable
from tickmind.driver import fetch, numbered
from tickmind.local.postgres import LocalPostgres
from tickmind.settings import DatabaseSettings

_TWICE = numbered("SELECT CAST(:n AS int) + CAST(:n AS int) AS twice, CAST(:word AS text) AS word")
_SERVER = numbered("SELECT pg_backend_pid()")
_SLEEP = numbered("SELECT pg_sleep(CAST(:seconds AS float8))")
_BY_ZERO = numbered("SELECT 1 / CAST(:n AS int)")


def _pool(settings: DatabaseSettings, **options: object) -> Database:
    given = settings.model_dump(exclude_unset=True) | {"database_pool_size": 1} | options
    return Database(DatabaseSettings.model_validate(given), application="driver-under-test")


async def _server(session: AsyncSession) -> int:
    (row,) = await fetch(session, _SERVER, {})
    return int(row[0])


@pytest.mark.parametrize("pgbouncer", [False, True], ids=["direct", "behind a pooler"])
async def test_parameters_go_by_name_and_rows_come_in_order(
    database_settings: DatabaseSettings, pgbouncer: bool
) -> None:
    pool = _pool(database_settings, database_pgbouncer=pgbouncer)
    async with pool.reading() as session:
        for n in range(3):
            rows = await fetch(session, _TWICE, {"word": "fish", "n": n, "unused": None})
            assert [tuple(row) for row in rows] == [(2 * n, "fish")]
    await pool.dispose()


async def test_statement_that_is_cut_off_ends_in_postgresql_and_leaves_its_connection(
    database: Database, database_settings: DatabaseSettings
) -> None:
    pool = _pool(database_settings)
    async with pool.reading() as session:
        before = await _server(session)

    async def sleep() -> None:
        async with pool.reading() as session:
            await fetch(session, _SLEEP, {"seconds": 60.0})

    for _ in range(3):
        sleeping = asyncio.create_task(sleep())
        await eventually(lambda: _active(database), lambda n: n == 1, what="the statement")
        sleeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeping
        assert await _active(database) == 0
    async with pool.reading() as session:
        assert await _server(session) == before
    await pool.dispose()


async def _active(database: Database) -> int:
    query = text(
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'active'"
        " AND application_name = 'driver-under-test'"
    )
    async with database.reading() as session:
        return int((await session.execute(query)).scalar_one())


async def test_statement_that_postgresql_refuses_raises_as_others_do(
    database_settings: DatabaseSettings,
) -> None:
    pool = _pool(database_settings)
    async with pool.reading() as session:
        before = await _server(session)
    with pytest.raises(DBAPIError, match="division by zero"):
        async with pool.reading() as session:
            await fetch(session, _BY_ZERO, {"n": 0})
    async with pool.reading() as session:
        assert await _server(session) == before
    await pool.dispose()


async def test_server_that_ends_sessions_is_unavailable_once(
    database: Database, database_settings: DatabaseSettings
) -> None:
    """Whatever else was connected is not tried either."""
    pool = _pool(database_settings, database_pool_size=3)

    async def together() -> list[int]:
        meeting = asyncio.Barrier(3)

        async def one() -> int:
            async with pool.reading() as session:
                found = await _server(session)
                await meeting.wait()
                return found

        return list(await asyncio.gather(*(one() for _ in range(3))))

    before = await together()
    async with database.reading() as session:
        ended = text("SELECT pg_terminate_backend(p) FROM unnest(CAST(:p AS int[])) AS p")
        await session.execute(ended, {"p": before})
    with pytest.raises(DatabaseUnavailable):
        async with pool.reading() as session:
            await _server(session)
    after = await together()
    assert not set(before) & set(after)
    await pool.dispose()


#: ErrorResponse of a server that ends a session (PostgreSQL documentation, "Message Formats").
_FIELDS = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
_FAREWELL = b"E" + (4 + len(_FIELDS)).to_bytes(4, "big") + _FIELDS


@pytest.mark.parametrize("by", ["the driver", "SQLAlchemy", "a transaction"])
async def test_farewell_that_comes_before_the_end_is_unavailable_once(
    postgres: LocalPostgres, database: Database, by: str
) -> None:
    """The driver then has a state of its own to complain of, and no SQLSTATE."""
    async with door(postgres.socket_dir / ".s.PGSQL.5432") as opened:
        url = f"postgresql://postgres@127.0.0.1:{opened.port}/{database.engine.url.database}"
        pool = _pool(DatabaseSettings(database_url=SecretStr(url)))

        async def server() -> int:
            async with pool.writing() if by == "a transaction" else pool.reading() as session:
                if by == "the driver":
                    return await _server(session)
                return int((await session.execute(text(_SERVER.sql))).scalar_one())

        before = await server()
        opened.say(_FAREWELL)
        await asyncio.sleep(0.1)  # until the driver has heard it
        with pytest.raises(DatabaseUnavailable):
            await server()
        assert await server() != before
        await pool.dispose()


async def test_connection_that_died_in_silence_is_dropped_with_what_was_cut_off_on_it(
    postgres: LocalPostgres, database: Database
) -> None:
    async with door(postgres.socket_dir / ".s.PGSQL.5432") as opened:
        url = f"postgresql://postgres@127.0.0.1:{opened.port}/{database.engine.url.database}"
        pool = _pool(DatabaseSettings(database_url=SecretStr(url)))
        async with pool.reading() as session:
            before = await _server(session)
        opened.hold()
        with pytest.raises((TimeoutError, DatabaseUnavailable)):
            async with asyncio.timeout(0.2), pool.reading() as session:
                await _server(session)
        opened.release()
        async with pool.reading() as session:
            assert await _server(session) != before
        await pool.dispose()
