"""The embedded PostgreSQL: private, durable, restartable."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from tickmind.errors import ConfigurationError
from tickmind.local.postgres import LocalPostgres, running_postgres


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that the database's system user can reach, where the tests run as root."""
    path = Path(tempfile.mkdtemp(prefix="tickmind-test-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


async def ask(server: LocalPostgres, statement: str) -> object:
    connection = await asyncpg.connect(server.url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def test_data_are_kept_when_the_server_was_killed(directory: Path) -> None:
    async with running_postgres(directory, durable=True) as server:
        await ask(server, "CREATE TABLE kept AS SELECT 7 AS answer")
        os.kill(server.pid, signal.SIGKILL)
    async with running_postgres(directory, durable=True) as server:
        assert await ask(server, "SELECT answer FROM kept") == 7


async def test_interrupted_initialisation_is_begun_anew(directory: Path) -> None:
    (directory / "cluster.new").mkdir()
    (directory / "cluster.new" / "PG_VERSION").write_text("18\n")
    async with running_postgres(directory, durable=False) as server:
        assert await ask(server, "SELECT 1") == 1
        assert not (directory / "cluster.new").exists()


async def test_stale_pid_file_is_no_obstacle_when_a_stranger_has_the_number(
    directory: Path,
) -> None:
    async with running_postgres(directory, durable=False):
        pass
    (directory / "cluster" / "postmaster.pid").write_text(f"{os.getpid()}\n")
    async with running_postgres(directory, durable=False) as server:
        assert await ask(server, "SELECT 1") == 1


async def test_second_server_on_one_directory_is_refused(directory: Path) -> None:
    async with running_postgres(directory, durable=False):
        with pytest.raises(ConfigurationError, match=f"started by process {os.getpid()}"):
            async with running_postgres(directory, durable=False):
                pass


async def test_socket_is_put_elsewhere_when_its_path_is_too_long(directory: Path) -> None:
    async with running_postgres(directory / ("long" * 25), durable=False) as server:
        assert len(os.fsencode(server.socket_dir)) < 100
        assert await ask(server, "SELECT 1") == 1
        socket_dir = server.socket_dir
    assert not socket_dir.exists()


async def test_other_major_version_is_named_when_it_wrote_the_data(directory: Path) -> None:
    (directory / "cluster").mkdir(mode=0o755)
    (directory / "cluster" / "PG_VERSION").write_text("9\n")
    with pytest.raises(ConfigurationError, match=r"written by PostgreSQL 9,.*--fresh"):
        async with running_postgres(directory, durable=False):
            pass


async def test_database_speaks_unicode_vectors_and_sqlalchemy(postgres: LocalPostgres) -> None:
    await postgres.create_database("local test", template="template0")
    try:
        url = make_url(postgres.database_url("local test")).set(drivername="postgresql+asyncpg")
        engine = create_async_engine(url)
        async with engine.begin() as connection:
            await connection.execute(text("CREATE EXTENSION vector"))
            row = await connection.execute(
                text("SELECT lower('ÄÉ'), '[1,2]'::halfvec <=> '[1,2]', current_setting('port')")
            )
            assert row.one()[:2] == ("äé", 0.0)
        await engine.dispose()
    finally:
        await postgres.drop_database("local test")
