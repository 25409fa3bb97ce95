"""One connection that comes back by itself, and says at once when it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

from aio_pika.abc import AbstractChannel, AbstractConnection

from tickmind.connecting import BROKER_ERRORS, connect, losses_told, tolerated
from tickmind.errors import TickmindError
from tickmind.settings import BrokerSettings

__all__ = ["Link"]

#: Between two tries to connect: at first, and at most; jittered.
_WAIT_FIRST_S, _WAIT_MOST_S = 0.1, 5.0
#: Longest wait for the goodbye of a connection that may be dead already.
_GOODBYE_S = 2.0


class Link:
    """A connection with one channel, opened anew whenever it breaks.

    `opened(connection, channel)` prepares a new channel; `lost()` is called once for each one
    that broke; `told` hears why there is none, at each try, and None once there is one.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        name: str,
        confirms: bool,
        opened: Callable[[AbstractConnection, AbstractChannel], Awaitable[None]],
        lost: Callable[[], None] = lambda: None,
        told: Callable[[str | None], None],
    ) -> None:
        self._settings = settings
        self._name = name
        self._confirms = confirms
        self._opened = opened
        self._lost = lost
        self._told = told
        self._ready = asyncio.Event()
        self._broken = asyncio.Event()
        self._channel: AbstractChannel | None = None
        self._delay_s = _WAIT_FIRST_S
        self._keeping: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        self._closed = False
        self._ready.clear()
        self._keeping = asyncio.create_task(self._keep())

    @property
    def channel(self) -> AbstractChannel | None:
        """The open channel; None while there is none."""
        return self._channel

    async def wait(self) -> AbstractChannel:
        """The channel, once there is one. Raises ConnectionError once closed for good."""
        while (channel := self._channel) is None:
            if self._closed:
                msg = "this client is closed"
                raise ConnectionError(msg)
            await self._ready.wait()
        return channel

    def suspect(self, channel: AbstractChannel) -> None:
        """Something went wrong on it: if it is still ours, open a new one."""
        if channel is self._channel:
            self._broken.set()

    async def _keep(self) -> None:
        while not self._closed:
            try:
                with losses_told():
                    await self._hold()
            except TickmindError as exc:  # a CA's file that is being replaced, too
                self._told(str(exc))
                await self._pause()
            except BROKER_ERRORS as exc:
                self._told(f"RabbitMQ ended the connection ({type(exc).__name__}: {exc})")
                await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(self._delay_s * (0.5 + random.random() / 2))
        self._delay_s = min(_WAIT_MOST_S, self._delay_s * 2)

    async def _hold(self) -> None:
        """One connection, from its opening to its end."""
        connection = await connect(self._settings, name=self._name)
        # Its own: what an older connection still has to say must not end this one.
        broken = asyncio.Event()
        try:
            connection.close_callbacks.add(lambda *_: broken.set())
            channel = await connection.channel(
                publisher_confirms=self._confirms, on_return_raises=self._confirms
            )
            channel.close_callbacks.add(lambda *_: broken.set())
            await self._opened(connection, channel)
            self._channel, self._broken = channel, broken
            self._delay_s = _WAIT_FIRST_S
            self._told(None)
            self._ready.set()
            await broken.wait()
        finally:
            if self._channel is not None:
                self._channel = None
                self._ready.clear()
                self._lost()
            await tolerated(_within(_GOODBYE_S, connection.close()))

    async def close(self) -> None:
        """Close the connection for good."""
        self._closed = True
        self._ready.set()  # whoever waits learns that nothing will come
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
            self._keeping = None


async def _within(seconds: float, call: Awaitable[None]) -> None:
    # Not asyncio.wait_for, which forgets a cancellation that comes with the result (Python 3.11).
    async with asyncio.timeout(seconds):
        await call
