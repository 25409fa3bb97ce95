"""Least privilege as docker-compose.yml and the chart give it: their own scripts, roles, users and
permissions, on the real servers, and what they refuse."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aiormq.exceptions import ChannelAccessRefused
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from tests.charts.helm import render
from tests.deployed import SERVICES, Deployed, of_chart, of_compose, run_script, written
from tests.running import SOUND, running, settings_for, settled
from tickmind import MemoryClient
from tickmind.connecting import connect
from tickmind.database import Database
from tickmind.database_errors import sqlstate
from tickmind.local.postgres import LocalPostgres
from tickmind.local.rabbitmq import LocalRabbitmq
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind_embedder.app import create_app as create_embedder
from tickmind_embedder.settings import EmbedderSettings
from tickmind_migrations import upgrade
from tickmind_migrations.rights import RIGHTS
from tickmind_recorder.app import create_app as create_recorder
from tickmind_recorder.settings import RecorderSettings
from tickmind_retriever.app import create_app as create_retriever
from tickmind_retriever.settings import RetrieverSettings

_WAYS: dict[str, Callable[[], Deployed]] = {"compose": of_compose, "chart": of_chart}
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """Servers prepared by what one way of deploying renders."""

    deployed: Deployed
    postgres: LocalPostgres
    rabbitmq: LocalRabbitmq
    name: str

    def database(self, service: str) -> DatabaseSettings:
        """As this service comes to the database."""
        given = self.deployed.services[service]
        return DatabaseSettings(
            database_host=str(self.postgres.socket_dir),
            database_user=given["TICKMIND_DATABASE_USER"],
            database_password=SecretStr(given["TICKMIND_DATABASE_PASSWORD"]),
            database_name=self.name,
        )

    def broker(self, user: str) -> BrokerSettings:
        """As this service comes to the broker, or who has no container: the engine, the monitor."""
        made = self.deployed.users
        given = self.deployed.services.get(user) or {
            "TICKMIND_AMQP_USER": made[f"USER_{user.upper()}"],
            "TICKMIND_AMQP_PASSWORD": made[f"PASSWORD_{user.upper()}"],
        }
        return BrokerSettings(
            amqp_host="127.0.0.1",
            amqp_port=self.rabbitmq.port,
            amqp_user=given["TICKMIND_AMQP_USER"],
            amqp_password=SecretStr(given["TICKMIND_AMQP_PASSWORD"]),
            amqp_vhost=self.name,
        )


@pytest.fixture(scope="module", params=sorted(_WAYS))
async def stage(
    request: pytest.FixtureRequest,
    postgres: LocalPostgres,
    rabbitmq: LocalRabbitmq,
    state_dir: Path,
) -> AsyncIterator[_Stage]:
    deployed = _WAYS[request.param]()
    name = f"deployed_{next(_numbers)}"
    files = written(deployed, state_dir / name)
    made = _Stage(deployed=deployed, postgres=postgres, rabbitmq=rabbitmq, name=name)
    await postgres.create_database(name)
    here = {"PGHOST": str(postgres.socket_dir), "PGPORT": "5432", "DATABASE": name}
    await run_script(files / "postgresql" / "roles.py", **{**deployed.roles, **here})
    await upgrade(made.database("migrate"), lambda _: None)
    definitions = files / "definitions.json"
    script = files / "rabbitmq" / "definitions.py"
    await run_script(script, str(definitions), **{**deployed.users, "VHOST": name})
    await rabbitmq.rabbitmqctl("import_definitions", str(definitions))
    yield made
    users = [user for key, user in deployed.users.items() if key.startswith("USER_")]
    listed = ", ".join(f'<<"{user}">>' for user in users)
    await rabbitmq.rabbitmqctl(
        "eval",
        f'rabbit_vhost:delete(<<"{name}">>, <<"test">>),'
        f' [rabbit_auth_backend_internal:delete_user(U, <<"test">>) || U <- [{listed}]].',
    )
    await postgres.drop_database(name)
    url = SecretStr(postgres.database_url("postgres"))
    superuser = Database(DatabaseSettings(database_url=url), application="test", vectors=False)
    async with superuser.reading() as session:
        for key, role in deployed.roles.items():
            if key.startswith("ROLE_"):
                await session.execute(text(f"DROP ROLE {role}"))
    await superuser.dispose()


def test_each_service_has_a_role_a_user_and_passwords_of_its_own(stage: _Stage) -> None:
    services, roles, users = stage.deployed.services, stage.deployed.roles, stage.deployed.users
    for name in SERVICES:
        own = services[name]
        assert own["TICKMIND_DATABASE_USER"] == roles[f"ROLE_{name.upper()}"] == f"tickmind_{name}"
        assert own["TICKMIND_DATABASE_PASSWORD"] == roles[f"PASSWORD_{name.upper()}"]
        assert own["TICKMIND_AMQP_USER"] == users[f"USER_{name.upper()}"]
        assert own["TICKMIND_AMQP_PASSWORD"] == users[f"PASSWORD_{name.upper()}"]
    assert set(RIGHTS) == {roles[f"ROLE_{name.upper()}"] for name in SERVICES}
    secrets = {
        f"{of} {key}": value
        for of, given in (("roles", roles), ("users", users))
        for key, value in given.items()
        if "PASSWORD" in key
    }
    assert len(set(secrets.values())) == len(secrets)
    assert services["migrate"]["TICKMIND_DATABASE_USER"] == roles["ROLE_OWNER"]
    for name, own in services.items():
        known = {own["TICKMIND_DATABASE_PASSWORD"], own.get("TICKMIND_AMQP_PASSWORD")}
        strangers = [value for value in own.values() if value in {*secrets.values()} - known]
        assert not strangers, name
    # Whom nobody needs to see.
    assert not [name for name in services if "TICKMIND_EMBEDDING_API_KEY" in services["recorder"]]


async def test_the_services_do_their_work_with_these_rights_alone(stage: _Stage) -> None:
    apps = [
        create_recorder(
            settings_for(RecorderSettings, stage.database("recorder"), stage.broker("recorder"))
        ),
        create_embedder(
            settings_for(EmbedderSettings, stage.database("embedder"), stage.broker("embedder"))
        ),
        create_retriever(
            settings_for(RetrieverSettings, stage.database("retriever"), stage.broker("retriever"))
        ),
    ]
    owner = Database(stage.database("migrate"), application="test")
    said = {"agent": "bob", "action": "talk", "speech": "We sell fish", "heard_by": ["alice"]}
    url = stage.broker("engine").broker_url()
    async with running(*apps), MemoryClient(url) as memory:
        receipt = await memory.publish_tick("town", 1, [said])
        assert receipt.confirmed, receipt
        assert await settled(owner, "town", memories=2) == SOUND
        answer = await memory.recall("town", "alice", "at the market", tick=3, timeout_s=30)
        assert answer.status == "ok", answer
    await owner.dispose()


#: Of every service: the schema, others' roles, the server's own files and programs.
_NOBODY = (
    *("CREATE TABLE mine (id int)", "DROP TABLE memory", "ALTER TABLE memory ADD mine int"),
    *("CREATE INDEX ON memory (tick)", "TRUNCATE memory", "CREATE SCHEMA mine"),
    *("CREATE ROLE mine", "SET ROLE tickmind", "SET ROLE postgres"),
    "ALTER ROLE tickmind PASSWORD 'mine'",
    *("UPDATE alembic_version SET version_num = '0'", "COPY memory TO PROGRAM 'cat'"),
    *("SELECT pg_read_file('/etc/passwd')", "SELECT rolpassword FROM pg_authid"),
    *("DELETE FROM world", "DELETE FROM agent", "DELETE FROM memory", "DELETE FROM reject"),
    "UPDATE memory SET content = 'other'",
)
_REFUSED_SQL = {
    "recorder": (
        *("SELECT vector FROM embedding", "SELECT count(*) FROM embedding"),
        *("SELECT signature FROM recall_index", "SELECT signature FROM signature"),
        *("SELECT mean FROM index_generation", "SELECT context FROM memory"),
        *("SELECT body FROM reject", "SELECT * FROM pending_embedding"),
    ),
    "embedder": (
        *("INSERT INTO world (name) VALUES ('mine')", "SELECT body FROM reject"),
        "INSERT INTO memory (agent_id) VALUES (1)",
    ),
    "retriever": (
        *("INSERT INTO world (name) VALUES ('mine')", "INSERT INTO memory (agent_id) VALUES (1)"),
        *("INSERT INTO embedding (space_id) VALUES (1)", "DELETE FROM embedding"),
        *("UPDATE index_generation SET status = 'retired'", "DELETE FROM recall_index"),
        *("DELETE FROM pending_embedding", "SELECT body FROM reject"),
    ),
}


async def test_what_a_service_does_not_need_the_database_refuses(stage: _Stage) -> None:
    for service in SERVICES:
        database = Database(stage.database(service), application="test", vectors=False)
        for statement in (*_NOBODY, *_REFUSED_SQL[service]):
            with pytest.raises(ProgrammingError) as refused:
                async with database.writing() as session:
                    await session.execute(text(statement))
            told = (service, statement, str(refused.value))
            assert sqlstate(refused.value) == "42501", told
        await database.dispose()


_Deed = Callable[[AbstractChannel], Awaitable[object]]


def _consume(queue: str) -> _Deed:
    async def taken(_: AbstractIncomingMessage) -> None:
        raise AssertionError(queue)

    async def deed(channel: AbstractChannel) -> None:
        await (await channel.get_queue(queue, ensure=False)).consume(taken)

    return deed


def _declare(queue: str) -> _Deed:
    async def deed(channel: AbstractChannel) -> None:
        await channel.declare_queue(queue, durable=True)

    return deed


def _delete(queue: str) -> _Deed:
    async def deed(channel: AbstractChannel) -> None:
        await channel.queue_delete(queue)

    return deed


def _publish(exchange: str, key: str) -> _Deed:
    async def deed(channel: AbstractChannel) -> None:
        target = (
            await channel.get_exchange(exchange, ensure=False)
            if exchange
            else channel.default_exchange
        )
        await target.publish(aio_pika.Message(b"{}"), routing_key=key, timeout=10)

    return deed


_EVENTS = ("tickmind.events", "tick.ended.v1.town")
_QUEUES = ("recorder", "embedder", "recall", "dead-letters")
#: Queues of which each user may read messages, and where it may publish.
_READS = {
    "recorder": {"recorder", "dead-letters"},
    "embedder": {"embedder"},
    "retriever": {"recall"},
    "engine": {"recorder"},
    "monitor": set[str](),
}
_WRITES = {
    "recorder": {"tickmind.events"},
    "embedder": set[str](),
    "retriever": {""},
    "engine": {"tickmind.events", ""},
    "monitor": set[str](),
}
_CONFIGURES = {**_READS}


async def test_what_a_user_does_not_need_the_broker_refuses(stage: _Stage) -> None:
    for user in _READS:
        await _refused(stage, user)


async def _refused(stage: _Stage, user: str) -> None:
    """By deeds that each take a channel of their own, which the broker closes."""
    deeds: dict[str, _Deed] = {
        "declare mine": _declare("mine"),
        "declare tickmind.mine": _declare("tickmind.mine"),
        "declare tickmind.recorder.mine": _declare("tickmind.recorder.mine"),
    }
    for queue in _QUEUES:
        if queue not in _READS[user]:
            deeds[f"consume {queue}"] = _consume(f"tickmind.{queue}")
        if queue not in _CONFIGURES[user]:
            deeds[f"declare {queue}"] = _declare(f"tickmind.{queue}")
            deeds[f"delete {queue}"] = _delete(f"tickmind.{queue}")
    for exchange, key in (_EVENTS, ("", "tickmind.recorder"), ("amq.topic", "x")):
        if exchange not in _WRITES[user]:
            deeds[f"publish to {exchange or 'the default exchange'}"] = _publish(exchange, key)
    async with await connect(stage.broker(user), name="test") as connection:
        for name, deed in deeds.items():
            channel = await connection.channel()
            try:
                await deed(channel)
            except ChannelAccessRefused:
                continue
            pytest.fail(f"{user} may {name}")


def test_the_operators_permissions_are_the_same() -> None:
    """Where an operator runs RabbitMQ, by its own objects."""
    rendered = render("operators")
    files = of_compose().files
    rights = json.loads(files["rabbitmq/users.json"])
    permissions = rendered.of("Permission")
    assert len(permissions) == len(rights) - 1  # the administrator is the operator's own
    for permission in permissions:
        name = permission["metadata"]["name"].rsplit("-", 1)[1]
        assert permission["spec"]["permissions"] == rights[name]["permissions"]


def test_compose_and_chart_prepare_by_the_same_files() -> None:
    compose, chart = of_compose().files, of_chart().files
    for name in ("postgresql/roles.py", "rabbitmq/definitions.py", "rabbitmq/users.json"):
        assert compose[name].strip() == chart[name].strip()
