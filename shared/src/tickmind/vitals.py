"""What every service tells of itself: its version, its connections, the queues it can see."""

from __future__ import annotations

from importlib.metadata import version

from aio_pika.abc import AbstractConnection
from aiormq.exceptions import ChannelNotFoundEntity
from faststream.rabbit import RabbitBroker
from prometheus_client import CollectorRegistry, Gauge

from tickmind.connecting import BROKER_ERRORS, BrokerUnavailable, losses_told, tolerated
from tickmind.database import Database
from tickmind.schema import SCHEMA_VERSION
from tickmind.topology import (
    DEAD_LETTER_QUEUE,
    EMBEDDER_QUEUE,
    RECALL_QUEUE,
    RECORDER_QUEUE,
    Queue,
)
from tickmind.watching import Watch

__all__ = ["queue_watch", "tell_vitals"]

_QUEUES = (RECORDER_QUEUE, EMBEDDER_QUEUE, RECALL_QUEUE, DEAD_LETTER_QUEUE)


def tell_vitals(registry: CollectorRegistry, database: Database) -> None:
    """Register what costs nothing to look up."""
    build = Gauge(
        "tickmind_build_info",
        "1; which version this is, and the schema it needs",
        ["version", "schema"],
        registry=registry,
    )
    build.labels(version("tickmind"), SCHEMA_VERSION).set(1)
    size = Gauge(
        "tickmind_database_pool_size", "Connections this process may keep", registry=registry
    )
    size.set_function(lambda: _pool(database)[0])
    in_use = Gauge("tickmind_database_pool_in_use", "Of these, taken now", registry=registry)
    in_use.set_function(lambda: _pool(database)[1])


def _pool(database: Database) -> tuple[int, int]:
    """How many connections the pool may hold, and how many are taken."""
    pool = database.engine.sync_engine.pool
    # Any pool of several has both; the types know only the first.
    return int(pool.size()), int(pool.checkedout())  # type: ignore[attr-defined]


def queue_watch(registry: CollectorRegistry, broker: RabbitBroker) -> Watch:
    """Depths and consumers of all our queues, whoever consumes them: that is what tells of a
    service which is not there. Every service tells the same."""
    messages = Gauge(
        "tickmind_queue_messages", "Messages that wait in a queue", ["queue"], registry=registry
    )
    consumers = Gauge(
        "tickmind_queue_consumers", "Consumers of a queue", ["queue"], registry=registry
    )

    def forget() -> None:
        messages.clear()
        consumers.clear()

    async def look() -> None:
        if not broker.running:  # to ask for its connection now would open a second one
            forget()
            return
        try:
            with losses_told():
                connection = await broker.connect()
                for queue in _QUEUES:
                    waiting, consuming = await _seen(connection, queue)
                    messages.labels(queue.name).set(waiting)
                    consumers.labels(queue.name).set(consuming)
        except BROKER_ERRORS as exc:
            msg = f"the queues cannot be seen ({type(exc).__name__})"
            raise BrokerUnavailable(msg) from exc

    return Watch(name="queues", look=look, forget=forget)


async def _seen(connection: AbstractConnection, queue: Queue) -> tuple[int, int]:
    """Messages that wait in a queue, and its consumers; none of either where it is not there.
    Raises one of BROKER_ERRORS."""
    # A channel for each: one that asks for a queue that is not there is closed for it.
    channel = await connection.channel(publisher_confirms=False)
    try:
        told = (await channel.declare_queue(queue.name, passive=True)).declaration_result
    except ChannelNotFoundEntity:
        return 0, 0
    finally:
        await tolerated(channel.close())
    return told.message_count or 0, told.consumer_count or 0
