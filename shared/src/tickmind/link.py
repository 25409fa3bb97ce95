"""One connection that comes back by itself, and says at once when it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable

from aio_pika.abc import AbstractChannel, AbstractConnection

from tickmind.connecting import BROKER_ERRORS, BrokerUnavailable, connect
from tickmind.settings import BrokerSettings
from tickmind.telemetry import log

__all__ = ["Link"]

_logger = logging.getLogger("tickmind.client")

#: Between two tries to connect: at first, and at most; jittered.
_WAIT_FIRST_S, _WAIT_MOST_S = 0.1, 5.0


class Link:
    """A connection with one channel, opened anew whenever it breaks.

    `opened(channel)` prepares a new channel; `lost()` is called once for each one that broke.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        name: str,
        confirms: bool,
        opened: Callable[[AbstractConnection, AbstractChannel], Awaitable[None]],
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._name = name
        self._confirms = confirms
        self._opened = opened
        self._lost = lost
        self._ready = asyncio.Event()
        self._broken = asyncio.Event()
        self._channel: AbstractChannel | None = None
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._keeping = asyncio.create_task(self._keep())

    @property
    def channel(self) -> AbstractChannel | None:
        """The open channel; None while there is none."""
        return self._channel if self._ready.is_set() else None

    async def wait(self) -> AbstractChannel:
        """The channel, once there is one."""
        while (channel := self.channel) is None:
            await self._ready.wait()
        return channel

    def suspect(self, channel: AbstractChannel) -> None:
        """Something went wrong on it: if it is still ours, open a new one."""
        if channel is self._channel:
            self._break()

    def _break(self) -> None:
        if self._ready.is_set():
            self._ready.clear()
            self._lost()
        self._broken.set()

    async def _keep(self) -> None:
        delay = _WAIT_FIRST_S
        while True:
            try:
                connection = await connect(self._settings, name=self._name)
            except BrokerUnavailable as exc:
                log(_logger, logging.WARNING, "waiting", broker=str(exc))
                await asyncio.sleep(delay * (0.5 + random.random() / 2))
                delay = min(_WAIT_MOST_S, delay * 2)
                continue
            try:
                self._broken.clear()
                connection.close_callbacks.add(lambda *_: self._break())
                channel = await connection.channel(
                    publisher_confirms=self._confirms, on_return_raises=self._confirms
                )
                channel.close_callbacks.add(lambda *_: self._break())
                await self._opened(connection, channel)
                self._channel = channel
                self._ready.set()
                delay = _WAIT_FIRST_S
                await self._broken.wait()
            except BROKER_ERRORS as exc:
                log(_logger, logging.WARNING, "link_failed", error=type(exc).__name__)
                await asyncio.sleep(delay)
                delay = min(_WAIT_MOST_S, delay * 2)
            finally:
                self._break()
                with contextlib.suppress(*BROKER_ERRORS):
                    await connection.close()

    async def close(self) -> None:
        """Close the connection for good."""
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
            self._keeping = None
