"""Faults of PostgreSQL: gone, crashed, read-only, out of connections, locked."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import asyncpg

from tests.chaos.lasting import MOST_S, lasting
from tickmind.local.postgres import LocalPostgres

__all__ = [
    "connected",
    "connections_used_up",
    "database_crashed",
    "database_read_only",
    "database_stopped",
    "table_locked",
]

#: Longest wait for a session of our own; a healthy server takes milliseconds.
_CONNECT_S = 10.0
#: Pools come back while they are being shut out; measured: they are all out after two rounds.
_ROUNDS = 20


def database_stopped(
    server: LocalPostgres, *, most_s: float = MOST_S
) -> AbstractAsyncContextManager[None]:
    """A fast shutdown: every session ends, nothing is lost; the same data come back."""
    return lasting(server.stop, server.start, most_s=most_s)


def database_crashed(
    server: LocalPostgres, *, most_s: float = MOST_S
) -> AbstractAsyncContextManager[None]:
    """An immediate shutdown (SIGQUIT): nothing is written any more, and the start recovers."""

    async def crash() -> None:
        child = server.child
        assert child is not None
        child.send(signal.SIGQUIT)
        await child.wait()
        await child.stop()

    return lasting(crash, server.start, most_s=most_s)


def database_read_only(
    server: LocalPostgres, *, most_s: float = MOST_S
) -> AbstractAsyncContextManager[None]:
    """Every session, those there are as well, is refused what writes: SQLSTATE 25006, as on a
    primary that became a replica. Reading goes on."""
    return lasting(
        lambda: _alter(server, "SET default_transaction_read_only = on"),
        lambda: _alter(server, "RESET default_transaction_read_only"),
        most_s=most_s,
    )


async def _alter(server: LocalPostgres, setting: str) -> None:
    async with connected(server.database_url("postgres")) as session:
        await session.execute(f"ALTER SYSTEM {setting}")
        await session.execute("SELECT pg_reload_conf()")


@asynccontextmanager
async def connections_used_up(
    server: LocalPostgres, *, applications: str = "tickmind-%", most_s: float = MOST_S
) -> AsyncIterator[int]:
    """The server takes nobody any more (SQLSTATE 53300): others have all its connections, those
    too that pools of `applications` (a LIKE pattern) had kept. How many there are."""
    taken: dict[int, asyncpg.Connection[asyncpg.Record]] = {}

    async def take_all() -> None:
        while True:
            try:
                session = await asyncpg.connect(server.database_url("postgres"), timeout=_CONNECT_S)
            except asyncpg.TooManyConnectionsError:
                return
            taken[session.get_server_pid()] = session

    try:
        async with asyncio.timeout(most_s):
            await take_all()
            for _ in range(_ROUNDS):
                ended = await next(iter(taken.values())).fetch(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name LIKE $1",
                    applications,
                )
                await take_all()
                if not ended:
                    break
            yield len(taken)
    finally:
        for session in taken.values():
            session.terminate()


@asynccontextmanager
async def table_locked(url: str, table: str, *, most_s: float = MOST_S) -> AsyncIterator[None]:
    """Another session holds a table of the database at `url`: every statement on it waits, and
    so does every pool that has one."""
    async with asyncio.timeout(most_s), connected(url) as session, session.transaction():
        await session.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A session of our own, which may write whatever the server's default is."""
    session = await asyncpg.connect(
        url, timeout=_CONNECT_S, server_settings={"default_transaction_read_only": "off"}
    )
    try:
        yield session
    finally:
        session.terminate()
