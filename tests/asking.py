"""What tests of the client ask for: someone who answers recalls."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from tickmind.connecting import connect, declare
from tickmind.settings import BrokerSettings
from tickmind.topology import RECALL_QUEUE

__all__ = ["Reply", "answering", "at_once", "echo"]

Reply = Callable[[bytes], Awaitable[None]]
Answering = Callable[[AbstractIncomingMessage, Reply], Awaitable[None]]


@asynccontextmanager
async def answering(broker: BrokerSettings, answer: Answering) -> AsyncIterator[None]:
    """Someone who answers recalls as the test says."""
    async with await connect(broker, name="test") as connection:
        channel = await connection.channel()
        await declare(channel, RECALL_QUEUE)
        queue = await channel.get_queue(RECALL_QUEUE.name)

        async def asked(message: AbstractIncomingMessage) -> None:
            async def reply(body: bytes) -> None:
                await channel.default_exchange.publish(
                    aio_pika.Message(body, correlation_id=message.correlation_id),
                    routing_key=message.reply_to or "",
                    mandatory=False,
                )

            await answer(message, reply)

        await queue.consume(asked, no_ack=True)
        yield


def echo(request: dict[str, Any]) -> bytes:
    """A reply whose fragments are the observations."""
    return json.dumps(
        {
            "world": request["world"],
            "tick": request["tick"],
            "replies": [
                {"agent": query["agent"], "status": "ok", "fragment": query["observation"]}
                for query in request["queries"]
            ],
        }
    ).encode()


async def at_once(message: AbstractIncomingMessage, reply: Reply) -> None:
    await reply(echo(json.loads(message.body)))
