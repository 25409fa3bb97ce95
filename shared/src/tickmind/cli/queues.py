"""How full the queues are: asked of the broker itself, which needs no management plugin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiormq.exceptions import ChannelNotFoundEntity

from tickmind.cli.servers import open_broker
from tickmind.settings import BrokerSettings
from tickmind.topology import DEAD_LETTER_QUEUE, EMBEDDER_QUEUE, RECALL_QUEUE, RECORDER_QUEUE, Queue

__all__ = ["ALL", "Depth", "depths"]

#: In the order of an event's path.
ALL = (RECORDER_QUEUE, EMBEDDER_QUEUE, RECALL_QUEUE, DEAD_LETTER_QUEUE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """One queue. `ready`: messages nobody has taken yet; None: there is no such queue yet."""

    queue: str
    ready: int | None
    consumers: int | None


async def depths(settings: BrokerSettings, queues: Sequence[Queue] = ALL) -> list[Depth]:
    """Each queue by a passive declare. Raises BrokerUnavailable, CommandFailed."""
    found = []
    async with open_broker(settings) as connection:
        for queue in queues:
            # The broker closes the channel on which one asks for a queue that is not there.
            channel = await connection.channel()
            try:
                declared = await channel.declare_queue(queue.name, passive=True)
            except ChannelNotFoundEntity:
                found.append(Depth(queue=queue.name, ready=None, consumers=None))
                continue
            result = declared.declaration_result
            found.append(
                Depth(
                    queue=queue.name,
                    ready=result.message_count or 0,
                    consumers=result.consumer_count or 0,
                )
            )
            await channel.close()
    return found
