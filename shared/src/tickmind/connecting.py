"""Plain connections to RabbitMQ, on aio-pika alone: what the client and the replies use."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection
from aio_pika.connection import make_url
from aiormq.exceptions import AMQPError, InvalidFrameError, ProbableAuthenticationError

from tickmind.errors import ConfigurationError, TickmindError, TransientError
from tickmind.hosts import names_host
from tickmind.settings import BrokerSettings
from tickmind.telemetry import log
from tickmind.topology import Queue

__all__ = [
    "BROKER_ERRORS",
    "CONNECT_TIMEOUT_S",
    "BrokerUnavailable",
    "FireAndForget",
    "connect",
    "declare",
    "losses_told",
    "tolerated",
    "url_for",
]

#: Everything a broken connection, channel or publish raises.
BROKER_ERRORS = (AMQPError, ConnectionError, OSError, asyncio.TimeoutError, RuntimeError)

#: Longest wait for a connection to open.
CONNECT_TIMEOUT_S = 10.0
#: An orderly goodbye takes 10 ms; without the broker it waits for its answer for ever.
GOODBYE_S = 3.0
#: Seconds of a heartbeat. aiormq takes a silent peer for dead after 3 · (10 + 1) s (its
#: HEARTBEAT_GRACE_MULTIPLIER), so consumers are back well within a minute; 5 to 20 is what
#: RabbitMQ's documentation ("Heartbeats") calls right for most.
HEARTBEAT_S = 10

#: What a URL may say to the driver in numbers; it takes anything else for 0: no heartbeats, say.
_NUMBERS = ("heartbeat", "timeout", "interleave", "happy_eyeballs_delay", "reconnect_interval")
#: 65535 is the highest heartbeat.
_DIGITS = 6

#: Longest wait to hand over a message that may be lost. RabbitMQ stops reading from publishers
#: while it is short of memory or disk.
HAND_OVER_S = 5.0

#: What a URL may say besides where and who. Of what aiormq reads from it the rest is about TLS
#: (`no_verify_ssl`, `cafile`, …), and would be ignored or weaken it.
_URL_OPTIONS = frozenset(
    ("auth", "channel_max", "connection_timeout", "heartbeat", "heartbeat_monitoring", "name")
)

_logger = logging.getLogger("tickmind.broker")

#: Whether a connection of ours is what the driver logs about.
_OURS: ContextVar[bool] = ContextVar("ours", default=False)


def _others(_: logging.LogRecord) -> bool:
    """What the driver says of our connections is not logged: we say it, once. Tasks that it makes
    for a connection inherit the mark; connections of the engine's own are left alone."""
    return not _OURS.get()


class BrokerUnavailable(TransientError):
    """RabbitMQ cannot be reached now."""

    reason = "broker"


def url_for(settings: BrokerSettings, *, name: str) -> str:
    """The broker's URL with our heartbeat, unless it names one, and the connection's name.

    Raises ConfigurationError where it is none.
    """
    try:
        url = make_url(settings.broker_url())
        sound = bool(url.host) and names_host(url.host or "")
    except ValueError:
        sound = False
    if not sound:  # said without the cause, which would print the password
        msg = "TICKMIND_AMQP_URL must look like amqp://user:password@host:5672/vhost"
        raise ConfigurationError(msg)
    unknown = sorted(set(url.query) - _URL_OPTIONS)
    if unknown:
        msg = (
            f"TICKMIND_AMQP_URL: unknown parameter {', '.join(unknown)}; TLS is asked for by"
            " amqps://, its CA is named by TICKMIND_AMQP_CA_FILE"
        )
        raise ConfigurationError(msg)
    for parameter in _NUMBERS:
        given = url.query.get(parameter, "0")
        if not (given.isascii() and given.isdigit() and len(given) < _DIGITS):
            msg = f"TICKMIND_AMQP_URL: {parameter} must be a number"
            raise ConfigurationError(msg)
    options = {"heartbeat": str(HEARTBEAT_S), "name": f"tickmind-{name}"}
    return str(url.with_query({**options, **url.query}))


@contextmanager
def losses_told() -> Iterator[None]:
    """Raises ConnectionError for a loss that aiormq tells otherwise.

    What waits on a connection that closes may get a bare Exception, or, where aiormq closes it
    itself (missed heartbeats), a CancelledError though nobody cancelled us.
    """
    msg = "the connection was closed meanwhile"
    try:
        yield
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise ConnectionError(msg) from exc
    except Exception as exc:
        if type(exc) is not Exception:
            raise
        raise ConnectionError(msg) from exc


async def tolerated(call: Awaitable[object]) -> bool:
    """Whether the broker took it; a lost connection or channel is nothing to raise for."""
    try:
        with losses_told():
            await call
    except BROKER_ERRORS:
        return False
    return True


async def connect(settings: BrokerSettings, *, name: str) -> AbstractConnection:
    """One plain connection, which does not come back by itself. Raises BrokerUnavailable, and
    ConfigurationError where a CA cannot be read."""
    for logger in ("aiormq.connection", "aio_pika.connection"):
        logging.getLogger(logger).addFilter(_others)
    ours = _OURS.set(True)
    try:
        with losses_told():
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await aio_pika.connect(
                    url_for(settings, name=name), ssl_context=settings.broker_tls()
                )
    except BROKER_ERRORS as exc:
        msg = f"RabbitMQ cannot be reached: {_why(exc, settings)}"
        raise BrokerUnavailable(msg) from exc
    finally:
        _OURS.reset(ours)


def _why(exc: BaseException, settings: BrokerSettings) -> str:
    """What a connection failed of, in words that say where to look; no password in them."""
    url = make_url(settings.broker_url())
    where = f"{url.host}:{url.port}"
    cause = exc.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        told = f"certificate verify failed: {cause.verify_message}"
        return f"the certificate of {where} is refused ({told}): is it of the CA we were told of?"
    if isinstance(cause, ssl.SSLError):
        return f"no TLS with {where} ({cause.reason}): is it a port of TLS?"
    if isinstance(cause, socket.gaierror):
        return f"no host has the name {url.host}"
    if isinstance(cause, ConnectionRefusedError):
        return f"nothing listens at {where}"
    if isinstance(exc, TimeoutError):
        return f"{where} did not answer within {CONNECT_TIMEOUT_S:g} s: is it RabbitMQ?"
    if isinstance(exc, ProbableAuthenticationError):
        return f"{where} refuses the user {url.user} or the password"
    if isinstance(exc, InvalidFrameError) and "Connection.OpenOk" in str(exc):
        return f"{where} refuses the virtual host: is it there, and may {url.user} use it?"
    return f"{where} ({type(exc).__name__}: {exc})"


async def declare(channel: AbstractChannel, *queues: Queue) -> None:
    """Declare queues with their exchanges and bindings, as the topology says."""
    for queue in queues:
        declared = await channel.declare_queue(
            queue.name, durable=True, arguments=dict(queue.arguments)
        )
        if queue.exchange is not None:
            exchange = await channel.declare_exchange(
                queue.exchange.name, queue.exchange.type, durable=queue.exchange.durable
            )
            await declared.bind(exchange, routing_key=queue.bind_key or "")


class FireAndForget:
    """Publishes that may be lost: unconfirmed, transient, on a connection of their own.

    A malformed reply-to makes the broker close the connection it came on; here that costs
    nothing but the next connect.
    """

    def __init__(self, settings: BrokerSettings, *, name: str) -> None:
        self._settings = settings
        self._name = name
        self._lock = asyncio.Lock()
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        self._goodbyes: set[asyncio.Task[None]] = set()

    async def publish(
        self,
        body: bytes,
        *,
        routing_key: str,
        exchange: str = "",
        **properties: Any,
    ) -> bool:
        """Whether the message left this process; waits for that no longer than HAND_OVER_S."""
        channel: AbstractChannel | None = None
        try:
            with losses_told():
                async with asyncio.timeout(HAND_OVER_S):
                    channel = self._channel
                    if channel is None or channel.is_closed:
                        channel = await self._open()
                    target = (
                        await channel.get_exchange(exchange, ensure=False)
                        if exchange
                        else channel.default_exchange
                    )
                    message = aio_pika.Message(body, **properties)
                    await target.publish(message, routing_key=routing_key, mandatory=False)
        except (*BROKER_ERRORS, TickmindError) as exc:  # a CA's file that is being replaced, too
            log(_logger, logging.WARNING, "publish_lost", error=type(exc).__name__)
            if channel is not None and channel is self._channel:
                self._give_up()
            return False
        return True

    def _give_up(self) -> None:
        """After a failure the next publish opens a connection anew: one that was reset says of
        itself that it is open."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            goodbye = asyncio.create_task(_leave(connection))
            self._goodbyes.add(goodbye)
            goodbye.add_done_callback(self._goodbyes.discard)

    async def _open(self) -> AbstractChannel:
        async with self._lock:
            if self._channel is not None and not self._channel.is_closed:
                return self._channel
            if self._connection is None or self._connection.is_closed:
                self._connection = await connect(self._settings, name=self._name)
            self._channel = await self._connection.channel(publisher_confirms=False)
            return self._channel

    async def close(self) -> None:
        self._give_up()
        await asyncio.gather(*self._goodbyes)


async def _leave(connection: AbstractConnection) -> None:
    await tolerated(asyncio.wait_for(connection.close(), GOODBYE_S))
