"""Every exchange, queue, routing key and argument; nowhere else. RabbitMQ 3.10 to 4.x.

Plain data, so that the services (FastStream), the client (aio-pika) and the chart say the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

__all__ = [
    "DEAD_LETTERS",
    "DEAD_LETTER_QUEUE",
    "EMBEDDER_QUEUE",
    "EVENTS",
    "MAX_KEY_BYTES",
    "RECALL_QUEUE",
    "RECORDED_KEY",
    "RECORDER_QUEUE",
    "TICK_ENDED_PATTERN",
    "TICK_ENDED_PREFIX",
    "Exchange",
    "Queue",
    "tick_ended_key",
    "valid_reply_to",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    name: str
    type: str
    durable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """`bind_key`: how it hangs on EVENTS; None: reached by its own name only."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    exchange: Exchange | None = None
    bind_key: str | None = None


#: What engines publish to, and where the recorder announces what it stored.
EVENTS = Exchange(name="tickmind.events", type="topic")

#: Only for what could not even be rejected: a body too large to keep, say.
DEAD_LETTERS = Exchange(name="tickmind.dead-letters", type="fanout")
DEAD_LETTER_QUEUE = Queue(
    name="tickmind.dead-letters",
    arguments={"x-queue-type": "quorum"},
    exchange=DEAD_LETTERS,
    bind_key="",
)

#: What the routing key of a world's ticks begins with.
TICK_ENDED_PREFIX = "tick.ended.v1."
TICK_ENDED_PATTERN = TICK_ENDED_PREFIX + "#"
RECORDED_KEY = "memory.recorded.v1"

RECORDER_QUEUE = Queue(
    name="tickmind.recorder",
    arguments={
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": DEAD_LETTERS.name,
        "x-dead-letter-strategy": "at-least-once",
        # at-least-once dead lettering and back-pressure to the publisher both need it.
        "x-overflow": "reject-publish",
        # 4 GiB of waiting ticks: about 4 million of 1 kB; past it publishers are refused.
        "x-max-length-bytes": 4 * 1024**3,
        # A crash counts against every unacked neighbour; the recorder isolates poison itself.
        # RabbitMQ 4 would otherwise drop a message after 20 deliveries.
        "x-delivery-limit": 1_000_000,
    },
    exchange=EVENTS,
    bind_key=TICK_ENDED_PATTERN,
)

#: Hints only: the sweep finds what a lost hint would have announced.
EMBEDDER_QUEUE = Queue(
    name="tickmind.embedder",
    arguments={
        "x-queue-type": "classic",
        "x-max-length": 1000,
        "x-overflow": "drop-head",
        "x-message-ttl": 10_000,
    },
    exchange=EVENTS,
    bind_key=RECORDED_KEY,
)

#: A question nobody took within a minute has no one waiting for it (the longest deadline).
RECALL_QUEUE = Queue(
    name="tickmind.recall",
    arguments={"x-queue-type": "classic", "x-message-ttl": 60_000},
)

# RabbitMQ's direct reply-to: prefix, then tokens of base64 parted by dots. A malformed one makes
# the broker close the connection that publishes to it.
_DIRECT_REPLY = "amq.rabbitmq.reply-to"
_DIRECT_REPLY_TO = re.compile(r"amq\.rabbitmq\.reply-to(\.[A-Za-z0-9+/=_-]+)+")
#: Longest routing key or queue name: AMQP 0-9-1 short string.
MAX_KEY_BYTES = 255


def tick_ended_key(world: str) -> str:
    """Routing key of a world's ticks; the world percent-encoded, dots too, within 255 bytes."""
    encoded = quote(world, safe="").replace(".", "%2E").replace("~", "%7E")
    return TICK_ENDED_PREFIX + encoded[: MAX_KEY_BYTES - len(TICK_ENDED_PREFIX)]


def valid_reply_to(reply_to: str | None) -> bool:
    """Whether replies can be published to this queue name without harm to the connection."""
    if not reply_to or len(reply_to.encode(errors="replace")) > MAX_KEY_BYTES:
        return False
    if reply_to.startswith(_DIRECT_REPLY):
        return _DIRECT_REPLY_TO.fullmatch(reply_to) is not None
    return "\x00" not in reply_to
