"""What tests of the recorder ask for: messages as anyone may send them, and what became of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractExchange
from pydantic import SecretStr
from sqlalchemy import text

from tests.proxy import Door
from tests.running import eventually, settings_for
from tickmind import MemoryClient
from tickmind.connecting import connect, declare
from tickmind.database import Database
from tickmind.service import App
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind.store.inspection import RejectedInput, rejects
from tickmind.topology import EVENTS, RECORDER_QUEUE, Queue, tick_ended_key
from tickmind_recorder.app import create_app
from tickmind_recorder.handler import Delivery, Handler
from tickmind_recorder.settings import RecorderSettings

__all__ = [
    "Remembered",
    "Wire",
    "behind",
    "client",
    "count",
    "database_behind",
    "execute",
    "kept_rejects",
    "left_in",
    "reads_of",
    "recorder",
    "remembered",
    "tick_body",
    "until",
    "until_rejected",
    "until_remembered",
    "wire",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """One row of `memory`, with names for ids."""

    agent: str
    tick: int
    kind: str
    content: str
    importance: int
    is_core: bool
    speaker: str | None


_REMEMBERED = text("""
    SELECT a.name AS agent, m.tick, m.kind, m.content, m.importance, m.is_core, s.name AS speaker
    FROM memory m JOIN agent a ON a.id = m.agent_id JOIN world w ON w.id = a.world_id
    LEFT JOIN agent s ON s.id = m.speaker_id
    WHERE w.name = :world ORDER BY m.tick, m.id
""")


async def remembered(database: Database, world: str = "town-7") -> list[Remembered]:
    """All memories of a world, by tick, then as they were stored."""
    async with database.reading() as session:
        rows = await session.execute(_REMEMBERED, {"world": world})
        return [Remembered(**row._asdict()) for row in rows]


async def until_remembered(
    database: Database, number: int, world: str = "town-7", *, timeout_s: float = 30.0
) -> list[Remembered]:
    """The memories of a world once there are at least so many."""
    return await eventually(
        lambda: remembered(database, world),
        lambda rows: len(rows) >= number,
        what=f"memories of {world}",
        timeout_s=timeout_s,
    )


async def kept_rejects(database: Database) -> list[RejectedInput]:
    async with database.reading() as session:
        return await rejects(session, most=10_000)


async def until_rejected(database: Database, number: int) -> list[RejectedInput]:
    return await eventually(
        lambda: kept_rejects(database), lambda rows: len(rows) >= number, what="rejects"
    )


async def count(database: Database, table: str) -> int:
    async with database.reading() as session:
        return int((await session.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one())


def recorder(database: DatabaseSettings, broker: BrokerSettings, **options: Any) -> App:
    return create_app(settings_for(RecorderSettings, database, broker, **options))


def client(broker: BrokerSettings) -> MemoryClient:
    return MemoryClient(broker.broker_url())


def tick_body(*decisions: Any, world: object = "town-7", tick: object = 42, **more: Any) -> bytes:
    """A tick.ended body, sound or not."""
    return json.dumps({"world": world, "tick": tick, "decisions": decisions} | more).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A channel of our own, for messages in no one's form."""

    channel: AbstractChannel
    events: AbstractExchange

    async def send(self, *bodies: bytes, key: str = tick_ended_key("town-7")) -> None:
        """Publish bodies as they are, each confirmed."""
        for body in bodies:
            message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await self.events.publish(message, routing_key=key)

    async def left_in(self, queue: Queue) -> int:
        """Messages that wait in a queue (those unacknowledged wait again once nobody consumes)."""
        declared = await self.channel.declare_queue(queue.name, passive=True)
        return int(declared.declaration_result.message_count or 0)


@asynccontextmanager
async def wire(broker: BrokerSettings) -> AsyncIterator[Wire]:
    async with await connect(broker, name="test") as connection:
        channel = await connection.channel(on_return_raises=True)
        await declare(channel, RECORDER_QUEUE)
        yield Wire(channel=channel, events=await channel.get_exchange(EVENTS.name))


async def left_in(broker: BrokerSettings, *queues: Queue) -> Sequence[int]:
    async with wire(broker) as opened:
        return [await opened.left_in(queue) for queue in queues]


def reads_of(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every delivery that reaches a recorder from now on, redeliveries too."""
    seen: list[bytes] = []
    original = Handler.read

    def read(self: Handler, body: bytes, routing_key: str) -> Delivery:
        seen.append(body)
        return original(self, body, routing_key)

    monkeypatch.setattr(Handler, "read", read)
    return seen


def behind(opened: Door, broker: BrokerSettings) -> BrokerSettings:
    """The same virtual host, through a door."""
    vhost = broker.broker_url().rsplit("/", 1)[1]
    return BrokerSettings(amqp_url=SecretStr(f"amqp://guest:guest@127.0.0.1:{opened.port}/{vhost}"))


def database_behind(opened: Door, database: Database) -> DatabaseSettings:
    """The same database, through a door."""
    return DatabaseSettings(
        database_host="127.0.0.1",
        database_port=opened.port,
        database_user="postgres",
        database_name=database.engine.url.database or "",
    )


async def until(ask: Callable[[], bool], what: str) -> None:
    async def asked() -> bool:
        return ask()

    await eventually(asked, bool, what=what)


async def execute(database: Database, *statements: str) -> None:
    async with database.writing() as session:
        for statement in statements:
            await session.execute(text(statement))
