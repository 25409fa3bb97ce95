"""The recorder, wired: queue → handler → database → acknowledgement → hint."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from aiormq.abc import AbstractChannel
from faststream import AckPolicy, FastStream
from faststream.rabbit import RabbitMessage
from prometheus_client import CollectorRegistry

from tickmind import topology
from tickmind.broker import (
    briefly,
    consumer_check,
    create_broker,
    declare_dead_letters,
    rabbit_exchange,
    rabbit_queue,
    reachable,
    start,
    whole,
)
from tickmind.connecting import BROKER_ERRORS, BrokerUnavailable, FireAndForget
from tickmind.database import Database
from tickmind.policy import default_policy, load_policy
from tickmind.service import App
from tickmind.settings import naming
from tickmind.telemetry import outgoing_headers, read_headers
from tickmind.tracing import SpanKind, messaging, span
from tickmind.vitals import queue_watch, tell_vitals
from tickmind_recorder.acknowledging import Acknowledged, ChannelAcks
from tickmind_recorder.batching import Batcher
from tickmind_recorder.handler import Handler, Metrics
from tickmind_recorder.hinting import Hints
from tickmind_recorder.settings import RecorderSettings
from tickmind_recorder.tending import Tending

__all__ = ["create_app"]

#: Without the broker an orderly goodbye waits for its answer for ever; with it, it takes 10 ms.
_GOODBYE_S = 2.0
_HINTS = f"{topology.EVENTS.name}:{topology.RECORDED_KEY}"
_PUBLISHES = messaging("send", _HINTS)


def create_app(settings: RecorderSettings) -> App:
    """Wire the recorder. Raises ConfigurationError; connects to nothing yet."""
    with naming("TICKMIND_RECORDER_POLICY_FILE"):
        policy = (
            load_policy(settings.recorder_policy_file)
            if settings.recorder_policy_file
            else default_policy()
        )
    registry = CollectorRegistry()
    database = Database(settings, application="tickmind-recorder", vectors=False)
    tell_vitals(registry, database)
    handler = Handler(database, policy, Metrics(registry))
    connection = FireAndForget(settings, name="recorder-hints")
    broker = create_broker(settings, name="recorder", prefetch=settings.recorder_prefetch)

    async def hint() -> None:
        with span(f"publish {_HINTS}", kind=SpanKind.PRODUCER, attributes=_PUBLISHES):
            await connection.publish(
                b"{}",
                exchange=topology.EVENTS.name,
                routing_key=topology.RECORDED_KEY,
                content_type="application/json",
                headers=outgoing_headers(),
            )

    hints = Hints(hint)
    batcher = Batcher(
        handler,
        batch_decisions=settings.recorder_batch_decisions,
        batch_s=settings.recorder_batch_ms / 1000,
        stored=hints.give,
    )
    acks: WeakKeyDictionary[AbstractChannel, ChannelAcks] = WeakKeyDictionary()

    queue = rabbit_queue(topology.RECORDER_QUEUE)
    tending = Tending(broker, queue, idle=lambda: batcher.idle)

    subscriber = broker.subscriber(
        queue,
        rabbit_exchange(topology.EVENTS),
        ack_policy=AckPolicy.MANUAL,
        decoder=whole,
        no_reply=True,
    )

    @subscriber
    async def tick_ended(message: RabbitMessage) -> None:
        tending.came()
        raw = message.raw_message
        try:
            channel = raw.channel
        except BROKER_ERRORS:  # closed meanwhile: it will be delivered again
            return
        if channel not in acks:
            batcher.forget_lost()
            acks[channel] = ChannelAcks(channel)
        delivery = handler.read(raw.body, raw.routing_key or "")
        assert raw.delivery_tag is not None
        trace = read_headers(raw.headers) if "traceparent" in raw.headers else None
        batcher.put(Acknowledged(delivery, raw.delivery_tag, acks[channel], trace=trace))

    async def dead_letters() -> None:
        try:
            await declare_dead_letters(settings)
        except BrokerUnavailable as exc:
            raise ConnectionError(str(exc)) from exc  # `start` waits and tries again

    async def work(stop: asyncio.Event) -> None:
        application = FastStream(broker, logger=None, on_startup=[dead_letters])
        storing = asyncio.create_task(batcher.run())
        hinting = asyncio.create_task(hints.run())
        stopping = asyncio.create_task(stop.wait())
        try:
            if await start(application, stop):
                tended = asyncio.create_task(tending.run())
                try:
                    await asyncio.wait(
                        {storing, hinting, stopping, tended}, return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    tended.cancel()
            await briefly(subscriber.stop())
            batcher.close()
            await storing
        finally:
            for task in (stopping, storing, hinting):
                task.cancel()
            if not await briefly(application.stop()):
                await briefly((await broker.connect()).close())
            await connection.close()
            await database.dispose()

    return App(
        name="recorder",
        needs={"database": database.check, "broker": lambda: reachable(settings)},
        checks={
            "database": database.check,
            "store": batcher.check,
            "broker": consumer_check(broker, topology.RECORDER_QUEUE),
        },
        work=work,
        close=database.dispose,
        registry=registry,
        watches=(queue_watch(registry, broker),),
    )
