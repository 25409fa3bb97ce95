"""What keeps the queues there and the consumer real, whatever is done to them by others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from faststream.rabbit import RabbitBroker, RabbitQueue

from tickmind.connecting import BROKER_ERRORS, declare, losses_told, tolerated
from tickmind.telemetry import log
from tickmind.topology import DEAD_LETTER_QUEUE

__all__ = ["LOOK_S", "Tending"]

_logger = logging.getLogger("tickmind.recorder")

#: Between two looks. A ghost costs twice as long at the most; a look is 6 round trips, some 5 ms.
LOOK_S = 15.0
#: Longest a look may take; the next one is another try.
_MOST_S = 5.0


class Tending:
    """Declares the dead letters again, and consumes anew where nothing comes.

    A quorum queue that is deleted and made anew at once cancels nobody: RabbitMQ 3.10 goes on
    counting the consumer and gives it messages, which its channel never hands over. That cannot be
    told from a quiet world, so a quiet consumer gets a new channel, which costs nothing; what the
    old one held is delivered again.

    `idle`: whether nothing is held unacknowledged.
    """

    def __init__(
        self, broker: RabbitBroker, queue: RabbitQueue, *, idle: Callable[[], bool]
    ) -> None:
        self._broker = broker
        self._queue = queue
        self._idle = idle
        self._came = False

    def came(self) -> None:
        """A message was delivered."""
        self._came = True

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self._came = False
            await asyncio.sleep(LOOK_S)
            try:
                with losses_told():
                    async with asyncio.timeout(_MOST_S):
                        await self._redeclare()
                        if not self._came and self._idle():
                            await self._consume_anew()
            except BROKER_ERRORS as exc:  # it is away; whoever needs it says so
                log(_logger, logging.DEBUG, "not_tended", error=type(exc).__name__)

    async def _redeclare(self) -> None:
        connection = await self._broker.connect()
        channel = await connection.channel(publisher_confirms=False)
        try:
            await declare(channel, DEAD_LETTER_QUEUE)
        finally:
            await tolerated(channel.close())

    async def _consume_anew(self) -> None:
        """End the consumer's channel: it is opened again, with all that was declared on it."""
        declared = await self._broker.declare_queue(self._queue)  # known: nothing is asked
        channel = await declared.channel.get_underlay_channel()
        await channel.close()
