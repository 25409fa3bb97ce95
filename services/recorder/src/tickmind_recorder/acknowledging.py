"""Acknowledgements through the deliveries' own channel, many in one frame.

A channel numbers its deliveries 1, 2, 3, …; once all up to n are stored, one frame says so.
"""

from __future__ import annotations

import contextlib

from aio_pika.abc import AbstractIncomingMessage

from tickmind.connecting import BROKER_ERRORS
from tickmind_recorder.handler import Delivery

__all__ = ["Acknowledged", "ChannelAcks"]


class ChannelAcks:
    """What of one channel's deliveries is done. A closed channel's are delivered anew: nothing
    is said about them, and a second storing changes nothing."""

    def __init__(self) -> None:
        self._settled: dict[int, AbstractIncomingMessage | None] = {}
        self._said = 0

    async def done(self, message: AbstractIncomingMessage) -> None:
        """Note one delivery as stored; acknowledge all that are, up to the first that is not."""
        await self._settle(message, acknowledge=True)

    async def give_up(self, message: AbstractIncomingMessage) -> None:
        """To the dead letters."""
        with contextlib.suppress(*BROKER_ERRORS):
            await message.reject(requeue=False)
        await self._settle(message, acknowledge=False)

    async def _settle(self, message: AbstractIncomingMessage, *, acknowledge: bool) -> None:
        assert message.delivery_tag is not None
        self._settled[message.delivery_tag] = message if acknowledge else None
        last: AbstractIncomingMessage | None = None
        while self._said + 1 in self._settled:
            self._said += 1
            last = self._settled.pop(self._said) or last
        if last is not None:
            with contextlib.suppress(*BROKER_ERRORS):  # the channel is gone
                await last.ack(multiple=True)


class Acknowledged:
    """One delivery with its way back."""

    __slots__ = ("_acks", "_message", "delivery")

    def __init__(
        self, delivery: Delivery, message: AbstractIncomingMessage, acks: ChannelAcks
    ) -> None:
        self.delivery = delivery
        self._message = message
        self._acks = acks

    async def done(self) -> None:
        await self._acks.done(self._message)

    async def give_up(self) -> None:
        await self._acks.give_up(self._message)
