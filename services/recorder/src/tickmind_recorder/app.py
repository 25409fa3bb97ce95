"""The recorder, wired: queue → handler → database → acknowledgement → hint."""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from faststream import AckPolicy, FastStream
from faststream.rabbit import RabbitMessage
from prometheus_client import CollectorRegistry

from tickmind import topology
from tickmind.broker import (
    consumer_check,
    create_broker,
    declare_dead_letters,
    rabbit_exchange,
    rabbit_queue,
    reachable,
    start,
    whole,
)
from tickmind.connecting import FireAndForget
from tickmind.database import Database
from tickmind.policy import default_policy, load_policy
from tickmind.service import App
from tickmind.telemetry import outgoing_headers
from tickmind_recorder.acknowledging import Acknowledged, ChannelAcks
from tickmind_recorder.batching import Batcher
from tickmind_recorder.handler import Handler, Metrics
from tickmind_recorder.settings import RecorderSettings

__all__ = ["create_app"]


def create_app(settings: RecorderSettings) -> App:
    """Wire the recorder. Raises ConfigurationError; connects to nothing yet."""
    policy = (
        load_policy(settings.recorder_policy_file)
        if settings.recorder_policy_file
        else default_policy()
    )
    registry = CollectorRegistry()
    database = Database(settings, application="tickmind-recorder", vectors=False)
    handler = Handler(database, policy, Metrics(registry))
    hints = FireAndForget(settings, name="recorder-hints")
    broker = create_broker(settings, name="recorder", prefetch=settings.recorder_prefetch)

    async def hint() -> None:
        await hints.publish(
            b"{}",
            exchange=topology.EVENTS.name,
            routing_key=topology.RECORDED_KEY,
            content_type="application/json",
            headers=outgoing_headers(),
        )

    batcher = Batcher(
        handler,
        batch_decisions=settings.recorder_batch_decisions,
        batch_s=settings.recorder_batch_ms / 1000,
        stored=hint,
    )
    acks: WeakKeyDictionary[Any, ChannelAcks] = WeakKeyDictionary()

    subscriber = broker.subscriber(
        rabbit_queue(topology.RECORDER_QUEUE),
        rabbit_exchange(topology.EVENTS),
        ack_policy=AckPolicy.MANUAL,
        decoder=whole,
        no_reply=True,
    )

    @subscriber
    async def tick_ended(message: RabbitMessage) -> None:
        raw = message.raw_message
        delivery = handler.read(raw.body, raw.routing_key or "")
        batcher.put(Acknowledged(delivery, raw, acks.setdefault(raw.channel, ChannelAcks())))

    async def work(stop: asyncio.Event) -> None:
        application = FastStream(broker, logger=None)
        await declare_dead_letters(settings)
        storing = asyncio.create_task(batcher.run())
        stopping = asyncio.create_task(stop.wait())
        try:
            if await start(application, stop):
                await asyncio.wait({storing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            await subscriber.stop()
            batcher.close()
            await storing
        finally:
            stopping.cancel()
            storing.cancel()
            await application.stop()
            await hints.close()
            await database.dispose()

    return App(
        name="recorder",
        needs={"database": database.check, "broker": lambda: reachable(settings)},
        checks={
            "database": database.check,
            "broker": consumer_check(broker, topology.RECORDER_QUEUE),
        },
        work=work,
        registry=registry,
    )
