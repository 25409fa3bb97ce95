"""The servers a town runs on: a real PostgreSQL and a real RabbitMQ of the suite's own."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import SecretStr

from tests.brokers import install_rabbitmq
from tests.virtual_hosts import add_virtual_hosts
from tickmind.local.postgres import LocalPostgres, running_postgres
from tickmind.local.rabbitmq import LocalRabbitmq, running_rabbitmq
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind_migrations import upgrade

__all__ = ["Stack", "running_stack"]

_TEMPLATE = "template"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Both servers, and `state_dir` for logs and whatever else a scenario writes.

    Durable, as in production: a commit that was told survives a killed server.
    """

    postgres: LocalPostgres
    rabbitmq: LocalRabbitmq
    state_dir: Path
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def new_database(self, *, migrated: bool = True) -> DatabaseSettings:
        """A database nobody else uses."""
        name = f"town_{next(self._numbers)}"
        await self.postgres.create_database(name, template=_TEMPLATE if migrated else None)
        return DatabaseSettings(database_url=SecretStr(self.postgres.database_url(name)))

    async def new_virtual_host(self) -> BrokerSettings:
        """A virtual host nobody else uses."""
        name = f"town-{next(self._numbers)}"
        await add_virtual_hosts(self.rabbitmq, name)
        return BrokerSettings(amqp_url=SecretStr(f"{self.rabbitmq.url}/{name}"))


@asynccontextmanager
async def running_stack() -> AsyncIterator[Stack]:
    """A stack in a temporary directory, wiped afterwards.

    Raises StartFailed or ConfigurationError where a server does not start.
    """
    await install_rabbitmq()
    # /var/tmp: a real disk that the servers' system users can reach.
    state_dir = Path(tempfile.mkdtemp(prefix="tickmind-chaos-", dir="/var/tmp"))
    state_dir.chmod(0o755)
    try:
        async with (
            running_postgres(state_dir / "postgres", durable=True) as postgres,
            running_rabbitmq(state_dir / "rabbitmq") as rabbitmq,
        ):
            await postgres.create_database(_TEMPLATE)
            url = SecretStr(postgres.database_url(_TEMPLATE))
            await upgrade(DatabaseSettings(database_url=url), lambda _: None)
            yield Stack(postgres=postgres, rabbitmq=rabbitmq, state_dir=state_dir)
    finally:
        shutil.rmtree(state_dir, ignore_errors=True)
