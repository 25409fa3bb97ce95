"""The services' way to RabbitMQ: FastStream brokers, and what readiness asks of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from faststream import FastStream
from faststream.rabbit import (
    Channel,
    ExchangeType,
    RabbitBroker,
    RabbitExchange,
    RabbitMessage,
    RabbitQueue,
)
from faststream.security import BaseSecurity

from tickmind.connecting import (
    BROKER_ERRORS,
    CONNECT_TIMEOUT_S,
    GOODBYE_S,
    BrokerUnavailable,
    connect,
    declare,
    losses_told,
    url_for,
)
from tickmind.foreign import read_foreign_properties
from tickmind.settings import BrokerSettings
from tickmind.telemetry import log
from tickmind.topology import DEAD_LETTER_QUEUE, Exchange, Queue

__all__ = [
    "briefly",
    "consumer_check",
    "create_broker",
    "declare_dead_letters",
    "rabbit_exchange",
    "rabbit_queue",
    "reachable",
    "start",
    "whole",
]

_logger = logging.getLogger("tickmind.broker")
_faststream_logger = logging.getLogger("tickmind.faststream")
_faststream_logger.setLevel(logging.WARNING)


def _failed(record: logging.LogRecord) -> bool:
    """A handler cut off with its connection did not fail: its message is delivered again."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


_faststream_logger.addFilter(_failed)


def create_broker(settings: BrokerSettings, *, name: str, prefetch: int) -> RabbitBroker:
    """A FastStream broker whose one channel holds at most `prefetch` unacknowledged messages.

    Subscribers take `decoder=whole` and check bodies themselves, by the contract, one decision at
    a time, which FastStream's own decoding and validation cannot.
    """
    read_foreign_properties()
    tls = settings.broker_tls()
    return RabbitBroker(
        url_for(settings, name=name),
        security=BaseSecurity(ssl_context=tls) if tls else None,
        default_channel=Channel(prefetch_count=prefetch),
        timeout=CONNECT_TIMEOUT_S,
        reconnect_interval=1.0,
        apply_types=False,
        # It tells of each message at info, which costs more than handling one.
        logger=_faststream_logger,
        app_id=f"tickmind-{name}",
    )


def rabbit_exchange(exchange: Exchange) -> RabbitExchange:
    return RabbitExchange(exchange.name, type=ExchangeType(exchange.type), durable=exchange.durable)


def rabbit_queue(queue: Queue) -> RabbitQueue:
    # FastStream types the arguments by queue type; ours are one table for all who declare.
    options: dict[str, Any] = {"arguments": dict(queue.arguments), "durable": True}
    return RabbitQueue(queue.name, routing_key=queue.bind_key or "", **options)


async def reachable(settings: BrokerSettings) -> str | None:
    """Why RabbitMQ cannot be used, in one sentence; None: it can."""
    try:
        connection = await connect(settings, name="check")
    except BrokerUnavailable as exc:
        return str(exc)
    await connection.close()
    return None


async def whole(message: RabbitMessage) -> RabbitMessage:
    """FastStream decoder that decodes nothing: the handler gets the message itself."""
    return message


async def declare_dead_letters(settings: BrokerSettings) -> None:
    """The dead letters' exchange and queue, which no service consumes. Raises BrokerUnavailable."""
    connection = await connect(settings, name="declare")
    async with connection:
        await declare(await connection.channel(), DEAD_LETTER_QUEUE)


def consumer_check(broker: RabbitBroker, queue: Queue) -> Callable[[], Awaitable[str | None]]:
    """A readiness check: our connection is open, and someone consumes from `queue`."""

    async def check() -> str | None:
        if not broker.running:  # to ask for its connection now would open a second one
            return "consuming has not begun"
        try:
            with losses_told():
                connection = await broker.connect()
                channel = await connection.channel(publisher_confirms=False)
                try:
                    declared = await channel.declare_queue(queue.name, passive=True, robust=False)
                    consumers = declared.declaration_result.consumer_count
                finally:
                    await channel.close()
        except BROKER_ERRORS as exc:
            return f"RabbitMQ cannot be used ({type(exc).__name__})"
        return None if consumers else f"nobody consumes from {queue.name}"

    return check


async def start(application: FastStream, stop: asyncio.Event) -> bool:
    """Start consuming, however often the broker goes away meanwhile; False: told to stop first."""
    delay = 0.5
    while not stop.is_set():
        try:
            with losses_told():
                await application.start()
        except BROKER_ERRORS as exc:
            log(_logger, logging.WARNING, "waiting", broker=f"{type(exc).__name__}: {exc}")
            # FastStream gathers what its subscribers raise into a group.
            with contextlib.suppress(*BROKER_ERRORS, ExceptionGroup), losses_told():
                await application.stop()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), delay)
            delay = min(5.0, delay * 2)
        else:
            return True
    return False


async def briefly(goodbye: Awaitable[object]) -> bool:
    """Whether the broker took its leave in time; nothing hangs on it."""
    # FastStream gathers what its subscribers raise into a group.
    with contextlib.suppress(*BROKER_ERRORS, ExceptionGroup):
        async with asyncio.timeout(GOODBYE_S):
            await goodbye
        return True
    return False
