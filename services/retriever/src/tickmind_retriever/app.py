"""The retriever, wired: queue → handler → reply on a connection of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from aio_pika.abc import AbstractIncomingMessage
from faststream import AckPolicy, FastStream
from faststream.rabbit import RabbitMessage
from prometheus_client import CollectorRegistry, Counter, Gauge

from tickmind import topology
from tickmind.broker import (
    briefly,
    consumer_check,
    create_broker,
    rabbit_queue,
    reachable,
    start,
    whole,
)
from tickmind.connecting import BROKER_ERRORS
from tickmind.database import Database
from tickmind.errors import TickmindError
from tickmind.measured import CallMeters
from tickmind.messages import RecallReply
from tickmind.metering import begin_at_zero
from tickmind.service import App
from tickmind.settings import naming
from tickmind.telemetry import SENT_AT, log, outgoing_headers, read_headers
from tickmind.tracing import SpanKind, messaging, span
from tickmind.vitals import queue_watch, tell_vitals
from tickmind_retriever.ages import LONGEST_S, Ages
from tickmind_retriever.answers import encoded
from tickmind_retriever.handler import Handler
from tickmind_retriever.metrics import Metrics
from tickmind_retriever.ranking import load_ranking
from tickmind_retriever.replies import Replies
from tickmind_retriever.reply_to import answerable
from tickmind_retriever.settings import RetrieverSettings
from tickmind_retriever.spaces import Spaces

__all__ = ["create_app"]

_logger = logging.getLogger("tickmind.retriever")
_PROCESSES = messaging("process", topology.RECALL_QUEUE.name)
#: Where it goes is another for every client.
_REPLIES = messaging("send", "reply-to")


def create_app(settings: RetrieverSettings) -> App:
    """Wire the retriever. Raises ConfigurationError; connects to nothing yet."""
    registry = CollectorRegistry()
    unanswered = Counter(
        "tickmind_recalls_unanswered",
        "Requests that no reply was sent for, by why",
        ["reason"],
        registry=registry,
    )
    begin_at_zero(unanswered, ("reply_to", "expired", "connection"))
    database = Database(settings, application="tickmind-retriever", lookups=True)
    tell_vitals(registry, database)
    spaces = Spaces(
        database,
        settings,
        kept=settings.retriever_cached_texts,
        gather_s=settings.retriever_gather_ms / 1000,
    )
    spaces.meters = CallMeters(registry)
    Gauge(
        "tickmind_recall_embedding_refused",
        "1 while the embedding API has failed and observations are not sent to it",
        registry=registry,
    ).set_function(lambda: float(spaces.refusing))
    metrics = Metrics(registry)
    with naming("TICKMIND_RETRIEVER_RANKING_FILE"):
        ranking = load_ranking(
            settings.retriever_ranking_file, half_life_ticks=settings.retriever_half_life_ticks
        )
    handler = Handler(
        database,
        spaces,
        metrics,
        ranking=ranking,
        reserve_s=settings.retriever_reserve_ms / 1000,
        parallel=max(1, settings.database_pool_size - 1),
        signatures_from=settings.retriever_signatures_from,
        audit_one_in=settings.retriever_audit_one_in,
    )
    broker = create_broker(settings, name="retriever", prefetch=settings.retriever_concurrency)
    replies = Replies(settings)
    under_way: set[asyncio.Task[None]] = set()
    ages = Ages()

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
            with span(
                f"process {topology.RECALL_QUEUE.name}",
                kind=SpanKind.CONSUMER,
                joins=[read_headers(raw.headers)],
                attributes=_PROCESSES,
            ):
                await answered(raw)
        finally:
            under_way.discard(task)
            try:
                await raw.ack()
            except BROKER_ERRORS:
                unanswered.labels("connection").inc()

    async def answered(raw: AbstractIncomingMessage) -> None:
        try:
            await answer(raw)
        except Exception as exc:  # the boundary: whatever it was, the agent goes on without
            _logger.exception("recall_failed")
            metrics.recalls.labels("empty", "internal").inc()
            failed = RecallReply(
                reason="internal", detail=f"the retriever failed: {type(exc).__name__}"
            )
            await send(failed, raw)

    async def answer(raw: AbstractIncomingMessage) -> None:
        if not answerable(raw.reply_to):
            unanswered.labels("reply_to").inc()
            log(_logger, logging.WARNING, "unanswerable", reason="reply_to")
            return
        sent_at = raw.headers.get(SENT_AT)
        kept_s = min(raw.expiration or LONGEST_S, LONGEST_S)
        age_s = ages.age_s(raw.reply_to or "", sent_at, time.monotonic(), kept_s=kept_s)
        reply = await handler.recall(raw.body, age_s=age_s)
        if reply is None:
            unanswered.labels("expired").inc()
        else:
            await send(reply, raw)

    async def send(reply: RecallReply, raw: AbstractIncomingMessage) -> None:
        with span("publish reply", kind=SpanKind.PRODUCER, attributes=_REPLIES):
            sent = await replies.publish(
                encoded(reply),
                reply_to=raw.reply_to or "",
                correlation_id=raw.correlation_id,
                content_type="application/json",
                headers=outgoing_headers(),
            )
        if not sent:
            unanswered.labels("connection").inc()

    async def space() -> str | None:
        try:
            await handler.prepare()
        except TickmindError as exc:
            return str(exc)
        return None

    async def work(stop: asyncio.Event) -> None:
        application = FastStream(broker, logger=None)
        try:
            with contextlib.suppress(TickmindError):  # then each recall says so
                await handler.prepare()
            if await start(application, stop):
                await stop.wait()
                await briefly(subscriber.stop())
                if under_way:
                    await asyncio.wait(under_way)
        finally:
            if not await briefly(application.stop()):
                await briefly((await broker.connect()).close())
            await replies.close()
            await spaces.close()
            await handler.close()
            await database.dispose()

    return App(
        name="retriever",
        needs={"database": database.check, "broker": lambda: reachable(settings)},
        checks={
            "database": database.check,
            "broker": consumer_check(broker, topology.RECALL_QUEUE),
            "embedding": spaces.fault,
            "space": space,
        },
        work=work,
        close=database.dispose,
        registry=registry,
        notes={"space": spaces.note},
        watches=(queue_watch(registry, broker),),
    )
