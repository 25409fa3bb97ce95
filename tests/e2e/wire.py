"""What passes the broker, and the published schemas it is held to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aio_pika
from jsonschema import Draft202012Validator

from tests.running import eventually
from tickmind import asyncapi
from tickmind.local.rabbitmq import LocalRabbitmq

__all__ = ["Seen", "Wire", "tapped", "validator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One message as it passed the broker."""

    exchange: str
    routing_key: str
    headers: dict[str, Any]
    body: bytes

    @property
    def contract(self) -> str:
        """Which contract's message it must be."""
        if (self.exchange, self.routing_key[:14]) == ("tickmind.events", "tick.ended.v1."):
            return "tick.ended"
        if (self.exchange, self.routing_key) == ("tickmind.events", "memory.recorded.v1"):
            return "memory.recorded"
        if (self.exchange, self.routing_key) == ("", "tickmind.recall"):
            return "recall"
        if self.exchange == "" and self.routing_key.startswith(("amq.gen-", "amq.rabbitmq.reply")):
            return "recall.reply"
        raise AssertionError(f"no contract is for {self.exchange!r} {self.routing_key!r}")

    def check(self) -> None:
        """Hold it to its schemas; the hint, which is no one's contract, to being empty."""
        if self.contract == "memory.recorded":
            assert json.loads(self.body) == {}
            return
        validator(self.contract).validate(json.loads(self.body))
        validator(self.contract, part="headers").validate(self.headers)


@dataclass(slots=True)
class Wire:
    """Every message that passed since the tap was opened."""

    seen: list[Seen] = field(default_factory=list)

    async def holds(self, *contracts: str) -> None:
        """Wait until messages of these contracts have passed; then hold every one to its own."""

        async def passed() -> set[str]:
            return {message.contract for message in self.seen}

        await eventually(
            passed, lambda names: names >= set(contracts), what="contracts on the wire"
        )
        for message in self.seen:
            message.check()

    async def count(self, contract: str) -> int:
        return sum(message.contract == contract for message in self.seen)


@asynccontextmanager
async def tapped(rabbitmq: LocalRabbitmq, url: str) -> AsyncIterator[Wire]:
    """A tap on the broker: its firehose tracer copies each published message to a queue of ours
    (RabbitMQ documentation, "Firehose Tracer")."""
    virtual_host = urlsplit(url).path[1:]
    wire = Wire()

    async def copied(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        told: Any = message.headers
        wire.seen.append(
            Seen(
                exchange=told["exchange_name"],
                routing_key=told["routing_keys"][0],
                headers=told["properties"].get("headers", {}),
                body=message.body,
            )
        )

    await rabbitmq.rabbitmqctl("trace_on", "-p", virtual_host)
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("", exclusive=True)
        await queue.bind("amq.rabbitmq.trace", routing_key="publish.#")
        await queue.consume(copied, no_ack=True)
        yield wire
    await rabbitmq.rabbitmqctl("trace_off", "-p", virtual_host)


def validator(contract: str, *, part: str = "payload") -> Draft202012Validator:
    """The published schema of a contract's messages, found by their name."""
    document = asyncapi.document()
    messages: dict[str, Any] = document["components"]["messages"]
    [key] = [key for key, message in messages.items() if message["name"] == contract]
    return Draft202012Validator({**document, "$ref": f"#/components/messages/{key}/{part}"})
