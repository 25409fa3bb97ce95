"""Replies on a connection of their own, tried once more on a new one where it fails."""

from __future__ import annotations

from typing import Any

from tickmind.connecting import FireAndForget
from tickmind.settings import BrokerSettings

__all__ = ["Replies"]

#: A failure tells of the connection, mostly; on a new one the reply gets another chance.
_TRIES = 2


class Replies:
    """Where replies go: unconfirmed, since who asked has a time limit of their own."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._way = FireAndForget(settings, name="retriever-replies")

    async def publish(self, body: bytes, *, reply_to: str, **properties: Any) -> bool:
        """Whether the reply left this process."""
        for _ in range(_TRIES):
            if await self._way.publish(body, routing_key=reply_to, **properties):
                return True
        return False

    async def close(self) -> None:
        await self._way.close()
