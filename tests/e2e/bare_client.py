"""A client of README.md and aio-pika, without a line of tickmind."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import aio_pika

__all__ = ["BareClient"]


@dataclass(slots=True)
class BareClient:
    """Publishes and asks as README.md says; replies come to an exclusive queue of its own."""

    channel: aio_pika.abc.AbstractChannel
    replies: aio_pika.abc.AbstractQueue
    waiting: dict[str, asyncio.Future[Any]] = field(default_factory=dict)

    @classmethod
    @asynccontextmanager
    async def connected(cls, url: str) -> AsyncIterator[BareClient]:
        connection = await aio_pika.connect(url)
        async with connection:
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            client = cls(channel, await channel.declare_queue("", exclusive=True))
            await client.replies.consume(client._replied, no_ack=True)
            yield client

    async def _replied(self, message: aio_pika.abc.AbstractIncomingMessage) -> None:
        future = self.waiting.pop(message.correlation_id or "", None)
        if future is not None and not future.done():
            future.set_result(json.loads(message.body))

    async def publish(self, message: dict[str, Any]) -> None:
        """Returns once the broker has confirmed it; raises where no queue took it."""
        world = quote(str(message["world"]), safe="").replace(".", "%2E").replace("~", "%7E")
        exchange = await self.channel.get_exchange("tickmind.events", ensure=False)
        await exchange.publish(
            aio_pika.Message(
                json.dumps(message).encode(),
                content_type="application/json",
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            ),
            routing_key=f"tick.ended.v1.{world}"[:255],
            mandatory=True,
        )

    async def recall(self, request: dict[str, Any] | bytes, *, within_s: float = 5.0) -> Any:
        correlation_id = uuid.uuid4().hex
        future = self.waiting[correlation_id] = asyncio.get_running_loop().create_future()
        await self.channel.default_exchange.publish(
            aio_pika.Message(
                request if isinstance(request, bytes) else json.dumps(request).encode(),
                content_type="application/json",
                reply_to=self.replies.name,
                correlation_id=correlation_id,
                expiration=within_s,
            ),
            routing_key="tickmind.recall",
        )
        async with asyncio.timeout(within_s):
            return await future
