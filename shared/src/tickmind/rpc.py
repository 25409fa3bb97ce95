"""Requests and their replies, matched by a number, on one connection that comes back by itself."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage

from tickmind.connecting import BROKER_ERRORS, losses_told
from tickmind.link import Link
from tickmind.settings import BrokerSettings
from tickmind.telemetry import outgoing_headers
from tickmind.topology import Queue

__all__ = ["Requests"]

_REPLY_TO = "amq.rabbitmq.reply-to"


class Requests:
    """Asks whoever consumes `queue`. Any number may wait at once, all on one reply consumer.

    `told` hears why there is no connection, and None once there is one, as of a `Link`.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        queue: Queue,
        *,
        name: str,
        told: Callable[[str | None], None],
    ) -> None:
        self._queue = queue
        # RabbitMQ ends the channel, and all that wait on it, for an expiration beyond 49 days.
        self._longest_s: float = queue.arguments["x-message-ttl"] / 1000
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[bytes | None]] = {}
        self._link = Link(
            settings,
            name=name,
            confirms=False,
            opened=self._consume,
            lost=self._no_more,
            told=told,
        )

    def start(self) -> None:
        self._link.start()

    async def wait(self) -> None:
        """Until there is a connection. Raises ConnectionError once closed for good."""
        await self._link.wait()

    async def close(self) -> None:
        """Close the connection; who still waits is told."""
        await self._link.close()

    async def ask(self, body: bytes, *, timeout_s: float) -> bytes:
        """The reply. Raises TimeoutError, where no time is left without asking, and ConnectionError
        at once where no reply can come."""
        if not timeout_s > 0:  # RabbitMQ ends the channel for an expiration below zero, too
            raise TimeoutError
        channel = self._link.channel
        if channel is None:
            raise ConnectionError
        number = str(next(self._numbers))
        reply: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        message = aio_pika.Message(
            body,
            content_type="application/json",
            correlation_id=number,
            reply_to=_REPLY_TO,
            expiration=min(timeout_s, self._longest_s),
            headers=outgoing_headers(),
        )
        try:
            with losses_told():
                async with asyncio.timeout(timeout_s):
                    await channel.default_exchange.publish(
                        message, routing_key=self._queue.name, mandatory=False
                    )
                    answer = await reply
        except TimeoutError:
            raise
        except BROKER_ERRORS as exc:
            raise ConnectionError from exc
        finally:
            del self._waiting[number]
        if answer is None:
            raise ConnectionError
        return answer

    async def _consume(self, _: AbstractConnection, channel: AbstractChannel) -> None:
        queue = await channel.get_queue(_REPLY_TO, ensure=False)
        await queue.consume(self._replied, no_ack=True)

    async def _replied(self, message: AbstractIncomingMessage) -> None:
        reply = self._waiting.get(message.correlation_id or "")
        if reply is not None and not reply.done():  # else it came after its caller gave up
            reply.set_result(message.body)

    def _no_more(self) -> None:
        for reply in self._waiting.values():
            if not reply.done():
                reply.set_result(None)
