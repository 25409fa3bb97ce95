"""Putting refused input back on the path it came by."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aio_pika
from aio_pika.abc import DeliveryMode
from aio_pika.exceptions import DeliveryError

from tickmind.cli.servers import CommandFailed, open_broker
from tickmind.connecting import declare
from tickmind.settings import BrokerSettings
from tickmind.store.inspection import RejectedInput
from tickmind.telemetry import outgoing_headers
from tickmind.topology import (
    EVENTS,
    MAX_KEY_BYTES,
    RECORDER_QUEUE,
    TICK_ENDED_PREFIX,
    tick_ended_key,
)

__all__ = ["republishing"]

#: Longest wait for one confirmation.
CONFIRM_S = 30.0


@asynccontextmanager
async def republishing(
    settings: BrokerSettings,
) -> AsyncIterator[Callable[[RejectedInput], Awaitable[None]]]:
    """A function that publishes one reject again and returns once the broker has it.

    It raises CommandFailed where the broker does not confirm.
    """
    async with open_broker(settings) as connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        await declare(channel, RECORDER_QUEUE)
        exchange = await channel.get_exchange(EVENTS.name, ensure=False)

        async def republish(row: RejectedInput) -> None:
            message = aio_pika.Message(
                row.body,
                content_type="application/json",
                delivery_mode=DeliveryMode.PERSISTENT,
                headers=outgoing_headers(),
            )
            try:
                async with asyncio.timeout(CONFIRM_S):
                    await exchange.publish(message, routing_key=_key(row), mandatory=True)
            except (DeliveryError, TimeoutError) as exc:
                msg = f"the broker did not confirm reject {row.id}, which stays: try again later"
                raise CommandFailed(msg) from exc

        yield republish


def _key(row: RejectedInput) -> str:
    """The key it came with, where that leads to the recorder; its own queue's name does not, and
    one with marks for what was no UTF-8 may have become too long."""
    key = row.routing_key
    if key.startswith(TICK_ENDED_PREFIX) and len(key.encode()) <= MAX_KEY_BYTES:
        return key
    return tick_ended_key(row.world or "unknown")
