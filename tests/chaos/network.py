"""The network of a town: doors that services and engines connect through."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sqlalchemy import make_url

from tests.chaos.stack import Stack
from tests.proxy import Door, door
from tickmind.local.ports import LOOPBACK
from tickmind.local.postgres import SUPERUSER
from tickmind.settings import BrokerSettings, DatabaseSettings

__all__ = ["Doors", "open_doors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """Services to database, services to broker, engines to broker."""

    database: Door
    broker: Door
    engines: Door

    def database_url(self, settings: DatabaseSettings) -> str:
        """Where services find a database of the stack."""
        assert settings.database_url is not None
        name = make_url(settings.database_url.get_secret_value()).database
        return f"postgresql://{SUPERUSER}@{LOOPBACK}:{self.database.port}/{name}"

    def services_url(self, settings: BrokerSettings) -> str:
        """Where services find a virtual host of the stack."""
        return _through(settings, self.broker)

    def engines_url(self, settings: BrokerSettings) -> str:
        """Where engines do."""
        return _through(settings, self.engines)


def _through(settings: BrokerSettings, opened: Door) -> str:
    virtual_host = settings.broker_url().rsplit("/", 1)[1]
    return f"amqp://guest:guest@{LOOPBACK}:{opened.port}/{virtual_host}"


@asynccontextmanager
async def open_doors(stack: Stack) -> AsyncIterator[Doors]:
    """Doors before the servers of a stack, shut on leaving."""
    broker = (LOOPBACK, stack.rabbitmq.port)
    async with (
        door(stack.postgres.socket_dir / ".s.PGSQL.5432") as to_database,
        door(broker) as to_broker,
        door(broker) as engines_to_broker,
    ):
        yield Doors(database=to_database, broker=to_broker, engines=engines_to_broker)
