"""Recalls of any kind, replies of any kind and hints of any kind, on the real queues.

`TICKMIND_FUZZ_FACTOR=20 ./dev test FILE` sends twenty times as many.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from tests.asking import Reply, answering, echo
from tests.corpus import RECALLS, REPLIES
from tests.foreign import ForeignMessage, any_properties
from tests.mutating import Fuzzing, Mutated, Mutator, blamed
from tests.recording import client, wire
from tests.remembering import known, remember
from tests.retrieving import body
from tests.running import SOUND, eventually, metric, running, settings_for, settled
from tickmind.connecting import connect
from tickmind.database import Database
from tickmind.decoding import decode_recall
from tickmind.errors import InvalidMessage
from tickmind.foreign import read_foreign_properties
from tickmind.hashed import hash_embed
from tickmind.messages import RecallQuery, RecallReply
from tickmind.service import App
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind.store.spaces import Space
from tickmind.topology import RECALL_QUEUE, RECORDED_KEY
from tickmind_embedder.app import create_app as create_embedder
from tickmind_embedder.settings import EmbedderSettings
from tickmind_retriever.app import create_app
from tickmind_retriever.settings import RetrieverSettings

_DIRECT = "amq.rabbitmq.reply-to"
_FISH = "the market sells fresh fish"
#: Requests under way at once: more than a retriever takes.
_AT_ONCE = 48
_PATIENCE_S = 60.0
#: Where no reply can be sent to, or comes to nobody.
_NOWHERE = (b"", b"\xff\xfe", b"x" * 255, b"\xff" * 255, b"no\0", _DIRECT.encode() + b".AAAA")


async def _town(database: Database) -> None:
    """Alice and 17 know of the fish, and of many things beside it."""
    texts = [_FISH, *(f"saw number {n}" for n in range(40))]
    await known(database, {}, Space(model="hash", dimensions=64))
    for agent in ("alice", "17"):
        await remember(database, texts, agent=agent, tick=list(range(1, len(texts) + 1)))
    vectors = {told: hash_embed(told, 64) for told in texts}
    await known(database, vectors, Space(model="hash", dimensions=64))


class _Asker:
    """Replies by correlation id, each once, as the bytes it came in."""

    def __init__(self, channel: AbstractChannel) -> None:
        self._channel = channel
        self.waiting: dict[bytes, asyncio.Future[AbstractIncomingMessage]] = {}
        self.strays = 0

    async def replied(self, message: AbstractIncomingMessage) -> None:
        future = self.waiting.pop((message.correlation_id or "").encode(), None)
        if future is None:
            self.strays += 1
        else:
            future.set_result(message)

    def expect(self, correlation_id: bytes) -> asyncio.Future[AbstractIncomingMessage]:
        future = asyncio.get_running_loop().create_future()
        self.waiting[correlation_id] = future
        return future

    async def send(self, message: aio_pika.Message) -> None:
        await self._channel.default_exchange.publish(message, routing_key=RECALL_QUEUE.name)

    async def ask(self, request: bytes, correlation_id: str) -> Any:
        future = self.expect(correlation_id.encode())
        await self.send(aio_pika.Message(request, reply_to=_DIRECT, correlation_id=correlation_id))
        async with asyncio.timeout(_PATIENCE_S):
            return json.loads((await future).body)


@asynccontextmanager
async def _asking(broker: BrokerSettings) -> AsyncIterator[_Asker]:
    read_foreign_properties()
    async with await connect(broker, name="test") as connection:
        channel = await connection.channel(publisher_confirms=False)
        asker = _Asker(channel)
        queue = await channel.get_queue(_DIRECT, ensure=False)
        await queue.consume(asker.replied, no_ack=True)
        yield asker


def _retriever(database: DatabaseSettings, broker: BrokerSettings) -> App:
    return create_app(settings_for(RetrieverSettings, database, broker))


def _judged(request: bytes, answer: dict[str, Any]) -> str:
    """What kind of answer it is, and whether that is right for what was asked."""
    reply = RecallReply.model_validate(answer)
    try:
        asked = decode_recall(request)
    except InvalidMessage as exc:
        told = (reply.reason, reply.detail) == ("invalid", str(exc)) and not reply.replies
        return "refused" if told else "wrong"
    assert reply.reason is None
    assert reply.world == asked.options.world
    assert len(reply.replies) == len(asked.queries)
    for query, one in zip(asked.queries, reply.replies, strict=True):
        if not isinstance(query, RecallQuery):
            assert (one.status, one.reason, one.fragment) == ("empty", "invalid", "")
            assert one.detail
            continue
        assert one.agent == query.agent
        # No fault of ours: what it asks is blank, or it asks to be answered in no time.
        assert one.reason in (None, "invalid", "deadline"), (one.reason, one.detail)
        assert len(one.fragment) <= asked.options.max_chars
        assert len(one.memories) <= asked.options.k
    return "answered"


def _waits_long(request: bytes) -> bool:
    """It asks for more time than this test has: for a tick that never comes."""
    try:
        options = decode_recall(request).options
    except InvalidMessage:
        return False
    return options.wait_for_tick is not None and min(options.deadline_ms, options.wait_ms) > 300


async def test_bent_recalls_are_each_answered(
    fuzzing: Fuzzing,
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """case 9: each with what can be known or with why not, between others that are answered as
    ever."""
    caplog.set_level(logging.WARNING, logger="tickmind")
    await _town(database)
    bent = [one for one in fuzzing.inputs(RECALLS, 1000) if not _waits_long(one.body)]
    waiting = iter(bent)
    kinds: list[str] = []
    app = _retriever(database_settings, broker_settings)

    async def ask(asker: _Asker) -> None:
        for mutated in waiting:
            answer = await asker.ask(mutated.body, f"bent {mutated.number}")
            with blamed(mutated):
                kinds.append(_judged(mutated.body, answer))
                assert kinds[-1] != "wrong", answer
            sound = await asker.ask(body(("alice", _FISH)), f"sound {mutated.number}")
            with blamed(mutated):  # it came just before
                assert sound["replies"][0]["status"] == "ok"
                assert sound["replies"][0]["memories"][0]["content"] == _FISH

    async with running(app), _asking(broker_settings) as asker:
        await asyncio.gather(*(ask(asker) for _ in range(_AT_ONCE)))
        assert asker.strays == 0
        assert await app.checks["broker"]() is None
        for reason in ("reply_to", "expired", "connection"):
            assert metric(app, "tickmind_recalls_unanswered_total", reason=reason) == 0
        assert metric(app, "tickmind_recalls_total", status="empty", reason="internal") == 0
        assert [record.getMessage() for record in caplog.records if record.levelno > 30] == []
    assert len(kinds) == len(bent)
    assert min(kinds.count("answered"), kinds.count("refused")) > len(bent) / 10


async def test_requests_with_properties_of_any_kind_are_answered_or_counted(
    fuzzing: Fuzzing,
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who names a place for the reply gets it, with the correlation id it gave, whatever bytes
    that is of; who names none, or one that no reply can be sent to, is counted."""
    caplog.set_level(logging.WARNING, logger="tickmind")
    await _town(database)
    rng = random.Random(f"recalls:{fuzzing.seed}")
    number = 600 * fuzzing.factor
    app = _retriever(database_settings, broker_settings)

    async with running(app), _asking(broker_settings) as asker:
        expected: dict[bytes, asyncio.Future[AbstractIncomingMessage]] = {}
        for n in range(number):
            correlation = rng.choice((b"%d" % n, rng.randbytes(16), b"\xff" * 250 + b"%d" % n))
            request = body(("alice", f"fish {n}"), deadline_ms=30_000)
            given = {"correlation_id": correlation}
            if n % 2:
                given["reply_to"] = _DIRECT.encode()
                expected[correlation] = asker.expect(correlation)
            elif n % 4:
                given["reply_to"] = rng.choice(
                    (b"", b"\xff\xfe", b"x" * 255, b"\xff" * 255, b"no\0")
                )
            await asker.send(ForeignMessage(request, any_properties(rng, **given)))

        async def through() -> float:
            unanswered = sum(
                metric(app, "tickmind_recalls_unanswered_total", reason=reason)
                for reason in ("reply_to", "expired", "connection")
            )
            return unanswered + metric(app, "tickmind_recalls_total", status="ok", reason="")

        await eventually(through, lambda n: n >= number, what=f"of {number}", timeout_s=_PATIENCE_S)
        # Told apart by the clock of its sender, whatever that said, a request may be too old.
        late = metric(app, "tickmind_recalls_unanswered_total", reason="expired")

        async def all_there() -> int:
            return sum(future.done() for future in expected.values())

        await eventually(all_there, lambda n: n + late >= len(expected), what="replies")
        answered = [future.result() for future in expected.values() if future.done()]
        assert len(answered) > len(expected) / 2
        for message in answered:
            assert json.loads(message.body)["replies"][0]["status"] == "ok"
        assert metric(app, "tickmind_recalls_unanswered_total", reason="connection") == 0
        assert metric(app, "tickmind_recalls_unanswered_total", reason="reply_to") > number / 8
        assert (await asker.ask(body(("alice", _FISH)), "last"))["replies"][0]["status"] == "ok"
        assert asker.strays == 0
        assert [record.getMessage() for record in caplog.records if record.levelno > 30] == []


async def test_bent_replies_never_raise_and_are_nobody_elses(
    fuzzing: Fuzzing, broker_settings: BrokerSettings
) -> None:
    """The client's side: what is no reply is none, with its reason; the next one is as ever."""
    bent = Mutator(REPLIES, fuzzing.seed)
    number = 500 * fuzzing.factor
    numbers = itertools.count()
    told: dict[str, Mutated] = {}

    async def answer(message: AbstractIncomingMessage, reply: Reply) -> None:
        request = json.loads(message.body)
        observation = request["queries"][0]["observation"]
        if observation.startswith("sound"):
            await reply(echo(request))
            return
        told[observation] = bent.make(int(observation))
        await reply(told[observation].body)

    reasons: list[str | None] = []
    async with answering(broker_settings, answer), client(broker_settings) as memory:

        async def ask() -> None:
            while (n := next(numbers)) < number:
                answers = await memory.recall_many(
                    "town", [("alice", str(n)), ("bob", "x")][: 1 + n % 2], tick=1, timeout_s=30
                )
                with blamed(told[str(n)]):
                    assert len(answers) == 1 + n % 2
                    for one in answers:
                        assert one.status in ("ok", "empty", "degraded")
                        assert isinstance(one.fragment, str)
                        reasons.append(one.reason)
                sound = await memory.recall("town", "alice", f"sound {n}", tick=1, timeout_s=30)
                assert (sound.status, sound.fragment) == ("ok", f"sound {n}")

        await asyncio.gather(*(ask() for _ in range(16)))
    assert reasons.count("reply") > number / 10
    assert len([reason for reason in reasons if reason is None]) > number / 50
    assert "connection" not in reasons


async def test_hints_of_any_kind_are_hints(
    fuzzing: Fuzzing,
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever a hint holds, the embedder wakes up by it, and is ready afterwards."""
    caplog.set_level(logging.WARNING, logger="tickmind")
    rng = random.Random(f"hints:{fuzzing.seed}")
    app = create_embedder(
        settings_for(EmbedderSettings, database_settings, broker_settings, embedder_sweep_s=600.0)
    )
    bodies = [one.body for one in fuzzing.inputs([b"{}", *REPLIES], 300)]

    async with running(app), wire(broker_settings) as own:
        for turn in range(5):
            await remember(database, [f"told {turn}"], world="town")
            for hint in bodies[turn::5]:
                message = ForeignMessage(hint, any_properties(rng))
                await own.events.publish(message, routing_key=RECORDED_KEY)
            assert await settled(database, "town", memories=turn + 1) == SOUND
        for name, check in app.checks.items():
            assert await check() is None, name
        assert [record.getMessage() for record in caplog.records if record.levelno > 30] == []
