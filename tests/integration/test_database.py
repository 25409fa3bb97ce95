"""The way to PostgreSQL: what a session does, what passes by itself, and how it is reached."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pgvector.asyncpg import register_vector
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError

from tests.proxy import door
from tests.recording import count, database_behind
from tickmind import database as module
from tickmind.database import Database
from tickmind.database_errors import DatabaseUnavailable
from tickmind.local.postgres import LocalPostgres
from tickmind.settings import DatabaseSettings

#: case 44.
_ODD = "~,>?@:/#%&"
#: Without the comma: asyncpg cannot say it in SCRAM.
_USER = "~>?@:/#%&"
_CERTIFICATES = Path(__file__).parent.parent / "certificates"
_SOCKET = ".s.PGSQL.5432"


def _pool(settings: DatabaseSettings, **options: object) -> Database:
    given = settings.model_dump(exclude_unset=True) | options
    return Database(DatabaseSettings.model_validate(given), application="test")


async def _insert(database: Database, name: str) -> None:
    async with database.writing() as session:
        await session.execute(text("INSERT INTO world (name) VALUES (:name)"), {"name": name})


async def test_writing_commits_as_a_whole_or_not_at_all(database: Database) -> None:
    await _insert(database, "a")

    async def fail() -> None:
        async with database.writing() as session:
            await session.execute(text("INSERT INTO world (name) VALUES ('b')"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()

    assert await count(database, "world") == 1


async def test_reading_sees_each_statement_anew(database: Database) -> None:
    """No transaction is held open between two statements."""
    async with database.reading() as session:
        query = text("SELECT count(*) FROM world")
        before = (await session.execute(query)).scalar_one()
        await _insert(database, "a")
        after = (await session.execute(query)).scalar_one()

    assert (before, after) == (0, 1)


async def test_what_the_data_are_to_blame_for_is_told_as_it_is(database: Database) -> None:
    await _insert(database, "a")

    with pytest.raises(IntegrityError):
        await _insert(database, "a")
    with pytest.raises(DBAPIError) as caught:
        async with database.reading() as session:
            await session.execute(text("SELECT 1 / 0"))
    assert not isinstance(caught.value, DatabaseUnavailable)


async def test_a_value_that_fits_no_type_is_the_datas_fault(database: Database) -> None:
    """The driver refuses it before the server sees it: not to be tried again."""
    with pytest.raises(DBAPIError):
        async with database.reading() as session:
            await session.execute(text("SELECT CAST(:n AS bigint)"), {"n": 2**63})


@pytest.mark.parametrize(
    "statement",
    [
        "DO $$ BEGIN RAISE EXCEPTION SQLSTATE '40001'; END $$",
        "DO $$ BEGIN RAISE EXCEPTION SQLSTATE '40P01'; END $$",
        "DO $$ BEGIN RAISE EXCEPTION SQLSTATE '53100'; END $$",
        "DO $$ BEGIN RAISE EXCEPTION SQLSTATE '55P03'; END $$",
        "DO $$ BEGIN RAISE EXCEPTION SQLSTATE '57014'; END $$",
        "DO $$ BEGIN RAISE EXCEPTION SQLSTATE '25006'; END $$",
        "SELECT pg_terminate_backend(pg_backend_pid())",
    ],
)
async def test_what_may_pass_is_told_as_such(
    database_settings: DatabaseSettings, statement: str
) -> None:
    """Serialization, deadlock, a full disk, a lock, a cancelled statement, a read-only node, a
    server that shuts down."""
    database = _pool(database_settings, database_pool_size=1)

    with pytest.raises(DatabaseUnavailable, match="PostgreSQL is not able to serve this now"):
        async with database.writing() as session:
            await session.execute(text(statement))
    await _insert(database, "a")  # the pool goes on

    await database.dispose()


async def test_two_that_wait_for_each_other_in_turn_are_told_to_try_again(
    database: Database,
) -> None:
    await _insert(database, "a")
    await _insert(database, "b")
    held = [asyncio.Event(), asyncio.Event()]

    async def lock(first: str, second: str, mine: asyncio.Event, theirs: asyncio.Event) -> None:
        query = text("SELECT FROM world WHERE name = :name FOR UPDATE")
        async with database.writing() as session:
            await session.execute(query, {"name": first})
            mine.set()
            await theirs.wait()
            await session.execute(query, {"name": second})

    ends = await asyncio.gather(
        lock("a", "b", *held), lock("b", "a", *held[::-1]), return_exceptions=True
    )

    assert [type(end) for end in ends if end] == [DatabaseUnavailable]


async def test_a_session_stuck_on_a_read_only_node_is_left_behind(
    database_settings: DatabaseSettings,
) -> None:
    """case 43: the pooled connection is dropped, the next write takes another."""
    database = _pool(database_settings, database_pool_size=1)
    async with database.reading() as session:
        await session.execute(text("SET default_transaction_read_only = on"))
        stuck = (await session.execute(text("SELECT pg_backend_pid()"))).scalar_one()

    with pytest.raises(DatabaseUnavailable):
        await _insert(database, "a")
    await _insert(database, "a")

    async with database.reading() as session:
        assert (await session.execute(text("SELECT pg_backend_pid()"))).scalar_one() != stuck
    await database.dispose()


async def test_a_connection_lost_while_it_is_opened_is_told_as_such(
    database_settings: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between connecting and the first statement a connection learns its types."""
    register = register_vector

    async def lost(connection: Any, schema: str) -> None:
        connection.terminate()
        await register(connection, schema=schema)

    monkeypatch.setattr(module, "register_vector", lost)
    database = _pool(database_settings, database_pool_size=1)

    with pytest.raises(DatabaseUnavailable):
        await _insert(database, "a")
    told = await database.check()
    monkeypatch.setattr(module, "register_vector", register)
    await _insert(database, "a")

    assert told is not None
    assert "connection" in told
    await database.dispose()


async def test_a_connection_that_is_never_finished_is_closed(
    database_settings: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off while it learns its types, say by a deadline: nobody else knows of it."""
    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def endless(connection: Any, schema: str) -> None:
        opened.set_result(connection)
        await asyncio.Event().wait()

    monkeypatch.setattr(module, "register_vector", endless)
    database = _pool(database_settings, database_pool_size=1)
    asking = asyncio.create_task(database.check())
    connection = await opened
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    assert connection.is_closed()
    await database.dispose()


async def test_what_takes_no_leave_is_closed_all_the_same(
    database: Database, postgres: LocalPostgres
) -> None:
    async with door(postgres.socket_dir / _SOCKET) as opened:
        through = _pool(database_behind(opened, database), database_pool_size=2)
        raw = []
        async with through.reading() as one, through.reading() as two:
            for session in (one, two):
                connection = await session.connection()
                raw.append((await connection.get_raw_connection()).driver_connection)
        opened.hold()
        async with asyncio.timeout(10):
            await through.dispose()
        assert [connection.is_closed() for connection in raw if connection] == [True, True]
        await opened.cut()


async def test_what_is_distrusted_is_connected_anew(
    database: Database, postgres: LocalPostgres
) -> None:
    """Connections that died in silence are given up together, not waited for one by one."""
    async with door(postgres.socket_dir / _SOCKET) as opened:
        through = _pool(database_behind(opened, database), database_pool_size=3)
        async with through.reading() as one, through.reading() as two, through.reading() as three:
            for session in (one, two, three):
                await session.execute(text("SELECT 1"))
        opened.hold(newcomers=False)

        through.distrust()
        async with asyncio.timeout(20):
            await asyncio.gather(*(_insert(through, name) for name in "abc"))

        assert opened.visits == 6
        await through.dispose()
        await opened.cut()
    assert await count(database, "world") == 3


async def test_a_full_pool_is_waited_for_no_longer_than_told(
    database_settings: DatabaseSettings,
) -> None:
    database = _pool(database_settings, database_pool_size=1, database_pool_timeout_s=0.05)

    async with database.reading() as session:
        await session.execute(text("SELECT 1"))
        with pytest.raises(DatabaseUnavailable):
            await count(database, "world")
    assert await count(database, "world") == 0

    await database.dispose()


async def test_sessions_that_fail_or_are_cancelled_give_their_connections_back(
    database_settings: DatabaseSettings,
) -> None:
    database = _pool(database_settings, database_pool_size=5, database_pool_timeout_s=20)

    async def fail() -> None:
        with pytest.raises(DBAPIError):
            async with database.reading() as session:
                await session.execute(text("SELECT 1 / 0"))

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), database.reading() as session:
                await session.execute(text("SELECT pg_sleep(10)"))

    for _ in range(10):
        await asyncio.gather(*(fail() for _ in range(5)))
    await asyncio.gather(*(give_up() for _ in range(5)))

    await asyncio.gather(*(count(database, "world") for _ in range(50)))
    await database.dispose()


async def test_a_server_that_is_not_there_is_told_as_unavailable(tmp_path: Path) -> None:
    for host in (str(tmp_path), "127.0.0.1"):
        settings = DatabaseSettings(database_host=host, database_port=1)
        database = Database(settings, application="test")
        fault = await database.check()
        await database.dispose()

        assert fault is not None
        assert fault.startswith("PostgreSQL is not able to serve this now (")
        assert "\n" not in fault


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"database_name": "not_yet"}, 'database "not_yet" does not exist'),
        ({"database_user": "not_yet"}, 'role "not_yet" does not exist'),
    ],
    ids=str,
)
async def test_a_database_or_user_not_yet_made_is_waited_for(
    postgres: LocalPostgres, settings: dict[str, str], told: str
) -> None:
    """An operator makes them a moment later, as often as not; a password is rotated just so."""
    given = {"database_host": str(postgres.socket_dir), "database_user": "postgres"} | settings
    database = Database(DatabaseSettings.model_validate(given), application="test")

    fault = await database.check()
    with pytest.raises(DatabaseUnavailable):
        await _insert(database, "a")

    assert fault == f"PostgreSQL is not able to serve this now (Error: {told})"
    await database.dispose()


async def test_a_right_that_is_missing_is_told(
    database: Database, database_settings: DatabaseSettings, postgres: LocalPostgres
) -> None:
    """Readiness says so; the data are not to blame, and nothing ends."""
    async with database.writing() as session:
        await session.execute(text("CREATE ROLE without_rights LOGIN"))
    plain = Database(
        DatabaseSettings(
            database_host=str(postgres.socket_dir),
            database_user="without_rights",
            database_name=database.engine.url.database or "",
        ),
        application="test",
    )

    fault = await plain.check()

    await plain.dispose()
    async with database.writing() as session:
        await session.execute(text("DROP ROLE without_rights"))
    assert fault is not None
    assert "permission denied for table alembic_version" in fault


async def test_is_named_in_the_servers_list_of_sessions(database: Database) -> None:
    async with database.reading() as session:
        query = text("SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()")
        assert (await session.execute(query)).scalar_one() == "test"


async def test_behind_a_pooler_it_asks_for_nothing_a_session_would_have_to_keep(
    database_settings: DatabaseSettings,
) -> None:
    """case 40, our side of it: no startup parameter, no prepared statement under any name."""
    database = _pool(database_settings, database_pgbouncer=True)

    async with database.reading() as session:
        for _ in range(10):
            await session.execute(text("SELECT CAST(:n AS int)"), {"n": 1})
        query = text("SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()")
        assert (await session.execute(query)).scalar_one() == ""
        names = await session.scalars(text("SELECT name FROM pg_prepared_statements"))
        assert set(names) <= {""}

    await database.dispose()


@pytest.fixture
async def odd_role(postgres: LocalPostgres) -> AsyncIterator[DatabaseSettings]:
    """A user whose name, password and database are hard to write, and who needs the password."""
    access = postgres.data_dir / "cluster" / "pg_hba.conf"
    before = access.read_text()

    async def run(database: str, *statements: str) -> None:
        url = SecretStr(postgres.database_url(database))
        superuser = Database(DatabaseSettings(database_url=url), application="test", vectors=False)
        async with superuser.reading() as session:
            for statement in statements:
                await (await session.connection()).exec_driver_sql(statement)
        await superuser.dispose()

    access.write_text(f'local all "{_USER}" scram-sha-256\n{before}')
    await run(
        "postgres", f"CREATE ROLE \"{_USER}\" LOGIN PASSWORD '{_ODD}'", "SELECT pg_reload_conf()"
    )
    await postgres.create_database(_ODD, template="template")
    await run(_ODD, f'GRANT ALL ON ALL TABLES IN SCHEMA public TO "{_USER}"')
    yield DatabaseSettings(
        database_user=_USER, database_password=SecretStr(_ODD), database_name=_ODD
    )
    await postgres.drop_database(_ODD)
    access.write_text(before)
    await run("postgres", f'DROP ROLE "{_USER}"', "SELECT pg_reload_conf()")


async def test_connects_with_odd_names_over_ipv6_and_tls(
    odd_role: DatabaseSettings, postgres: LocalPostgres
) -> None:
    """case 44: password `~,>?@:/#%&`, host `[::1]`, sslmode=require: to the server itself."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(_CERTIFICATES / "server.pem")
    ca = _CERTIFICATES / "ca.pem"
    async with (
        door(postgres.socket_dir / _SOCKET, host="::1") as plain,
        door(postgres.socket_dir / _SOCKET, host="::1", tls=tls, postgres=True) as secret,
    ):
        ways: list[dict[str, object]] = [
            {"port": plain.port, "sslmode": "disable"},
            {"port": plain.port, "sslmode": "prefer"},
            {"port": secret.port, "sslmode": "prefer"},
            {"port": secret.port, "sslmode": "require"},
            {"port": secret.port, "sslmode": "verify-ca", "ca_file": ca},
            {"port": secret.port, "sslmode": "verify-full", "ca_file": ca},
        ]
        for way in ways:
            options = {f"database_{name}": value for name, value in way.items()}
            for host in ("[::1]", "::1"):
                database = _pool(odd_role, database_host=host, **options)
                assert await database.check() is None, way
                await database.dispose()


async def test_never_goes_on_in_plaintext_or_with_a_stranger(
    odd_role: DatabaseSettings, postgres: LocalPostgres
) -> None:
    """TLS that was asked for is had, from whom it was asked, or there is no connection."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(_CERTIFICATES / "server.pem")
    ca, other = _CERTIFICATES / "ca.pem", _CERTIFICATES / "other-ca.pem"
    async with (
        door(postgres.socket_dir / _SOCKET) as plain,
        door(postgres.socket_dir / _SOCKET, host="0.0.0.0", tls=tls, postgres=True) as secret,
    ):
        ways: list[dict[str, object]] = [
            {"port": plain.port, "sslmode": "require"},
            {"port": plain.port, "sslmode": "verify-full", "ca_file": ca},
            {"port": secret.port, "sslmode": "disable"},
            {"port": secret.port, "sslmode": "require", "ca_file": other},
            {"port": secret.port, "sslmode": "verify-ca", "ca_file": other},
            {"port": secret.port, "sslmode": "verify-full"},
            # The certificate does not name this address of the same machine.
            {"port": secret.port, "sslmode": "verify-full", "ca_file": ca, "host": "127.0.0.2"},
        ]
        for way in ways:
            options = {"host": "127.0.0.1"} | way
            database = _pool(odd_role, **{f"database_{k}": v for k, v in options.items()})
            fault = await database.check()
            await database.dispose()
            assert fault is not None, way
            assert _ODD not in fault


async def test_connections_that_died_in_silence_do_not_hold_up_the_goodbye(
    postgres: LocalPostgres, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tickmind.database._GOODBYE_S", 0.2)
    async with door(postgres.socket_dir / ".s.PGSQL.5432") as opened:
        url = f"postgresql://postgres@127.0.0.1:{opened.port}/{database.engine.url.database}"
        held = Database(
            DatabaseSettings(database_url=SecretStr(url), database_pool_size=3), application="test"
        )
        async with held.reading() as one, held.reading() as two:
            await one.execute(text("SELECT 1"))
            await two.execute(text("SELECT 1"))
        opened.hold()
        async with asyncio.timeout(5):
            await held.dispose()
