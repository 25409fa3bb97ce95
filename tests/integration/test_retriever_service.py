"""The retriever on its queue: replies, expiry, malformed requests, restarts."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from pydantic import SecretStr

from tests.clock import Clock
from tests.processes import START_S, service_process
from tests.proxy import door
from tests.remembering import known, remember
from tests.retrieving import body
from tests.running import eventually, metric, running, settings_for
from tickmind import MemoryClient
from tickmind.connecting import declare
from tickmind.database import Database
from tickmind.hashed import hash_embed
from tickmind.local.provider.faults import Hang, Outage
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.running import Provider
from tickmind.local.provider.triggers import Always, Next
from tickmind.local.rabbitmq import LocalRabbitmq
from tickmind.service import App
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind.store.spaces import Space
from tickmind.topology import RECALL_QUEUE
from tickmind_embedder.app import create_app as create_embedder
from tickmind_embedder.settings import EmbedderSettings
from tickmind_retriever.app import create_app
from tickmind_retriever.handler import Handler
from tickmind_retriever.settings import RetrieverSettings

_DIRECT = "amq.rabbitmq.reply-to"


class Asker:
    """A client that is not ours: bare aio-pika, direct reply-to."""

    def __init__(self, channel: AbstractChannel) -> None:
        self._channel = channel
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[AbstractIncomingMessage]] = {}
        self.strays: list[AbstractIncomingMessage] = []

    async def listen(self) -> None:
        queue = await self._channel.get_queue(_DIRECT, ensure=False)
        await queue.consume(self._replied, no_ack=True)

    async def _replied(self, message: AbstractIncomingMessage) -> None:
        future = self._waiting.pop(message.correlation_id or "", None)
        if future is None:
            self.strays.append(message)
        else:
            future.set_result(message)

    async def send(self, request: bytes, **properties: Any) -> str:
        number = str(next(self._numbers))
        given = {"reply_to": _DIRECT, "correlation_id": number} | properties
        message = aio_pika.Message(request, **given)
        await self._channel.default_exchange.publish(message, routing_key=RECALL_QUEUE.name)
        return number

    async def sent(self) -> None:
        """All that was sent is in the queue: it answers a channel in the channel's order."""
        await self._channel.declare_queue(RECALL_QUEUE.name, passive=True)

    async def ask(self, request: bytes, *, timeout_s: float = 30, **properties: Any) -> Any:
        """The reply as it came; raises TimeoutError."""
        future: asyncio.Future[AbstractIncomingMessage] = asyncio.Future()
        number = str(next(self._numbers))
        self._waiting[number] = future
        given = {"reply_to": _DIRECT, "correlation_id": number} | properties
        message = aio_pika.Message(request, **given)
        await self._channel.default_exchange.publish(message, routing_key=RECALL_QUEUE.name)
        return await asyncio.wait_for(future, timeout_s)


@asynccontextmanager
async def asking(broker: BrokerSettings) -> AsyncIterator[Asker]:
    connection = await aio_pika.connect(broker.broker_url())
    async with connection:
        asker = Asker(await connection.channel(publisher_confirms=False))
        await asker.listen()
        yield asker


async def _town(database: Database, *, model: str = "hash") -> None:
    """Alice knows of the fish."""
    space = Space(model=model, dimensions=64)
    await known(database, {}, space)
    await remember(database, ["the market sells fresh fish"], tick=42)
    told = "the market sells fresh fish"
    await known(database, {told: hash_embed(told, 64)}, space)


def _app(database: DatabaseSettings, broker: BrokerSettings, **options: Any) -> App:
    return create_app(settings_for(RetrieverSettings, database, broker, **options))


def _status(message: Any) -> str:
    return str(json.loads(message.body)["replies"][0]["status"])


async def test_bare_client_is_answered_with_its_correlation_and_trace(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    await _town(database)
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "sent_at": int(time.time() * 1000)}
    async with (
        running(_app(database_settings, broker_settings)),
        asking(broker_settings) as asker,
    ):
        reply = await asker.ask(body(("alice", "fish")), headers=headers)
        answer = json.loads(reply.body)
        assert answer["replies"][0]["memories"][0]["content"] == "the market sells fresh fish"
        assert answer["watermarks"] == {"recorded": 42, "embedded": 42}
        assert reply.content_type == "application/json"
        assert reply.headers["traceparent"].split("-")[1] == trace
        assert abs(reply.headers["sent_at"] - time.time() * 1000) < 60_000


_ADDRESS = "g1h2AA5yZXBseUAxMDgzMTgxMgAAArgAAAAAawyHpw=="
MALFORMED = [
    None,
    "",
    f"{_DIRECT}.",
    f"{_DIRECT}.garbage",
    f"{_DIRECT}.AAAA.BBBB",
    f"{_DIRECT}.g2dk.AAAA",
    f"{_DIRECT}.g2gCYQFhAg==.AAAA",
    f"{_DIRECT}.g2QAA2Zvbw==.AAAA",
    f"{_DIRECT}.{_ADDRESS}",
    f"{_DIRECT}.{_ADDRESS}.q/x5OjIeCeg3uFSLilBvQQ==",
    f"{_DIRECT}.{_ADDRESS.replace('g1', 'g2', 1)}.AAAA",
    "no such queue",
    "é" * 120,
    "x" * 255,
]


async def test_malformed_reply_to_harms_nobody(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    """RabbitMQ closes the connection that publishes to some of them: others' replies with it."""
    await _town(database)
    app = _app(database_settings, broker_settings)
    async with running(app), asking(broker_settings) as asker:
        asks = []
        for turn, reply_to in enumerate(MALFORMED * 4):
            await asker.send(body(("alice", "fish")), reply_to=reply_to)
            asks.append(asyncio.create_task(asker.ask(body(("alice", f"fish {turn}")))))
        replies = await asyncio.gather(*asks)
        assert {_status(reply) for reply in replies} == {"ok"}
        reason = {"reason": "reply_to"}
        assert metric(app, "tickmind_recalls_unanswered_total", **reason) >= 9 * 4
        lost = {"reason": "connection"}
        assert metric(app, "tickmind_recalls_unanswered_total", **lost) == 0
        assert asker.strays == []


async def test_invalid_request_is_answered_never_met_with_silence(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    """case 9: each is told what is wrong, the next valid one is answered."""
    await _town(database)
    async with (
        running(_app(database_settings, broker_settings)),
        asking(broker_settings) as asker,
    ):
        for request in (b"", b"{", b"\xff", b"[" * 200_000, body(("a", "b"), k=1000)):
            answer = json.loads((await asker.ask(request)).body)
            assert (answer["reason"], answer["replies"]) == ("invalid", [])
            assert answer["detail"]
        assert _status(await asker.ask(body(("alice", "fish")))) == "ok"


async def test_unforeseen_failure_is_answered_too(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await _town(database)
    original = Handler.recall

    async def recall(self: Handler, request: bytes, **options: Any) -> Any:
        if b"break" in request:
            raise ZeroDivisionError
        return await original(self, request, **options)

    monkeypatch.setattr(Handler, "recall", recall)
    async with (
        running(_app(database_settings, broker_settings)),
        asking(broker_settings) as asker,
    ):
        answer = json.loads((await asker.ask(body(("alice", "break")))).body)
        assert answer["reason"] == "internal"
        assert _status(await asker.ask(body(("alice", "fish")))) == "ok"


async def test_expired_requests_are_dropped_and_never_answered_late(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    await _town(database)
    async with asking(broker_settings) as asker:
        connection = await aio_pika.connect(broker_settings.broker_url())
        async with connection:
            channel = await connection.channel()
            await declare(channel, RECALL_QUEUE)
            for _ in range(20):
                await asker.send(body(("alice", "too late")), expiration=0.05)
            await asker.sent()

            async def left() -> int:
                queue = await channel.declare_queue(RECALL_QUEUE.name, passive=True)
                return int(queue.declaration_result.message_count or 0)

            # The queue drops them when it comes to them, before it delivers any.
            await eventually(left, lambda n: n == 0, what="requests in the queue")
        async with running(_app(database_settings, broker_settings)):
            assert _status(await asker.ask(body(("alice", "fish")))) == "ok"
            assert asker.strays == []


#: Of requests whose clocks differ, by less and by more than that.
_DEADLINE_S = 8.0


@pytest.mark.parametrize("skew_s", [-3600.0, -50.0, -7.0, 0.0, 7.0, 30.0, 3600.0])
async def test_clock_of_the_sender_may_be_wrong(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    skew_s: float,
) -> None:
    await _town(database)
    async with (
        running(_app(database_settings, broker_settings)),
        asking(broker_settings) as asker,
    ):
        for _ in range(3):
            sent_at = int((time.time() + skew_s) * 1000)
            request = body(("alice", "fish"), deadline_ms=int(_DEADLINE_S * 1000))
            reply = await asker.ask(request, headers={"sent_at": sent_at})
            assert _status(reply) == "ok"


async def test_our_own_clock_that_steps_costs_no_reply(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await _town(database)
    true_time = time.time
    async with (
        running(_app(database_settings, broker_settings)),
        asking(broker_settings) as asker,
    ):
        for ahead_s in (0, 20, 300, -300):
            monkeypatch.setattr(time, "time", lambda ahead_s=ahead_s: true_time() + ahead_s)
            request = body(("alice", "fish"), deadline_ms=int(_DEADLINE_S * 1000))
            headers = {"sent_at": int(true_time() * 1000)}
            assert _status(await asker.ask(request, headers=headers)) == "ok"


@pytest.mark.parametrize("sent_at", ["yesterday", True, None, {"a": 1}, -1, 2**62, 1.5e12])
async def test_clock_that_is_none_is_ignored(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    sent_at: Any,
) -> None:
    await _town(database)
    async with (
        running(_app(database_settings, broker_settings)),
        asking(broker_settings) as asker,
    ):
        reply = await asker.ask(body(("alice", "fish")), headers={"sent_at": sent_at})
        assert _status(reply) == "ok"


async def test_request_that_waited_beyond_its_deadline_is_dropped_by_its_age(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    """As one without an expiration does that waited in the queue; its sender is known by then."""
    await _town(database)
    app = _app(database_settings, broker_settings)
    async with running(app), asking(broker_settings) as asker:
        request = body(("alice", "fish"), deadline_ms=int(_DEADLINE_S * 1000))
        now_ms = int(time.time() * 1000)
        await asker.ask(request, headers={"sent_at": now_ms})
        await asker.send(request, headers={"sent_at": now_ms - 20_000})

        async def dropped() -> float:
            return metric(app, "tickmind_recalls_unanswered_total", reason="expired")

        await eventually(dropped, lambda n: n == 1, what="dropped")
        now_ms = int(time.time() * 1000)
        assert _status(await asker.ask(request, headers={"sent_at": now_ms})) == "ok"
        assert asker.strays == []


@pytest.mark.parametrize("provider_", ["absent", "failing"])
async def test_retriever_without_its_embedding_server_is_unready_and_says_so(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    provider_: str,
) -> None:
    """It answers meanwhile, with the reason; and goes on by itself."""
    await _town(database, model="test")
    provider = Provider(ProviderOptions(native_width=64))
    await provider.start()
    if provider_ == "absent":
        await provider.stop()
    else:
        provider.faults.add(Outage(), Always())
    app = _app(
        database_settings,
        broker_settings,
        embedding_provider="openai",
        embedding_base_url=provider.base_url,
        embedding_model="test",
    )
    stop = asyncio.Event()
    working = asyncio.create_task(app.work(stop))
    try:
        await eventually(app.checks["broker"], lambda fault: fault is None, what="consumes")
        async with asking(broker_settings) as asker:
            answer = json.loads((await asker.ask(body(("alice", "fish")))).body)
            assert answer["replies"][0]["reason"] == "embedding"
            fault = await app.checks["embedding"]()
            assert fault is not None
            assert "embedding API" in fault

            if provider_ == "absent":
                await provider.start()
            else:
                provider.faults.clear()
            assert _status(await asker.ask(body(("alice", "fish")))) == "ok"
            assert await app.checks["embedding"]() is None
    finally:
        stop.set()
        await working
        await provider.stop()


async def test_lost_connections_come_back(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    rabbitmq: LocalRabbitmq,
) -> None:
    await _town(database)
    vhost = broker_settings.broker_url().rsplit("/", 1)[1]
    async with door(("127.0.0.1", rabbitmq.port)) as opened:
        url = f"amqp://guest:guest@127.0.0.1:{opened.port}/{vhost}"
        app = _app(database_settings, BrokerSettings(amqp_url=SecretStr(url)))
        async with running(app), asking(broker_settings) as asker:
            assert _status(await asker.ask(body(("alice", "fish")))) == "ok"
            await opened.cut()
            assert _status(await asker.ask(body(("alice", "fish")), timeout_s=30)) == "ok"


async def test_recalls_cut_off_by_a_lost_connection_are_no_failure(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    rabbitmq: LocalRabbitmq,
    provider: Provider,
    tmp_path: Path,
) -> None:
    """They are expected to be: RabbitMQ delivers each again. So the log has no traceback of them,
    nor of what the driver could not end properly."""
    await _town(database, model="test")
    provider.faults.add(Hang(), Next())
    log = tmp_path / "log"
    vhost = broker_settings.broker_url().rsplit("/", 1)[1]
    async with door(("127.0.0.1", rabbitmq.port)) as opened:
        url = SecretStr(f"amqp://guest:guest@127.0.0.1:{opened.port}/{vhost}")
        async with (
            _process(
                database_settings,
                BrokerSettings(amqp_url=url),
                log,
                TICKMIND_EMBEDDING_BASE_URL=provider.base_url,
            ) as process,
            asking(broker_settings) as asker,
        ):
            await eventually(
                lambda: asyncio.to_thread(log.read_text),
                lambda told: '"event": "started"' in told,
                what="a retriever that has started",
                timeout_s=120,
            )
            connection = await aio_pika.connect(broker_settings.broker_url())
            async with connection:
                await declare(await connection.channel(), RECALL_QUEUE)
            for _ in range(3):
                await asker.send(body(("alice", "fish"), deadline_ms=60_000))
            await provider.ledger.wait_until(
                lambda ledger: ledger.totals().texts_billed == 1, timeout_s=60
            )
            await opened.cut()
            provider.faults.release()
            answer = await asker.ask(body(("alice", "fish"), deadline_ms=30_000), timeout_s=60)
            assert _status(answer) == "ok"
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
    told = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line for line in told if "exception" in line or line["level"] == "error"] == []


async def test_queue_deleted_live_is_declared_again(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    """case 37."""
    await _town(database)
    app = _app(database_settings, broker_settings)
    async with running(app), asking(broker_settings) as asker:
        connection = await aio_pika.connect(broker_settings.broker_url())
        async with connection:
            await (await connection.channel()).queue_delete(RECALL_QUEUE.name)
        await eventually(app.checks["broker"], lambda fault: fault is None, what="consumer")
        assert _status(await asker.ask(body(("alice", "fish")))) == "ok"


async def test_stopping_without_the_broker_takes_no_time(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    rabbitmq: LocalRabbitmq,
) -> None:
    """Well within the 30 s that Kubernetes grants."""
    await _town(database)
    vhost = broker_settings.broker_url().rsplit("/", 1)[1]
    async with door(("127.0.0.1", rabbitmq.port)) as opened:
        through = BrokerSettings(
            amqp_url=SecretStr(f"amqp://guest:guest@127.0.0.1:{opened.port}/{vhost}")
        )
        embedder = create_embedder(settings_for(EmbedderSettings, database_settings, through))
        async with running(_app(database_settings, through), embedder):
            async with asking(broker_settings) as asker:
                assert _status(await asker.ask(body(("alice", "fish")))) == "ok"
            await opened.shut()
            since = Clock()
    assert since.s < 12


async def test_broker_that_was_restarted_is_served_again(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    rabbitmq: LocalRabbitmq,
) -> None:
    """case 36: within a minute, without help."""
    await _town(database)
    app = _app(database_settings, broker_settings)
    async with running(app), MemoryClient(broker_settings.broker_url()) as client:
        await rabbitmq.restart()

        async def status() -> str:
            return (await client.recall("town", "alice", "fish", tick=100, timeout_s=1)).status

        await eventually(status, lambda found: found == "ok", what="recall", timeout_s=60)
        for name, check in app.checks.items():
            await eventually(check, lambda fault: fault is None, what=name)


def _process(
    database: DatabaseSettings, broker: BrokerSettings, log: Path, **environment: object
) -> AbstractAsyncContextManager[Process]:
    """A retriever on this virtual host."""
    return service_process(
        "retriever", database, log, TICKMIND_AMQP_URL=broker.broker_url(), **environment
    )


async def test_sigterm_answers_what_is_in_flight_and_leaves_the_rest_to_others(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    provider: Provider,
    tmp_path: Path,
) -> None:
    await _town(database, model="test")
    provider.faults.add(Hang(), Next())
    log = tmp_path / "log"
    async with (
        _process(
            database_settings,
            broker_settings,
            log,
            TICKMIND_EMBEDDING_BASE_URL=provider.base_url,
            TICKMIND_RETRIEVER_CONCURRENCY=1,
        ) as process,
        asking(broker_settings) as asker,
    ):
        connection = await aio_pika.connect(broker_settings.broker_url())
        async with connection:
            await declare(await connection.channel(), RECALL_QUEUE)
        request = body(("alice", "fish"), deadline_ms=60_000)
        first = asyncio.create_task(asker.ask(request, timeout_s=2 * START_S))
        await provider.ledger.wait_until(
            lambda ledger: ledger.totals().texts_billed == 1, timeout_s=START_S
        )
        second = asyncio.create_task(asker.ask(request, timeout_s=2 * START_S))
        process.send_signal(signal.SIGTERM)
        provider.faults.release()
        assert _status(await first) == "ok"
        assert await process.wait() == 0, log.read_text()
        if not second.done():
            app = _app(
                database_settings,
                broker_settings,
                embedding_provider="openai",
                embedding_base_url=provider.base_url,
                embedding_model="test",
            )
            async with running(app):
                await second
        assert _status(await second) == "ok"
    assert "Traceback" not in log.read_text()


async def test_process_with_settings_of_another_space_goes_on_and_says_so(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    tmp_path: Path,
) -> None:
    await _town(database, model="another")
    log = tmp_path / "log"
    async with _process(database_settings, broker_settings, log) as process:
        await eventually(
            lambda: asyncio.to_thread(log.read_text),
            lambda told: "embedding_space" in told,
            what="the note in the log",
            timeout_s=START_S,
        )
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    assert "Traceback" not in log.read_text()
    assert "recalls use another" in log.read_text()
