"""Acknowledgements through the deliveries' own channel, many in one frame.

A channel numbers its deliveries 1, 2, 3, …; once all up to n are stored, one frame says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from opentelemetry.context import Context

from tickmind.connecting import tolerated
from tickmind_recorder.handler import Delivery

__all__ = ["Acknowledged", "ChannelAcks"]


class _Channel(Protocol):
    """What of a channel is needed here (aiormq's has it)."""

    @property
    def is_closed(self) -> bool: ...

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> Awaitable[None]: ...

    def basic_reject(self, delivery_tag: int, *, requeue: bool = True) -> Awaitable[None]: ...


class ChannelAcks:
    """What of one channel's deliveries is done. A closed channel's are delivered anew: nothing
    is said about them, and a second storing changes nothing."""

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel
        self._settled: dict[int, bool] = {}  # tag: whether it still has to be acknowledged
        self._said = 0
        # A tag that reaches the broker after a higher one with `multiple` is unknown to it by
        # then, for which it closes the channel.
        self._in_order = asyncio.Lock()

    @property
    def lost(self) -> bool:
        """Whether the channel is closed, and its deliveries another's by now."""
        return self._channel.is_closed

    def settle(self, tag: int) -> None:
        """Note one delivery as stored."""
        self._settled[tag] = True

    async def give_up(self, tag: int) -> None:
        """One delivery to the dead letters."""
        async with self._in_order:
            await tolerated(self._channel.basic_reject(tag, requeue=False))
            self._settled[tag] = False

    async def flush(self) -> None:
        """Acknowledge all that are settled, up to the first that is not."""
        async with self._in_order:
            last = 0
            while self._said + 1 in self._settled:
                self._said += 1
                if self._settled.pop(self._said):
                    last = self._said
            if last:
                await tolerated(self._channel.basic_ack(last, multiple=True))


class Acknowledged:
    """One delivery with its way back."""

    __slots__ = ("channel", "delivery", "tag", "trace")

    def __init__(
        self, delivery: Delivery, tag: int, channel: ChannelAcks, *, trace: Context | None = None
    ) -> None:
        self.delivery = delivery
        self.trace = trace
        self.tag = tag
        self.channel = channel

    @property
    def lost(self) -> bool:
        return self.channel.lost

    def settle(self) -> None:
        self.channel.settle(self.tag)

    async def give_up(self) -> None:
        await self.channel.give_up(self.tag)
