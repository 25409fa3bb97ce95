"""The embedder, wired: hints and a sweep → handler → provider → database."""

from __future__ import annotations

import asyncio

from faststream import AckPolicy, FastStream
from faststream.rabbit import RabbitMessage
from prometheus_client import CollectorRegistry

from tickmind import topology
from tickmind.broker import (
    briefly,
    consumer_check,
    create_broker,
    rabbit_exchange,
    rabbit_queue,
    reachable,
    start,
    whole,
)
from tickmind.database import Database
from tickmind.service import App, Check
from tickmind.telemetry import read_headers
from tickmind.vitals import queue_watch, tell_vitals
from tickmind_embedder.handler import Metrics
from tickmind_embedder.indexing import Indexing
from tickmind_embedder.lanes import Lanes
from tickmind_embedder.settings import EmbedderSettings
from tickmind_embedder.watches import budget_watch, pending_watch

__all__ = ["create_app"]


def create_app(settings: EmbedderSettings) -> App:
    """Wire the embedder. Raises ConfigurationError; connects to nothing yet."""
    registry = CollectorRegistry()
    database = Database(settings, application="tickmind-embedder")
    tell_vitals(registry, database)
    lanes = Lanes(database, settings, Metrics(registry))
    indexing = Indexing(database, signed_from=settings.embedder_signatures_from)
    broker = create_broker(settings, name="embedder", prefetch=100)

    @broker.subscriber(
        rabbit_queue(topology.EMBEDDER_QUEUE),
        rabbit_exchange(topology.EVENTS),
        ack_policy=AckPolicy.ACK_FIRST,  # a hint lost is a hint the sweep makes up for
        decoder=whole,
        no_reply=True,
    )
    async def memory_recorded(message: RabbitMessage) -> None:
        headers = message.raw_message.headers
        lanes.hint(read_headers(headers) if "traceparent" in headers else None)

    async def work(stop: asyncio.Event) -> None:
        application = FastStream(broker, logger=None)
        tasks = [asyncio.create_task(lanes.run(stop)), asyncio.create_task(indexing.run(stop))]
        if settings.embedder_listen:
            tasks.append(asyncio.create_task(_listen(application, stop)))
        try:
            # What ends one of them, wrong settings above all, ends the process.
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if not await briefly(application.stop()):
                await briefly((await broker.connect()).close())
            await database.dispose()

    checks: dict[str, Check] = {
        "database": database.check,
        "store": lanes.stalled,
        "embedding": lanes.fault,
    }
    needs: dict[str, Check] = {"database": database.check}
    if settings.embedder_listen:
        needs["broker"] = lambda: reachable(settings)
        checks["broker"] = consumer_check(broker, topology.EMBEDDER_QUEUE)
    watches = [
        pending_watch(registry, database),
        budget_watch(registry, database, lanes.budgets),
    ]
    if settings.embedder_listen:
        watches.append(queue_watch(registry, broker))
    return App(
        name="embedder",
        needs=needs,
        checks=checks,
        work=work,
        close=database.dispose,
        registry=registry,
        notes={"space": lanes.note},
        watches=watches,
    )


async def _listen(application: FastStream, stop: asyncio.Event) -> None:
    if await start(application, stop):
        await stop.wait()
