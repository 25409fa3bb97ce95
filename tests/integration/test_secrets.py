"""Secrets and what agents say are told nowhere: every service and command, through success and
every kind of failure, at the most talkative level; all that they print, serve and export."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from tests.commands import Cli
from tests.otlp import Collector, collecting
from tests.processes import asked_to_end
from tests.proxy import door
from tests.recording import until_remembered, wire
from tests.running import eventually
from tickmind import MemoryClient
from tickmind.database import Database
from tickmind.errors import TickmindError
from tickmind.local.ports import free_port
from tickmind.local.postgres import LocalPostgres
from tickmind.local.provider.faults import Status
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.running import Provider, running_provider
from tickmind.local.provider.triggers import Always
from tickmind.local.rabbitmq import LocalRabbitmq
from tickmind.refusals import refusal
from tickmind.settings import BrokerSettings, DatabaseSettings, EmbeddingSettings
from tickmind.telemetry import configure_logging
from tickmind_embedder.settings import EmbedderSettings
from tickmind_recorder.settings import RecorderSettings
from tickmind_retriever.settings import RetrieverSettings

#: Each stands for one secret or one text, and for nothing else in all that is looked through.
_SECRETS = {
    "database password": "pgSecretQ7x1",
    "broker password": "mqSecretQ7x2",
    "key": "sk-keySecretQ7x3",
    "next key": "sk-nextSecretQ7x4",
    "endpoint password": "urlSecretQ7x5",
    "speech": "quetzalQ7x6",
    "observed": "zanzibarQ7x7",
    "asked": "timbuktuQ7x8",
    "refused": "ouagadougouQ7x9",
    "wrong password": "wrongSecretQ7xA",
}
#: Four numbers in a row as vectors have them.
_VECTOR = re.compile(r"-?0\.\d{3,}(?:[,\s]+-?0\.\d{3,}){3}")
#: A busy machine takes a minute to start three services.
_PATIENCE_S = 180.0
_SERVICES = ("recorder", "embedder", "retriever")
_ROLE = "secretive"


@dataclass(slots=True)
class _Told:
    """Everything that anybody said, and where."""

    where: dict[str, str] = field(default_factory=dict)

    def add(self, where: str, said: str) -> None:
        self.where[where] = self.where.get(where, "") + said

    def check(self) -> None:
        for where, said in self.where.items():
            for name, secret in _SECRETS.items():
                place = said.find(secret)
                assert place < 0, (
                    f"{where} tells the {name}: {said[max(0, place - 300) : place + 80]}"
                )
            found = _VECTOR.search(said)
            assert found is None, f"{where} tells a vector: {found and found[0]}"


@pytest.fixture
async def database_with_password(
    postgres: LocalPostgres, database_settings: DatabaseSettings
) -> AsyncIterator[DatabaseSettings]:
    """The test's own database, by a role that needs its password."""
    access = postgres.data_dir / "cluster" / "pg_hba.conf"
    before = access.read_text()
    assert database_settings.database_url is not None
    superuser = Database(database_settings, application="test", vectors=False)

    async def run(*statements: str) -> None:
        async with superuser.reading() as session:
            for statement in statements:
                await (await session.connection()).exec_driver_sql(statement)

    access.write_text(f'local all "{_ROLE}" scram-sha-256\n{before}')
    password = _SECRETS["database password"]
    await run(
        f"CREATE ROLE {_ROLE} LOGIN SUPERUSER PASSWORD '{password}'", "SELECT pg_reload_conf()"
    )
    yield DatabaseSettings(
        database_host=str(postgres.socket_dir),
        database_user=_ROLE,
        database_password=SecretStr(password),
        database_name=superuser.engine.url.database or "",
    )
    access.write_text(before)
    await run(f"DROP ROLE {_ROLE}", "SELECT pg_reload_conf()")
    await superuser.dispose()


@pytest.fixture
async def broker_with_password(
    rabbitmq: LocalRabbitmq, broker_settings: BrokerSettings
) -> AsyncIterator[BrokerSettings]:
    """The test's own virtual host, by a user with a password."""
    vhost = broker_settings.broker_url().rsplit("/", 1)[1]
    password = _SECRETS["broker password"]
    await rabbitmq.rabbitmqctl(
        "eval",
        f'ok = rabbit_auth_backend_internal:add_user(<<"{_ROLE}">>, <<"{password}">>, <<"t">>),'
        f' rabbit_auth_backend_internal:set_permissions(<<"{_ROLE}">>, <<"{vhost}">>, <<".*">>,'
        f' <<".*">>, <<".*">>, <<"t">>).',
    )
    yield BrokerSettings(
        amqp_host="127.0.0.1",
        amqp_port=rabbitmq.port,
        amqp_user=_ROLE,
        amqp_password=SecretStr(password),
        amqp_vhost=vhost,
    )
    await rabbitmq.rabbitmqctl("delete_user", _ROLE)


def _environment(
    database: DatabaseSettings, broker: BrokerSettings, provider: Provider, **more: str
) -> dict[str, str]:
    assert database.database_password is not None
    return {
        "TICKMIND_DATABASE_HOST": database.database_host,
        "TICKMIND_DATABASE_PORT": str(database.database_port),
        "TICKMIND_DATABASE_USER": database.database_user,
        "TICKMIND_DATABASE_PASSWORD": database.database_password.get_secret_value(),
        "TICKMIND_DATABASE_NAME": database.database_name,
        "TICKMIND_AMQP_HOST": broker.amqp_host,
        "TICKMIND_AMQP_PORT": str(broker.amqp_port or 5672),
        "TICKMIND_AMQP_USER": broker.amqp_user,
        "TICKMIND_AMQP_PASSWORD": broker.amqp_password.get_secret_value(),
        "TICKMIND_AMQP_VHOST": broker.amqp_vhost,
        "TICKMIND_EMBEDDING_BASE_URL": provider.base_url,
        "TICKMIND_EMBEDDING_API_KEY": _SECRETS["key"],
        "TICKMIND_EMBEDDING_NEXT_API_KEY": _SECRETS["next key"],
        "TICKMIND_EMBEDDING_MODEL": "test",
        "TICKMIND_EMBEDDING_DIMENSIONS": "64",
        "TICKMIND_HEALTH_HOST": "127.0.0.1",
        "TICKMIND_LOG_LEVEL": "debug",
        "OPENAI_LOG": "debug",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        **more,
    }


async def _get(port: int, path: str) -> str:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return ""
    writer.write(f"GET {path} HTTP/1.0\r\naccept: application/openmetrics-text\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.decode()


@dataclass(slots=True, kw_only=True)
class _Running:
    """Services as processes, and all that they tell."""

    ports: dict[str, int]
    told: _Told

    async def served(self, name: str) -> str:
        """What a service answers over HTTP now; kept."""
        said = await _get(self.ports[name], "/readyz") + await _get(self.ports[name], "/metrics")
        self.told.add(f"{name} over HTTP", said)
        return said

    async def until(self, name: str, wanted: str, not_followed_by: str = "\0") -> None:
        pattern = re.compile(re.escape(wanted) + f"(?!{not_followed_by})")
        await eventually(
            lambda: self.served(name),
            lambda said: pattern.search(said) is not None,
            what=f"{name}: {wanted}",
            timeout_s=_PATIENCE_S,
        )


@asynccontextmanager
async def _services(
    environment: dict[str, str], told: _Told, label: str
) -> AsyncIterator[_Running]:
    """Run all three until the block ends, then keep what they said."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TICKMIND_")}
    async with AsyncExitStack() as stack:
        ports: dict[str, int] = {}
        for name in _SERVICES:
            ports[name] = free_port()
            given = {**kept, **environment, "TICKMIND_HEALTH_PORT": str(ports[name])}
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", f"tickmind_{name}"),
                env=given,
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            assert process.stdout is not None
            reading = asyncio.create_task(process.stdout.read())
            stack.push_async_callback(_ended, process, reading, told, f"{label}: {name}")
        yield _Running(ports=ports, told=told)


async def _ended(
    process: asyncio.subprocess.Process, reading: asyncio.Task[bytes], told: _Told, where: str
) -> None:
    await asked_to_end(process)
    said = (await reading).decode()
    assert said, f"{where} said nothing, so nothing was looked at"
    told.add(where, said)


def _spans(collector: Collector) -> str:
    return "\n".join(
        f"{span.service} {span.name} {json.dumps(span.attributes, default=str)}"
        for span in collector.spans
    )


@pytest.mark.timeout(600)
async def test_nothing_a_service_tells_holds_a_secret_or_a_text(
    database_with_password: DatabaseSettings,
    broker_with_password: BrokerSettings,
    database: Database,
) -> None:
    """In its work, and when the provider refuses it: logs, health, metrics, spans, replies."""
    told = _Told()
    options = ProviderOptions(native_width=64, api_key=_SECRETS["key"])
    async with collecting() as collector, running_provider(options) as provider:
        environment = _environment(database_with_password, broker_with_password, provider)
        environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.endpoint
        async with _services(environment, told, "with servers") as running:
            await _succeeding(running, broker_with_password, database, told)
            await _refused_by_the_provider(running, provider, broker_with_password, told)
        told.add("spans", _spans(collector))
        assert {span.service for span in collector.spans} >= {f"tickmind-{n}" for n in _SERVICES}
    told.check()


@pytest.mark.timeout(600)
async def test_nothing_that_is_told_of_servers_that_cannot_be_used_holds_a_secret(
    database_with_password: DatabaseSettings,
    broker_with_password: BrokerSettings,
    provider: Provider,
    tmp_path: Path,
) -> None:
    told = _Told()
    environment = _environment(database_with_password, broker_with_password, provider)
    await _without_their_servers(environment, provider, tmp_path, told)
    told.check()


@pytest.mark.timeout(600)
async def test_no_command_and_no_wrong_setting_tells_a_secret(
    database_with_password: DatabaseSettings,
    broker_with_password: BrokerSettings,
    provider: Provider,
    tmp_path: Path,
) -> None:
    told = _Told()
    environment = _environment(database_with_password, broker_with_password, provider)
    await _commands(environment, tmp_path, told)
    told.check()


async def _succeeding(
    running: _Running, broker: BrokerSettings, database: Database, told: _Told
) -> None:
    """A tick is stored, one decision of it and one message refused; embedded; recalled."""
    said: list[dict[str, Any]] = [
        {
            "agent": "bob",
            "action": "talk",
            "speech": f"The {_SECRETS['speech']} sings",
            "heard_by": ["alice"],
        },
        {"agent": "dan", "action": "observe", "text": f"{_SECRETS['observed']} is far"},
        {"agent": "eve", "action": "talk", "speech": _SECRETS["refused"], "importance": 99},
    ]
    for name in _SERVICES:
        await running.until(name, '"ready":true')
    async with wire(broker) as raw, MemoryClient(broker.broker_url()) as memory:
        receipt = await memory.publish_tick("town-7", 1, said)
        assert receipt.confirmed, receipt
        await raw.send(f'{{"world": "{_SECRETS["refused"]}", "tick": -1}}'.encode(), b"\xff")
        await until_remembered(database, 3)
        await running.until("embedder", "tickmind_memories_indexed_total 3.0")
        await running.until("recorder", 'tickmind_rejects_total{reason="invalid"} 3.0')
        seen = f"{_SECRETS['asked']}, a bird"
        options: dict[str, Any]
        for options in ({}, {"explain": True}, {"ranking": "relevance"}):
            answer = await memory.recall("town-7", "alice", seen, tick=9, timeout_s=10, **options)
            assert answer.status == "ok", answer
        with pytest.raises(TickmindError) as refused:
            await memory.recall("town-7", "alice", seen, tick=9, kinds=[{"a": seen}])
        told.add("client's refusal", str(refused.value))
    for name in _SERVICES:
        await running.served(name)


async def _refused_by_the_provider(
    running: _Running,
    provider: Provider,
    broker: BrokerSettings,
    told: _Told,
) -> None:
    """A provider that repeats in its refusals what it was sent: the key, the texts."""
    quoting = f"no: {_SECRETS['key']} may not embed {_SECRETS['speech']}-2, {_SECRETS['asked']}"
    for code, kind in ((500, "server"), (400, "text"), (401, "refused")):
        provider.faults.clear()
        provider.faults.add(Status(code=code, message=quoting), Always())
        async with MemoryClient(broker.broker_url()) as memory:
            talk = {"agent": "bob", "action": "talk", "speech": f"{_SECRETS['speech']} {code}"}
            receipt = await memory.publish_tick("town-7", code, [talk])
            assert receipt.confirmed
            await running.until(
                "embedder", f'tickmind_embedding_errors_total{{kind="{kind}"}} ', "0"
            )
            answer = await memory.recall(
                "town-7", "alice", f"{_SECRETS['asked']} {code}", tick=999, timeout_s=2
            )
            told.add("reply's detail", f"{answer.reason} {answer.detail}")
        for name in _SERVICES:
            await running.served(name)
    provider.faults.clear()


async def _without_their_servers(
    environment: dict[str, str], provider: Provider, where: Path, told: _Told
) -> None:
    """Servers that refuse the password, that are not there or hang up; a schema that is not. The
    provider's URL holds a password, which is nowhere forbidden."""
    base_url = provider.base_url.replace("://", f"://u:{_SECRETS['endpoint password']}@")
    environment = {**environment, "TICKMIND_EMBEDDING_BASE_URL": base_url}
    nobody = str(free_port())
    wrong = _SECRETS["wrong password"]
    async with door(("127.0.0.1", int(nobody))) as hanging_up:
        ways = {
            "wrong passwords": {
                "TICKMIND_DATABASE_PASSWORD": wrong,
                "TICKMIND_AMQP_PASSWORD": wrong,
            },
            "nobody there": {
                "TICKMIND_DATABASE_HOST": "127.0.0.1",
                "TICKMIND_DATABASE_PORT": nobody,
                "TICKMIND_AMQP_PORT": str(hanging_up.port),
            },
            "no such database": {
                "TICKMIND_DATABASE_NAME": "postgres",
                "TICKMIND_AMQP_VHOST": "nowhere",
            },
        }
        for way, change in ways.items():
            changed = {**environment, **change}
            await _commands(changed, where, told, label=way)
            if way == "nobody there":
                continue
            async with _services(changed, told, way) as running:
                for name in _SERVICES:
                    await running.until(name, '"database":')
                    await running.until(name, '"broker":')


async def _commands(
    environment: dict[str, str], where: Path, told: _Told, label: str = "commands"
) -> None:
    """Commands that need servers, and settings that nobody can use."""
    cli = Cli(where, environment)
    commands: list[list[str]] = [["status"]]
    if label == "wrong passwords":
        commands = [["migrate"], ["recall", "town-7", "alice", _SECRETS["asked"]]]
    if label == "commands":
        commands = [["migrate"], ["status", "--json"], ["space", "list", "--json"]]
    for arguments in commands:
        ended = await cli(*arguments)
        told.add(f"{label}: {' '.join(arguments)}", ended.out + ended.err)
    if label != "commands":
        return
    password, key = _SECRETS["database password"], _SECRETS["key"]
    odd: dict[str, dict[str, str]] = {
        "URL without a host": {"TICKMIND_DATABASE_URL": f"postgresql://u:{password}@:x/"},
        "URL of another kind": {"TICKMIND_DATABASE_URL": f"mysql://u:{password}@h/"},
        "both URL and file": {"TICKMIND_AMQP_PASSWORD_FILE": f"/{password}"},
        "broker's URL": {"TICKMIND_AMQP_URL": f"amqp://u:{password}@h:port/"},
        "broker's URL of another kind": {"TICKMIND_AMQP_URL": f"http://u:{password}@h/"},
        "key in two lines": {"TICKMIND_EMBEDDING_API_KEY": f"{key}\n{key}"},
        "key of odd letters": {"TICKMIND_EMBEDDING_API_KEY": f"{key}é"},
        "endpoint": {"TICKMIND_EMBEDDING_BASE_URL": f"ftp://u:{password}@h"},
    }
    for name, change in odd.items():
        wrong = Cli(where, {**environment, **change})
        of_the_key = name in ("key in two lines", "key of odd letters", "endpoint")
        ended = await wrong("embedder" if of_the_key else "recorder")
        assert ended.code == 2, (name, ended)
        told.add(name, ended.out + ended.err)


def test_refusals_repeat_nothing_of_what_a_provider_says() -> None:
    """Whatever the status and the form: the key and the texts that it quotes are its own words."""
    quoted = " ".join(_SECRETS.values())
    bodies = [
        json.dumps(body).encode()
        for body in (
            {"error": {"message": quoted, "code": quoted, "type": quoted, "param": quoted}},
            [{"error": {"message": quoted, "details": [{"retryDelay": quoted}]}}],
            {"detail": quoted},
            {"error": quoted},
        )
    ] + [quoted.encode()]
    told = _Told()
    for status in range(300, 600):
        for body in bodies:
            headers = {"location": quoted, "retry-after": quoted, "www-authenticate": quoted}
            error = refusal(
                status, headers, body, sent=2, texts=[quoted, "x"], now=datetime.now(UTC)
            )
            told.add(str(status), f"{error!r} {error}")
    told.check()


def test_settings_show_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither repr nor str, nor what pydantic dumps as text, from variables and from files."""
    for name, secret in (
        ("DATABASE_URL", f"postgresql://u:{_SECRETS['database password']}@h/db"),
        ("DATABASE_PASSWORD", _SECRETS["database password"]),
        ("AMQP_URL", f"amqp://u:{_SECRETS['broker password']}@h/"),
        ("AMQP_PASSWORD", _SECRETS["broker password"]),
        ("EMBEDDING_API_KEY", _SECRETS["key"]),
        ("EMBEDDING_NEXT_API_KEY", _SECRETS["next key"]),
    ):
        (tmp_path / name).write_text(secret)
        monkeypatch.setenv(f"TICKMIND_{name}_FILE", str(tmp_path / name))
    url = f"https://u:{_SECRETS['endpoint password']}@h/v1"
    monkeypatch.setenv("TICKMIND_EMBEDDING_BASE_URL", url)
    told = _Told()
    kinds: tuple[type[Any], ...] = (
        *(DatabaseSettings, BrokerSettings, EmbeddingSettings),
        *(RecorderSettings, EmbedderSettings, RetrieverSettings),
    )
    for kind in kinds:
        settings = kind()
        told.add(f"repr of {kind.__name__}", f"{settings!r} {settings}")
        told.add(f"{kind.__name__} without its URL", _dumped(settings))
    told.check()


def _dumped(settings: Any) -> str:
    return str(settings.model_dump_json(exclude={"embedding_base_url"}))


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What is logged from now on, as a service logs it."""
    root = logging.getLogger()
    handlers, level, hook = root.handlers[:], root.level, sys.excepthook
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    configure_logging("test", level="debug", style="text")
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    sys.excepthook = hook


async def test_a_logged_exception_says_where_and_what_but_not_what_it_was_given(
    database: Database, logged: io.StringIO
) -> None:
    """Errors of the database quote the row and its parameters, others their input."""
    logger = logging.getLogger("tickmind.test")
    speech = _SECRETS["speech"]
    statements: tuple[tuple[str, dict[str, str]], ...] = (
        # A row that breaks a constraint, a value of the wrong type, a key that is there already.
        ("INSERT INTO world (name) VALUES (:a), (:a)", {"a": speech}),
        ("SELECT CAST(CAST(:a AS text) AS bigint)", {"a": speech}),
        (f"SELECT '{speech}' FROM nowhere", {}),
        ("SELECT CAST(CAST(:a AS text) AS vector)", {"a": f"[0.1234, {speech}]"}),
    )
    for statement, parameters in statements:
        try:
            async with database.writing() as session:
                await session.execute(text(statement), parameters)
        except DBAPIError:
            logger.exception("failed")
    for raised in (
        ValueError(f"bad {speech}"),
        KeyError(speech),
        ExceptionGroup(f"many {speech}", [ValueError(speech), OSError(13, f"no {speech}")]),
    ):
        try:
            try:
                raise RuntimeError(speech)
            except RuntimeError as cause:
                raise raised from cause
        except Exception:
            logger.exception("failed")
    sys.excepthook(ValueError, ValueError(speech), None)
    said = logged.getvalue()
    assert "Permission denied" in said
    assert "SQLSTATE 23505" in said
    assert "RuntimeError" in said
    assert said.count("test_secrets.py") >= len(statements)
    told = _Told()
    told.add("log", said)
    told.check()
