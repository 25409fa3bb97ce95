"""The retriever, wired: queue → handler → reply on a connection of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from faststream import AckPolicy, FastStream
from faststream.rabbit import RabbitMessage
from prometheus_client import CollectorRegistry, Counter

from tickmind import topology
from tickmind.broker import (
    consumer_check,
    create_broker,
    rabbit_queue,
    reachable,
    start,
    whole,
)
from tickmind.connecting import BROKER_ERRORS, FireAndForget
from tickmind.database import Database
from tickmind.embedding import Embedder
from tickmind.errors import ConfigurationError
from tickmind.messages import RecallReply
from tickmind.service import App
from tickmind.telemetry import SENT_AT, log, outgoing_headers
from tickmind_retriever.handler import Handler, Metrics
from tickmind_retriever.query_vectors import QueryVectors
from tickmind_retriever.settings import RetrieverSettings

__all__ = ["create_app"]

_logger = logging.getLogger("tickmind.retriever")

#: Ages beyond this say that two clocks differ, not that a request waited: the queue expires it.
_OLDEST_S = 60.0


def _age_s(headers: dict[str, Any]) -> float:
    """How long ago the request was sent, by its own clock; 0 where that cannot be so."""
    sent_at = headers.get(SENT_AT)
    if not isinstance(sent_at, int | float) or isinstance(sent_at, bool):
        return 0.0
    age_s = time.time() - sent_at / 1000
    return age_s if 0 <= age_s <= _OLDEST_S else 0.0


def create_app(settings: RetrieverSettings) -> App:
    """Wire the retriever. Raises ConfigurationError; connects to nothing yet."""
    registry = CollectorRegistry()
    unanswered = Counter(
        "tickmind_recalls_unanswered",
        "Requests that no reply could be sent for, by why",
        ["reason"],
        registry=registry,
    )
    database = Database(settings, application="tickmind-retriever")
    embedder = Embedder(settings)
    vectors = QueryVectors(embedder, kept=settings.retriever_cached_texts)
    handler = Handler(
        database,
        vectors,
        Metrics(registry),
        space=embedder.space,
        half_life_ticks=settings.retriever_half_life_ticks,
        reserve_s=settings.retriever_reserve_ms / 1000,
        parallel=max(1, settings.database_pool_size - 1),
    )
    broker = create_broker(settings, name="retriever", prefetch=settings.retriever_concurrency)
    replies = FireAndForget(settings, name="retriever-replies")
    under_way: set[asyncio.Task[None]] = set()

    subscriber = broker.subscriber(
        rabbit_queue(topology.RECALL_QUEUE),
        ack_policy=AckPolicy.MANUAL,
        decoder=whole,
        no_reply=True,
    )

    @subscriber
    async def recall(message: RabbitMessage) -> None:
        raw = message.raw_message
        task = asyncio.current_task()
        assert task is not None
        under_way.add(task)
        try:
            if not topology.valid_reply_to(raw.reply_to):
                unanswered.labels("reply_to").inc()
                log(_logger, logging.WARNING, "unanswerable", reason="reply_to")
                return
            reply = await handler.recall(raw.body, age_s=_age_s(raw.headers))
            await send(reply, raw.reply_to or "", raw.correlation_id)
        finally:
            under_way.discard(task)
            try:
                await raw.ack()
            except BROKER_ERRORS:
                unanswered.labels("connection").inc()

    async def send(reply: RecallReply, reply_to: str, correlation_id: str | None) -> None:
        sent = await replies.publish(
            reply.model_dump_json().encode(),
            routing_key=reply_to,
            correlation_id=correlation_id,
            content_type="application/json",
            headers=outgoing_headers(),
        )
        if not sent:
            unanswered.labels("connection").inc()

    async def space_fault() -> str | None:
        try:
            await handler.generation()
        except ConfigurationError as exc:
            return str(exc)
        return None

    async def work(stop: asyncio.Event) -> None:
        application = FastStream(broker, logger=None)
        try:
            await handler.generation()  # settings of another space end us here
            if await start(application, stop):
                await stop.wait()
                await subscriber.stop()
                if under_way:
                    await asyncio.wait(under_way)
        finally:
            await application.stop()
            await replies.close()
            await vectors.close()
            await embedder.close()
            await database.dispose()

    return App(
        name="retriever",
        needs={"database": database.check, "broker": lambda: reachable(settings)},
        checks={
            "database": database.check,
            "broker": consumer_check(broker, topology.RECALL_QUEUE),
            "space": space_fault,
        },
        work=work,
        registry=registry,
    )
