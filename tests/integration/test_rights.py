"""Least privilege: each service as a role and a user of its own, made as the chart makes them."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from tests.deployed import run_script
from tests.remembering import counted, known, remember
from tests.running import SOUND, running, settings_for, settled
from tickmind import MemoryClient
from tickmind.database import Database
from tickmind.database_errors import sqlstate
from tickmind.hashed import hash_embed
from tickmind.local.postgres import LocalPostgres
from tickmind.local.provider.running import Provider
from tickmind.local.rabbitmq import LocalRabbitmq
from tickmind.reindexing import Reindexing
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind.store.spaces import Space
from tickmind.tables import metadata
from tickmind_embedder.app import create_app as create_embedder
from tickmind_embedder.settings import EmbedderSettings
from tickmind_migrations import upgrade
from tickmind_migrations.rights import RIGHTS
from tickmind_recorder.app import create_app as create_recorder
from tickmind_recorder.settings import RecorderSettings
from tickmind_retriever.app import create_app as create_retriever
from tickmind_retriever.settings import RetrieverSettings

_FILES = Path(__file__).parents[2] / "charts" / "tickmind" / "files"
_ODD = "~,>?@:/#%&\"'\\"
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Servers:
    """One database and one virtual host, with the chart's roles and users."""

    postgres: LocalPostgres
    rabbitmq: LocalRabbitmq
    name: str

    def database(self, role: str) -> DatabaseSettings:
        return DatabaseSettings(
            database_host=str(self.postgres.socket_dir),
            database_user=role,
            database_name=self.name,
        )

    def broker(self, user: str) -> BrokerSettings:
        _, _, address = self.rabbitmq.url.rpartition("@")
        host, _, port = address.partition(":")
        return BrokerSettings(
            amqp_host=host,
            amqp_port=int(port),
            amqp_user=f"{self.name}-{user}",
            amqp_password=SecretStr(_ODD),
            amqp_vhost=self.name,
        )

    def engine(self) -> dict[str, str]:
        """The environment of an engine."""
        broker = self.broker("engine")
        return {
            "TICKMIND_AMQP_HOST": broker.amqp_host,
            "TICKMIND_AMQP_PORT": str(broker.amqp_port),
            "TICKMIND_AMQP_USER": broker.amqp_user,
            "TICKMIND_AMQP_PASSWORD": _ODD,
            "TICKMIND_AMQP_VHOST": self.name,
            "TEST_WORLD": "helm-test",
        }


@pytest.fixture
async def servers(
    postgres: LocalPostgres, rabbitmq: LocalRabbitmq, state_dir: Path
) -> AsyncIterator[_Servers]:
    name = f"rights_{next(_numbers)}"
    made = _Servers(postgres=postgres, rabbitmq=rabbitmq, name=name)
    await postgres.create_database(name)
    environment = {
        "PGHOST": str(postgres.socket_dir),
        "PGPORT": "5432",
        "PGUSER": "postgres",
        "PGPASSWORD": "",
        "DATABASE": name,
    }
    roles = ["tickmind", *RIGHTS]
    for key, role in zip(("OWNER", "RECORDER", "EMBEDDER", "RETRIEVER"), roles, strict=True):
        environment |= {f"ROLE_{key}": role, f"PASSWORD_{key}": _ODD}
    for _ in range(2):  # each revision runs it anew
        await run_script(_FILES / "postgresql/roles.py", **environment)
    await upgrade(made.database("tickmind"), lambda _: None)

    users = json.loads((_FILES / "rabbitmq/users.json").read_text(encoding="utf-8"))
    broker = {"VHOST": name}
    for user in users:
        broker |= {f"USER_{user.upper()}": f"{name}-{user}", f"PASSWORD_{user.upper()}": _ODD}
    written = state_dir / f"{name}.json"
    await run_script(_FILES / "rabbitmq/definitions.py", str(written), **broker)
    await rabbitmq.rabbitmqctl("import_definitions", str(written))
    yield made
    await rabbitmq.rabbitmqctl("delete_vhost", name)
    await postgres.drop_database(name)
    superuser = Database(
        DatabaseSettings(database_url=SecretStr(postgres.database_url("postgres"))),
        application="test",
        vectors=False,
    )
    async with superuser.reading() as session:
        for role in roles:
            await session.execute(text(f"DROP ROLE {role}"))
    await superuser.dispose()


async def test_every_service_does_its_work_with_its_own_rights_alone(
    servers: _Servers, provider: Provider
) -> None:
    """case 44: with passwords that no URL can hold as they are; pgvector in its own schema."""
    metered: dict[str, Any] = {
        "embedding_provider": "openai",
        "embedding_base_url": provider.base_url,
        "embedding_model": "test",
        "embedding_limits": "3000 texts/min, 100 calls/10s",
    }
    apps = [
        create_recorder(
            settings_for(
                RecorderSettings, servers.database("tickmind_recorder"), servers.broker("recorder")
            )
        ),
        create_embedder(
            settings_for(
                EmbedderSettings,
                servers.database("tickmind_embedder"),
                servers.broker("embedder"),
                **metered,
            )
        ),
        create_retriever(
            settings_for(
                RetrieverSettings,
                servers.database("tickmind_retriever"),
                servers.broker("retriever"),
                **metered,
            )
        ),
    ]
    owner = Database(servers.database("tickmind"), application="test")
    said: list[dict[str, Any]] = [
        {"agent": "bob", "action": "talk", "speech": "We sell fish", "heard_by": ["alice"]},
        {"agent": "carol", "action": "talk"},  # a reject: it says nothing
    ]
    engine = servers.broker("engine").broker_url()
    async with running(*apps), MemoryClient(engine) as memory:
        for tick in (1, 1, 2):  # what is there already is written to again
            receipt = await memory.publish_tick("town", tick, said, timeout_s=30)
            assert receipt.confirmed, receipt
        assert await settled(owner, "town", memories=4) == SOUND
        answer = await memory.recall("town", "alice", "at the market", tick=3, timeout_s=30)
        assert answer.status == "ok", answer
        # And what `helm test` runs, twice.
        for _ in range(2):
            told = await run_script(_FILES / "test/fish.py", **servers.engine())
            assert "bob told me: We sell fish" in told
    await owner.dispose()


async def test_embedder_builds_the_recall_index_anew_with_its_own_rights(
    servers: _Servers,
) -> None:
    """And signs what was linked before it was signed."""
    database = Database(servers.database("tickmind_embedder"), application="test")
    owner = Database(servers.database("tickmind"), application="test")
    texts = [f"text {i}" for i in range(40)]
    space = Space(model="hash", dimensions=64)
    await known(owner, {}, space)
    await remember(owner, texts)
    await known(owner, {told: hash_embed(told, 64) for told in texts}, space)
    reindexing = Reindexing(database.writing)
    assert await reindexing.build() is not None
    async with owner.writing() as session:
        await session.execute(text("UPDATE recall_index SET signature = NULL"))
    build = await reindexing.current()
    assert build is not None
    await reindexing.tend(build)
    await database.dispose()
    unsigned = "recall_index WHERE generation_id = :id AND signature IS NULL"
    assert await counted(owner, unsigned, id=build.active_id) == 0
    await owner.dispose()


_REFUSED = [
    ("tickmind_recorder", "SELECT context FROM memory"),
    ("tickmind_recorder", "SELECT vector FROM embedding"),
    ("tickmind_recorder", "SELECT body FROM reject"),
    ("tickmind_recorder", "DELETE FROM memory"),
    ("tickmind_embedder", "UPDATE memory SET content = 'other'"),
    ("tickmind_embedder", "SELECT body FROM reject"),
    ("tickmind_embedder", "DELETE FROM memory"),
    ("tickmind_retriever", "INSERT INTO world (name) VALUES ('mine')"),
    ("tickmind_retriever", "UPDATE index_generation SET status = 'retired'"),
    ("tickmind_retriever", "SELECT body FROM reject"),
    *((role, "CREATE INDEX ON recall_index (tick)") for role in RIGHTS),
    *((role, "CREATE TABLE mine (id int)") for role in RIGHTS),
    *((role, "CREATE TABLE extensions.mine (id int)") for role in RIGHTS),
    *((role, "DROP TABLE memory") for role in RIGHTS),
    *((role, "UPDATE alembic_version SET version_num = '0'") for role in RIGHTS),
]


async def test_what_a_service_does_not_need_it_may_not(servers: _Servers) -> None:
    for role, statement in _REFUSED:
        database = Database(servers.database(role), application="test", vectors=False)
        with pytest.raises(ProgrammingError) as refused:
            async with database.writing() as session:
                await session.execute(text(statement))
        assert sqlstate(refused.value) == "42501", (role, statement)
        await database.dispose()


def test_every_table_is_somebodys() -> None:
    named = {table for rights in RIGHTS.values() for table in rights}
    assert {*metadata.tables, "alembic_version"} <= named
