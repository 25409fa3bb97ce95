"""Faults of RabbitMQ: gone, killed, short of memory, without one of its queues."""

from __future__ import annotations

import signal
from contextlib import AbstractAsyncContextManager

from tests.chaos.lasting import MOST_S, lasting
from tickmind.connecting import connect, declare
from tickmind.local.rabbitmq import LocalRabbitmq
from tickmind.settings import BrokerSettings
from tickmind.topology import Queue

__all__ = ["broker_killed", "broker_short_of_memory", "broker_stopped", "delete_queue"]

#: RabbitMQ's own default (documentation, "Memory Alarms": `vm_memory_high_watermark.relative`; 0.6
#: from 4.0 on), and a share of the machine's memory that any broker exceeds.
_WATERMARK, _TINY_WATERMARK = "0.4", "0.000001"


def broker_stopped(
    broker: LocalRabbitmq, *, most_s: float = MOST_S
) -> AbstractAsyncContextManager[None]:
    """The broker is shut down in order; it comes back on the same port with the same data."""
    return lasting(broker.stop_broker, broker.start, most_s=most_s)


def broker_killed(
    broker: LocalRabbitmq, *, most_s: float = MOST_S
) -> AbstractAsyncContextManager[None]:
    """The broker dies where it stands (SIGKILL); it comes back on the same port with its data."""

    async def kill() -> None:
        child = broker.child
        assert child is not None
        child.send(signal.SIGKILL)
        await child.wait()
        await child.stop()  # what it had started

    return lasting(kill, broker.start, most_s=most_s)


def broker_short_of_memory(
    broker: LocalRabbitmq, *, most_s: float = MOST_S
) -> AbstractAsyncContextManager[None]:
    """The memory alarm: RabbitMQ stops reading from every connection that publishes."""
    watermark = "set_vm_memory_high_watermark"
    return lasting(
        lambda: broker.rabbitmqctl(watermark, _TINY_WATERMARK),
        lambda: broker.rabbitmqctl(watermark, _WATERMARK),
        most_s=most_s,
    )


async def delete_queue(broker: BrokerSettings, queue: Queue, *, redeclare: bool = False) -> int:
    """Delete a queue under those who use it; how many messages went with it.

    `redeclare`: the same client makes it again at once, so that nobody ever sees it missing.
    """
    async with await connect(broker, name="chaos") as connection:
        channel = await connection.channel()
        deleted = await channel.queue_delete(queue.name)
        if redeclare:
            await declare(channel, queue)
    return int(deleted.message_count or 0)
