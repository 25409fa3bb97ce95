"""TLS to both servers, for every part that connects: a CA of one's own, no stranger, no plaintext.

The servers are real and speak TLS themselves; doors before them keep what came over the wire.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import text

from tests.asking import answering, at_once
from tests.commands import Cli
from tests.proxy import door
from tests.running import SOUND, eventually, running, settings_for, settled
from tests.tls import (
    CA,
    OTHER_CA,
    PASSWORD,
    USER,
    SecureServers,
    only_began_tls,
    own_tls_postgres,
    secure_rabbitmq,
    server_tls,
    tls_before,
)
from tickmind import MemoryClient
from tickmind.connecting import FireAndForget
from tickmind.database import Database
from tickmind.local.postgres import LocalPostgres
from tickmind.local.rabbitmq import LocalRabbitmq
from tickmind.service import App
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind_embedder.app import create_app as create_embedder
from tickmind_embedder.settings import EmbedderSettings
from tickmind_recorder.app import create_app as create_recorder
from tickmind_recorder.settings import RecorderSettings
from tickmind_retriever.app import create_app as create_retriever
from tickmind_retriever.settings import RetrieverSettings

_SOCKET = ".s.PGSQL.5432"
_SAID = "The market sells fresh fish"
_TALK = {"agent": "bob", "action": "talk", "speech": _SAID, "heard_by": ["alice"]}
#: What may stand on the wire in no form but encrypted.
_PRIVATE = [word.encode() for word in (USER, PASSWORD, _SAID, "alice", "AMQP\x00\x00\x09\x01")]


@pytest.fixture(scope="module")
async def secure(state_dir: Path, postgres: LocalPostgres) -> AsyncIterator[SecureServers]:
    """A database of our own behind TLS; a broker that speaks it itself."""
    name = "tls"
    await postgres.create_database(name)
    url = SecretStr(postgres.database_url("postgres"))
    superuser = Database(DatabaseSettings(database_url=url), application="test", vectors=False)
    async with superuser.reading() as session:
        await session.execute(text(f"CREATE ROLE {USER} LOGIN SUPERUSER"))
    async with (
        secure_rabbitmq(state_dir / "tls-rabbitmq") as broker,
        tls_before(postgres.socket_dir / _SOCKET) as database,
    ):
        yield SecureServers(postgres=database, rabbitmq=broker, database_name=name)
    await postgres.drop_database(name)
    async with superuser.reading() as session:
        await session.execute(text(f"DROP ROLE {USER}"))
    await superuser.dispose()


def _apps(database: DatabaseSettings, broker: BrokerSettings) -> list[App]:
    return [
        create_recorder(settings_for(RecorderSettings, database, broker)),
        create_embedder(settings_for(EmbedderSettings, database, broker)),
        create_retriever(settings_for(RetrieverSettings, database, broker)),
    ]


def _environment(database: DatabaseSettings, broker: BrokerSettings) -> Mapping[str, str]:
    """Of a command line that is told of these servers by parts."""
    assert database.database_password is not None
    return {
        "TICKMIND_DATABASE_HOST": database.database_host,
        "TICKMIND_DATABASE_PORT": str(database.database_port),
        "TICKMIND_DATABASE_USER": USER,
        "TICKMIND_DATABASE_PASSWORD": PASSWORD,
        "TICKMIND_DATABASE_NAME": database.database_name,
        "TICKMIND_DATABASE_SSLMODE": database.database_sslmode,
        "TICKMIND_DATABASE_CA_FILE": str(database.database_ca_file),
        "TICKMIND_AMQP_HOST": broker.amqp_host,
        "TICKMIND_AMQP_PORT": str(broker.amqp_port),
        "TICKMIND_AMQP_USER": USER,
        "TICKMIND_AMQP_PASSWORD": PASSWORD,
        "TICKMIND_AMQP_TLS": "true",
        "TICKMIND_AMQP_CA_FILE": str(broker.amqp_ca_file),
    }


async def test_every_part_works_over_tls_and_none_of_it_can_be_read(
    secure: SecureServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cases 39 and 44: migration, services, client and command line, with a CA of one's own."""
    environment = _environment(secure.database(), secure.broker())
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    cli = Cli(tmp_path, environment)
    migrated = await cli("migrate")
    assert migrated.code == 0, migrated.err

    owner = Database(secure.database(), application="tickmind-test")
    try:
        apps = _apps(secure.database(), secure.broker())
        async with running(*apps), MemoryClient() as memory:
            receipt = await memory.publish_tick("town", 1, [_TALK])
            assert receipt.confirmed, receipt
            assert await settled(owner, "town", memories=2) == SOUND
            answer = await memory.recall("town", "alice", "at the market", tick=2, timeout_s=30)
            assert (answer.status, answer.reason) == ("ok", None), answer
            asked = await cli("recall", "town", "alice", "at the market", "--tick", "2", "--json")
            status = await cli("status", "--json")
    finally:
        await owner.dispose()

    assert (asked.code, status.code) == (0, 0), asked.err + status.err
    assert _SAID in asked.out
    assert secure.postgres.visits > 5
    assert secure.rabbitmq.visits > 5
    for said in secure.heard:
        assert only_began_tls(said), said[:80]
        assert not [word for word in _PRIVATE if word in said]


async def test_no_part_tells_a_stranger_anything(
    secure: SecureServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cases 39 and 44: servers whose certificates another CA signed are refused by every part,
    before anything is said to them."""
    database, broker = secure.database(OTHER_CA), secure.broker(OTHER_CA)
    await _refused(database, broker, tmp_path, monkeypatch, "certificate verify failed")
    assert all(only_began_tls(said) for said in secure.heard)


async def test_a_postgresql_with_ssl_on_is_reached_over_tls_and_a_stranger_is_not(
    secure: SecureServers, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """case 44: its own TLS, with a password: each part comes as far as the schema, which this one
    cannot have."""
    async with own_tls_postgres(state_dir / "tls-postgres") as server:
        servers = SecureServers(
            postgres=server.door, rabbitmq=secure.rabbitmq, database_name="postgres"
        )
        apps = _apps(servers.database(), servers.broker())
        for app in apps:
            fault = await app.needs["database"]()
            assert fault == "the database has no tickmind schema yet: run tickmind migrate"
        sessions = await server.sessions()
        for app in apps:
            await app.close()
        assert {f"tickmind-{name}" for name in ("recorder", "embedder", "retriever")} <= {*sessions}
        assert all(sessions.values()), sessions
        migrated = await Cli(tmp_path, _environment(servers.database(), servers.broker()))(
            "migrate"
        )
        assert "does not have pgvector" in migrated.err
        for mode, ca in (("require", None), ("require", CA), ("verify-ca", CA)):
            changed = {"database_sslmode": mode, "database_ca_file": ca}
            pool = Database(servers.database().model_copy(update=changed), application="t")
            assert "no tickmind schema" in str(await pool.check()), mode
            await pool.dispose()
        for said in servers.heard:
            assert only_began_tls(said), said[:80]
            assert not [word for word in _PRIVATE if word in said]
        for mode in ("disable", "verify-full"):  # in plaintext; in IP 127.0.0.2's name
            changed = {"database_sslmode": mode, "database_host": "127.0.0.2"}
            pool = Database(servers.database().model_copy(update=changed), application="t")
            assert await pool.check() not in (None, fault), mode
            await pool.dispose()
        database, broker = servers.database(OTHER_CA), servers.broker(OTHER_CA)
        await _refused(database, broker, tmp_path, monkeypatch, "certificate verify failed")


async def test_no_part_goes_on_in_plaintext_where_tls_is_not_to_be_had(
    postgres: LocalPostgres,
    rabbitmq: LocalRabbitmq,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """cases 39 and 44: servers that speak no TLS get no name, no password and no text, under each
    mode that asks for TLS; nor does anyone who listens before them."""
    async with (
        door(postgres.socket_dir / _SOCKET) as database_door,
        door(("127.0.0.1", rabbitmq.port)) as broker_door,
    ):
        plain = SecureServers(
            postgres=database_door, rabbitmq=broker_door, database_name="template"
        )
        await _refused(plain.database(), plain.broker(), tmp_path, monkeypatch, "")
        for mode in ("require", "verify-ca"):
            database = plain.database().model_copy(update={"database_sslmode": mode})
            pool = Database(database, application="test")
            assert await pool.check() is not None, mode
            await pool.dispose()
        assert database_door.visits > 5
        assert broker_door.visits > 5
        for said in plain.heard:
            assert only_began_tls(said), said[:80]


_NO_CA = "TICKMIND_AMQP_CA_FILE names "


async def test_ca_that_is_being_replaced_ends_no_connection_for_good(
    rabbitmq: LocalRabbitmq,
    broker_settings: BrokerSettings,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its file is away for a moment, just when a connection is made anew."""
    ca = tmp_path / "ca.pem"
    shutil.copy(CA, ca)
    vhost = broker_settings.broker_url().rsplit("/", 1)[1]

    async def waiting() -> set[str]:
        fields = [vars(record).get("fields", {}) for record in caplog.records]
        return {field.get("broker", "").partition("/")[0] for field in fields}

    async with door(("127.0.0.1", rabbitmq.port), tls=server_tls()) as before:
        url = f"amqps://guest:guest@localhost:{before.port}/{vhost}"
        settings = BrokerSettings(amqp_url=SecretStr(url), amqp_ca_file=ca)
        replies = FireAndForget(settings, name="test")
        async with (
            answering(broker_settings, at_once),
            MemoryClient(url, ca_file=ca) as memory,
        ):
            assert (await memory.recall("town", "a", "x", tick=1, timeout_s=9)).status == "ok"
            ca.unlink()
            await before.cut()
            await eventually(waiting, lambda told: _NO_CA in told, what="noticed")
            assert not await replies.publish(b"", routing_key="nowhere")
            shutil.copy(CA, ca)
            assert await replies.publish(b"", routing_key="nowhere")
            answer = await eventually(
                lambda: memory.recall("town", "a", "x", tick=1, timeout_s=9),
                lambda answer: answer.status == "ok",
                what="an answer",
            )
            assert answer.reason is None
            assert (await memory.publish_tick("town", 1, [_TALK])).confirmed
        await replies.close()


async def _refused(
    database: DatabaseSettings,
    broker: BrokerSettings,
    where: Path,
    monkeypatch: pytest.MonkeyPatch,
    why: str,
) -> None:
    """Each part, told of these servers, says that it cannot use them, and no secret with it."""
    told: list[str] = []
    for app in _apps(database, broker):
        for name in ("database", "broker"):
            fault = await app.needs[name]()
            assert fault is not None, (app.name, name)
            assert why in fault, (app.name, name)
            told.append(fault)
        await app.close()
    environment = _environment(database, broker)
    cli = Cli(where, environment)
    for arguments in (["migrate"], ["status"], ["recall", "town", "alice", "fish", "--tick", "2"]):
        ended = await cli(*arguments)
        assert ended.code == 1, (arguments, ended)
        told.append(ended.out + ended.err)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tickmind.client._FIRST_CONNECTION_S", 0.1)
    async with MemoryClient() as memory:
        receipt = await memory.publish_tick("town", 9, [_TALK], timeout_s=1)
        assert (receipt.confirmed, receipt.reason) == (False, "connection")
        answer = await memory.recall("town", "alice", "fish", tick=9, timeout_s=1)
        assert (answer.status, answer.reason) == ("empty", "connection")
    assert not [one for one in told if PASSWORD in one]
