"""MemoryClient on a real broker: receipts and answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aio_pika.abc import AbstractIncomingMessage
from opentelemetry import trace

from tests.asking import Reply, answering, at_once, echo
from tests.clock import SLACK_S, Clock
from tests.recording import client, count, left_in, recorder, remembered, until_remembered, wire
from tests.running import eventually, metric, running
from tickmind.database import Database
from tickmind.errors import InvalidMessage
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind.topology import RECORDER_QUEUE

_TALK = {"agent": "bob", "action": "talk", "speech": "The market sells fresh fish"}


def _decisions(app: Any) -> Callable[[], Awaitable[float]]:
    async def ask() -> float:
        return metric(app, "tickmind_decisions_total")

    return ask


async def test_a_confirmed_tick_is_in_the_queue(broker_settings: BrokerSettings) -> None:
    async with client(broker_settings) as memory:
        receipt = await memory.publish_tick("town-7", 1, [_TALK])

    assert (receipt.confirmed, receipt.reason, receipt.messages, receipt.attempts) == (
        True,
        None,
        1,
        1,
    )
    assert await left_in(broker_settings, RECORDER_QUEUE) == [1]


async def test_a_tick_beyond_a_mebibyte_is_split_and_stored_as_one(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    """Hearers by place and identical decisions are what they would be in one message."""
    decisions = [
        _TALK | {"agent": f"{place}-{n}", "place": f"place-{place}", "speech": "x" * 60_000}
        for place in range(6)
        for n in range(4)
    ]
    decisions += [decision for decision in decisions if decision["place"] == "place-5"]
    app = recorder(database_settings, broker_settings)

    async with running(app), client(broker_settings) as memory:
        receipt = await memory.publish_tick("town-7", 1, decisions)
        # Each is remembered by who said it and by the three others of the place.
        expected = len(decisions) * 4
        await until_remembered(database, expected)
        again = await memory.publish_tick("town-7", 1, decisions)
        await eventually(_decisions(app), lambda n: n == 2 * len(decisions), what="decisions")

    assert receipt.confirmed
    assert receipt.messages == again.messages == 2
    assert await count(database, "memory") == expected
    assert await count(database, "reject") == 0


async def test_a_tick_published_again_is_one_event(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    app = recorder(database_settings, broker_settings)

    async with running(app), client(broker_settings) as memory:
        for _ in range(5):
            assert (await memory.publish_tick("town-7", 1, [_TALK, _TALK])).confirmed
        await eventually(_decisions(app), lambda n: n == 10, what="decisions")

    assert len(await remembered(database)) == 2


async def test_a_queue_that_is_gone_is_declared_again(broker_settings: BrokerSettings) -> None:
    async with client(broker_settings) as memory, wire(broker_settings) as own:
        await own.channel.queue_delete(RECORDER_QUEUE.name)

        receipt = await memory.publish_tick("town-7", 1, [_TALK])

    assert receipt.confirmed
    assert receipt.attempts > 1


async def test_ticks_published_at_once_are_each_confirmed(
    broker_settings: BrokerSettings,
) -> None:
    async with client(broker_settings) as memory:
        receipts = await asyncio.gather(
            *(memory.publish_tick("town-7", tick, [_TALK]) for tick in range(500))
        )

    assert all(receipt.confirmed for receipt in receipts)
    assert await left_in(broker_settings, RECORDER_QUEUE) == [500]


async def test_every_call_gets_its_own_answer(broker_settings: BrokerSettings) -> None:
    """However the answers are shuffled."""
    waiting: list[tuple[dict[str, Any], Reply]] = []

    async def in_reverse(message: AbstractIncomingMessage, reply: Reply) -> None:
        waiting.append((json.loads(message.body), reply))
        if len(waiting) == 100:
            for request, send in reversed(waiting):
                await send(echo(request))

    async with answering(broker_settings, in_reverse), client(broker_settings) as memory:
        answers = await asyncio.gather(
            *(
                memory.recall("town-7", f"agent-{n}", f"sees {n}", tick=1, timeout_s=20)
                for n in range(100)
            )
        )

    assert [(answer.agent, answer.fragment) for answer in answers] == [
        (f"agent-{n}", f"sees {n}") for n in range(100)
    ]


async def test_an_answer_after_its_deadline_is_discarded_and_b_gets_b(
    broker_settings: BrokerSettings,
) -> None:
    """case 38."""
    late: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()

    async def first_is_late(message: AbstractIncomingMessage, reply: Reply) -> None:
        request = json.loads(message.body)
        if request["queries"][0]["observation"] == "A":
            late.put_nowait(lambda: reply(echo(request)))
        else:
            await (await late.get())()  # the answer to A, while B waits
            await reply(echo(request))

    async with answering(broker_settings, first_is_late), client(broker_settings) as memory:
        while late.empty():  # a busy machine may let the first ones run out on their way
            a = await memory.recall("town-7", "alice", "A", tick=1, timeout_s=0.2)
        b = await memory.recall("town-7", "bob", "B", tick=1, timeout_s=10)

    assert (a.status, a.reason, a.fragment) == ("empty", "timeout", "")
    assert (b.status, b.agent, b.fragment) == ("ok", "bob", "B")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"garbage", "reply"),
        (b"\xff", "reply"),
        (b'{"replies": 5}', "reply"),
        (b'{"replies": []}', "invalid"),
        (b'{"reason": "overloaded", "detail": "later"}', "overloaded"),
    ],
)
async def test_an_answer_that_is_none_is_empty_with_its_reason(
    broker_settings: BrokerSettings, body: bytes, reason: str
) -> None:
    async def answer(_: AbstractIncomingMessage, reply: Reply) -> None:
        await reply(body)

    async with answering(broker_settings, answer), client(broker_settings) as memory:
        given = await memory.recall("town-7", "alice", "x", tick=1, timeout_s=10)

    assert (given.status, given.reason, given.fragment) == ("empty", reason, "")


async def test_closing_ends_what_waits_at_once(broker_settings: BrokerSettings) -> None:
    memory = client(broker_settings)
    async with memory:
        recall = asyncio.create_task(memory.recall("town-7", "a", "x", tick=1, timeout_s=60))
        await asyncio.wait([recall], timeout=0.2)
        assert not recall.done()
    clock = Clock()

    assert (await recall).reason == "connection"
    later = await memory.recall("town-7", "a", "x", tick=1, timeout_s=60)
    receipt = await memory.publish_tick("town-7", 1, [_TALK], timeout_s=60)

    assert later.reason == "connection"
    assert (receipt.confirmed, receipt.reason, receipt.attempts) == (False, "connection", 0)
    assert clock.s < SLACK_S


@pytest.mark.parametrize(
    "options",
    [{"k": 0}, {"language": "fr"}, {"ranking": "best"}, {"tick": -1}, {"min_importance": 11}],
    ids=str,
)
async def test_a_wrong_option_is_told_and_not_sent(
    broker_settings: BrokerSettings, options: dict[str, Any]
) -> None:
    async with client(broker_settings) as memory:
        with pytest.raises(InvalidMessage, match=next(iter(options))):
            await memory.recall("town-7", "a", "x", **({"tick": 1} | options))


async def test_asks_for_nobody_without_asking(broker_settings: BrokerSettings) -> None:
    assert await client(broker_settings).recall_many("town-7", [], tick=1) == []


async def test_an_observation_cut_in_a_character_is_still_asked(
    broker_settings: BrokerSettings,
) -> None:
    """A lone surrogate must not end an agent's turn with an exception."""
    async with answering(broker_settings, at_once), client(broker_settings) as memory:
        answer = await memory.recall("town-7", "a", "fish \ud83d\x00", tick=1, timeout_s=5)

    assert answer.fragment == "fish \ufffd"


async def test_the_request_says_what_was_asked_and_how_long_it_counts(
    broker_settings: BrokerSettings,
) -> None:
    asked: list[AbstractIncomingMessage] = []

    async def keep(message: AbstractIncomingMessage, reply: Reply) -> None:
        asked.append(message)
        await at_once(message, reply)

    span = trace.NonRecordingSpan(
        trace.SpanContext(
            trace_id=0xABCDEF, span_id=0x123, is_remote=False, trace_flags=trace.TraceFlags(1)
        )
    )
    async with answering(broker_settings, keep), client(broker_settings) as memory:
        with trace.use_span(span):
            await memory.recall(
                "town-7", 435075722181083147, "x", tick=2**53 + 1, timeout_s=2, as_of_tick=5, k=7
            )

    (message,) = asked
    request = json.loads(message.body)
    assert request["queries"] == [{"agent": "435075722181083147", "observation": "x"}]
    assert (request["tick"], request["as_of_tick"], request["k"]) == (2**53 + 1, 5, 7)
    assert request["deadline_ms"] == 2000
    assert message.expiration == 2
    assert isinstance(message.headers["sent_at"], int)
    assert message.headers["traceparent"] == f"00-{0xABCDEF:032x}-{0x123:016x}-01"
