"""The three services' work in this process, without a broker: each built in one place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from opentelemetry.context import Context
from prometheus_client import CollectorRegistry

from tickmind.database import Database
from tickmind.policy import default_policy
from tickmind_embedder.indexing import Indexing
from tickmind_embedder.lanes import Lanes
from tickmind_embedder.metrics import Metrics as EmbedderMetrics
from tickmind_embedder.settings import EmbedderSettings
from tickmind_recorder.batching import Batcher
from tickmind_recorder.handler import Delivery
from tickmind_recorder.handler import Handler as RecorderHandler
from tickmind_recorder.metrics import Metrics as RecorderMetrics
from tickmind_recorder.settings import RecorderSettings
from tickmind_retriever.handler import Handler
from tickmind_retriever.metrics import Metrics
from tickmind_retriever.ranking import load_ranking
from tickmind_retriever.settings import RetrieverSettings
from tickmind_retriever.spaces import Spaces

__all__ = ["Recorder", "embedding", "recording", "retrieving"]


@asynccontextmanager
async def retrieving(database: Database, settings: RetrieverSettings) -> AsyncIterator[Handler]:
    """A retriever's handler, as its `create_app` makes it."""
    spaces = Spaces(
        database,
        settings,
        kept=settings.retriever_cached_texts,
        gather_s=settings.retriever_gather_ms / 1000,
    )
    handler = Handler(
        database,
        spaces,
        Metrics(CollectorRegistry()),
        ranking=load_ranking(
            settings.retriever_ranking_file, half_life_ticks=settings.retriever_half_life_ticks
        ),
        reserve_s=settings.retriever_reserve_ms / 1000,
        parallel=max(1, settings.database_pool_size - 1),
        signatures_from=settings.retriever_signatures_from,
    )
    try:
        yield handler
    finally:
        await spaces.close()
        await handler.close()


class _Unacknowledged:
    """Where the recorder would acknowledge: nobody waits here but who recorded."""

    async def flush(self) -> None:
        return


@dataclass(slots=True, eq=False)
class _Item:
    """One message on its way into a batch; `stored` is set once it is committed."""

    delivery: Delivery
    stored: asyncio.Future[None]
    channel: _Unacknowledged
    trace: Context | None = None
    lost: bool = False

    def settle(self) -> None:
        self.stored.set_result(None)

    async def give_up(self) -> None:
        self.stored.set_exception(RuntimeError("the recorder gave a message up"))


class Recorder:
    """Records messages; each call returns once its own is committed."""

    def __init__(self, handler: RecorderHandler, batcher: Batcher) -> None:
        self._handler = handler
        self._batcher = batcher
        self._channel = _Unacknowledged()

    async def record(self, body: bytes, routing_key: str) -> None:
        """Check, grade and store one tick. Raises RuntimeError where it cannot be stored."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        delivery = self._handler.read(body, routing_key)
        self._batcher.put(_Item(delivery=delivery, stored=stored, channel=self._channel))
        await stored


@asynccontextmanager
async def recording(
    database: Database, settings: RecorderSettings, lanes: Lanes
) -> AsyncIterator[Recorder]:
    """A recorder that batches as the service does and wakes the embedder beside it."""
    registry = CollectorRegistry()
    handler = RecorderHandler(database, default_policy(), RecorderMetrics(registry))
    batcher = Batcher(
        handler,
        batch_decisions=settings.recorder_batch_decisions,
        batch_s=settings.recorder_batch_ms / 1000,
        stored=lanes.hint,
    )
    running = asyncio.create_task(batcher.run())
    try:
        yield Recorder(handler, batcher)
    finally:
        batcher.close()
        await running


@asynccontextmanager
async def embedding(database: Database, settings: EmbedderSettings) -> AsyncIterator[Lanes]:
    """An embedder at work until the block ends, on vectors and on the recall index."""
    lanes = Lanes(database, settings, EmbedderMetrics(CollectorRegistry()))
    indexing = Indexing(database, signed_from=settings.embedder_signatures_from)
    stop = asyncio.Event()
    running = [asyncio.create_task(part.run(stop)) for part in (lanes, indexing)]
    try:
        yield lanes
    finally:
        stop.set()
        await asyncio.gather(*running)
