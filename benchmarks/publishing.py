"""Messages into the recorder's queue, many of them unconfirmed at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aio_pika
from aio_pika.abc import AbstractChannel, DeliveryMode

from tickmind.topology import EVENTS, tick_ended_key

__all__ = ["publish"]

#: Publishes waiting for their confirmation at once.
_UNCONFIRMED = 200


async def publish(channel: AbstractChannel, world: str, bodies: Sequence[bytes]) -> None:
    """Publish to the recorder's queue and wait for every confirmation. Raises aio-pika's errors."""
    exchange = await channel.get_exchange(EVENTS.name, ensure=False)
    room = asyncio.Semaphore(_UNCONFIRMED)

    async def one(body: bytes) -> None:
        message = aio_pika.Message(body, delivery_mode=DeliveryMode.PERSISTENT)
        async with room:
            await exchange.publish(message, routing_key=tick_ended_key(world))

    async with asyncio.TaskGroup() as tasks:
        for body in bodies:
            tasks.create_task(one(body))
