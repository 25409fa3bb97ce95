"""Request and reply over RabbitMQ with bare aio-pika: what no RPC on it can be faster than.

The same mechanism as tickmind's: direct reply-to, transient, unconfirmed and not mandatory, a
reply connection of the server's own, and the prefetch of the retriever. The server, a process of
its own, answers everything with the same bytes, as many as a real reply has.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
from pathlib import Path
from typing import Self

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from tickmind.topology import RECALL_QUEUE

__all__ = ["QUEUE", "Caller", "served"]

QUEUE = "bench.echo"
_LOOK_S = 0.05
_REPLY_TO = "amq.rabbitmq.reply-to"


async def served(url: str) -> None:
    """Wait until the server consumes."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        while True:
            queue = await channel.declare_queue(
                QUEUE, durable=True, arguments=dict(RECALL_QUEUE.arguments)
            )
            if queue.declaration_result.consumer_count:
                return
            await asyncio.sleep(_LOOK_S)


class Caller:
    """The asking side, on one connection."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._channel: AbstractChannel | None = None

    async def __aenter__(self) -> Self:
        self._connection = await aio_pika.connect(self._url)
        self._channel = await self._connection.channel(publisher_confirms=False)
        replies = await self._channel.get_queue(_REPLY_TO, ensure=False)
        await replies.consume(self._replied, no_ack=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()

    async def call(self, body: bytes, queue: str) -> bytes:
        """The answer of whoever serves that queue."""
        assert self._channel is not None
        number = str(next(self._numbers))
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        message = aio_pika.Message(body, correlation_id=number, reply_to=_REPLY_TO)
        await self._channel.default_exchange.publish(message, routing_key=queue, mandatory=False)
        return await future

    async def _replied(self, message: AbstractIncomingMessage) -> None:
        self._waiting.pop(message.correlation_id or "").set_result(message.body)


async def _serve(url: str, reply: bytes, prefetch: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with await aio_pika.connect(url) as connection, await aio_pika.connect(url) as back:
        replies = await back.channel(publisher_confirms=False)
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=prefetch)
        queue = await channel.declare_queue(
            QUEUE, durable=True, arguments=dict(RECALL_QUEUE.arguments)
        )

        async def answer(message: AbstractIncomingMessage) -> None:
            await replies.default_exchange.publish(
                aio_pika.Message(reply, correlation_id=message.correlation_id),
                routing_key=message.reply_to or "",
                mandatory=False,
            )
            await message.ack()

        await queue.consume(answer)
        await stop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--amqp", required=True)
    parser.add_argument("--reply", type=Path, required=True, help="file with the answer")
    parser.add_argument("--prefetch", type=int, required=True)
    options = parser.parse_args()
    asyncio.run(_serve(options.amqp, options.reply.read_bytes(), options.prefetch))
