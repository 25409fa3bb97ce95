"""Replies on a connection of their own, which is given up for a new one when it fails."""

from __future__ import annotations

import asyncio
from typing import Any

from tickmind.connecting import FireAndForget, tolerated
from tickmind.settings import BrokerSettings

__all__ = ["Replies"]

#: A failure tells of the connection, mostly; on a new one the reply gets another chance.
_TRIES = 2
#: Without the broker a goodbye waits for its answer for ever.
_GOODBYE_S = 3.0


class Replies:
    """Where replies go: unconfirmed, since who asked has a time limit of their own."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._way = FireAndForget(settings, name="retriever-replies")
        self._goodbyes: set[asyncio.Task[None]] = set()

    async def publish(self, body: bytes, *, reply_to: str, **properties: Any) -> bool:
        """Whether the reply left this process."""
        for _ in range(_TRIES):
            way = self._way
            if await way.publish(body, routing_key=reply_to, **properties):
                return True
            if way is self._way:  # else another reply found out first
                self._way = FireAndForget(self._settings, name="retriever-replies")
                goodbye = asyncio.create_task(_leave(way))
                self._goodbyes.add(goodbye)
                goodbye.add_done_callback(self._goodbyes.discard)
        return False

    async def close(self) -> None:
        await asyncio.gather(_leave(self._way), *self._goodbyes)


async def _leave(way: FireAndForget) -> None:
    await tolerated(asyncio.wait_for(way.close(), _GOODBYE_S))
