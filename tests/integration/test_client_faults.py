"""MemoryClient when the network is not what it should be: never an exception, never too late."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage
from aiormq.exceptions import AMQPError
from pydantic import SecretStr

from tests.asking import Reply, answering, at_once, echo
from tests.clock import SLACK_S, Clock
from tests.proxy import Door, door
from tests.recording import client, left_in
from tests.running import eventually
from tickmind.local.rabbitmq import LocalRabbitmq
from tickmind.settings import BrokerSettings
from tickmind.topology import RECORDER_QUEUE

_TALK = {"agent": "bob", "action": "talk", "speech": "The market sells fresh fish"}


@pytest.fixture
async def opened(rabbitmq: LocalRabbitmq) -> AsyncIterator[Door]:
    async with door(("127.0.0.1", rabbitmq.port)) as made:
        yield made


@pytest.fixture
def through(opened: Door, broker_settings: BrokerSettings) -> BrokerSettings:
    """The test's own virtual host, through the door."""
    vhost = broker_settings.broker_url().rsplit("/", 1)[1]
    return BrokerSettings(amqp_url=SecretStr(f"amqp://guest:guest@127.0.0.1:{opened.port}/{vhost}"))


def _visits(opened: Door) -> Callable[[], Awaitable[int]]:
    async def visits() -> int:
        return opened.visits

    return visits


async def test_a_tick_published_while_the_broker_is_down_arrives_when_it_is_back(
    opened: Door, through: BrokerSettings, broker_settings: BrokerSettings
) -> None:
    """Within the timeout, and confirmed."""
    async with client(through) as memory:
        await opened.shut()
        publishing = asyncio.create_task(memory.publish_tick("town-7", 1, [_TALK], timeout_s=20))
        await asyncio.wait([publishing], timeout=0.3)
        assert not publishing.done()
        await opened.unlock()
        receipt = await publishing

    assert receipt.confirmed
    assert await left_in(broker_settings, RECORDER_QUEUE) == [1]


async def test_a_tick_whose_confirmation_is_lost_is_sent_again(
    opened: Door, through: BrokerSettings, broker_settings: BrokerSettings
) -> None:
    """It arrived twice, perhaps; the recorder makes one event of it."""
    async with client(through) as memory:
        opened.hold(newcomers=False)
        publishing = asyncio.create_task(memory.publish_tick("town-7", 1, [_TALK], timeout_s=20))
        await asyncio.wait([publishing], timeout=0.2)
        assert not publishing.done()
        await opened.cut()
        receipt = await publishing

    assert receipt.confirmed
    assert receipt.attempts >= 2
    (left,) = await left_in(broker_settings, RECORDER_QUEUE)
    assert left in (1, 2)


@pytest.mark.parametrize("fault", ["shut", "held"])
async def test_publishing_never_outlives_its_timeout(
    opened: Door, through: BrokerSettings, fault: str
) -> None:
    async with client(through) as memory:
        if fault == "shut":
            await opened.shut()
        else:
            opened.hold()
        clock = Clock()
        receipt = await memory.publish_tick("town-7", 1, [_TALK], timeout_s=0.5)
        took = clock.s
        opened.release()

    assert not receipt.confirmed
    assert receipt.reason == {"shut": "connection", "held": "timeout"}[fault]
    assert took < 0.5 + SLACK_S


async def test_a_full_queue_refuses_and_costs_nobody_their_connection(
    rabbitmq: LocalRabbitmq, opened: Door, through: BrokerSettings
) -> None:
    vhost = through.broker_url().rsplit("/", 1)[1]
    policy = ("full", "^tickmind.recorder$", '{"max-length": 1}', "--apply-to", "queues")
    async with client(through) as memory:
        assert (await memory.publish_tick("town-7", 1, [_TALK])).confirmed
        await rabbitmq.rabbitmqctl("set_policy", "-p", vhost, *policy)
        visits = opened.visits

        async def refused() -> bool:
            receipt = await memory.publish_tick("town-7", 2, [_TALK], timeout_s=10)
            if not receipt.confirmed:
                assert (receipt.reason, receipt.attempts) == ("refused", 5)
            return not receipt.confirmed

        await eventually(refused, bool, what="a refusal")

        assert opened.visits == visits


async def test_a_recall_without_a_broker_is_empty_at_once(
    opened: Door, through: BrokerSettings
) -> None:
    async with client(through) as memory:
        await opened.shut()
        await eventually(
            lambda: memory.recall("town-7", "alice", "x", tick=1, timeout_s=5),
            lambda answer: answer.reason == "connection",
            what="noticed",
        )
        clock = Clock()
        answers = await memory.recall_many("town-7", [("a", "x"), (17, "y")], tick=1, timeout_s=5)
        took = clock.s

    assert [(a.agent, a.status, a.reason, a.fragment) for a in answers] == [
        ("a", "empty", "connection", ""),
        ("17", "empty", "connection", ""),
    ]
    assert took < SLACK_S


@pytest.mark.parametrize("fault", ["nobody", "held"])
async def test_a_recall_never_outlives_its_timeout(
    opened: Door, through: BrokerSettings, fault: str
) -> None:
    """Nobody answers; or the network is gone in silence."""
    async with client(through) as memory:
        if fault == "held":
            opened.hold()
        clock = Clock()
        answer = await memory.recall("town-7", "alice", "x", tick=1, timeout_s=0.3)
        took, passed = clock.s, clock.wall_s
        opened.release()

    assert (answer.status, answer.reason) == ("empty", "timeout")
    assert passed >= 0.3
    assert took < 0.3 + SLACK_S


async def test_a_connection_lost_while_waiting_ends_the_wait_at_once(
    opened: Door, through: BrokerSettings
) -> None:
    async with client(through) as memory:
        recalls = [
            asyncio.create_task(memory.recall("town-7", "a", "x", tick=1, timeout_s=60))
            for _ in range(10)
        ]
        await asyncio.wait(recalls, timeout=0.2)
        assert not any(recall.done() for recall in recalls)
        clock = Clock()
        await opened.cut()
        answers = await asyncio.gather(*recalls)
        took = clock.s

    assert {(answer.status, answer.reason) for answer in answers} == {("empty", "connection")}
    assert took < SLACK_S


@pytest.mark.parametrize("timeout_s", [-1.0, 0.0, float("nan"), 1e12, float("inf")])
async def test_a_timeout_that_no_message_can_carry_costs_nobody_their_answer(
    broker_settings: BrokerSettings, timeout_s: float
) -> None:
    """Time that is used up, as an engine may count it, or no limit at all: RabbitMQ ends the
    channel for an expiration that it does not take, and with it every recall that waits there."""
    asked, go = asyncio.Event(), asyncio.Event()

    async def held(message: AbstractIncomingMessage, reply: Reply) -> None:
        asked.set()
        await go.wait()
        await reply(echo(json.loads(message.body)))

    async with answering(broker_settings, held), client(broker_settings) as memory:
        waiting = asyncio.create_task(memory.recall("town-7", "a", "x", tick=1, timeout_s=60))
        await asked.wait()
        odd = asyncio.create_task(memory.recall("town-7", "b", "y", tick=1, timeout_s=timeout_s))
        # Behind the odd one on the same channel: once it is answered, that one was taken.
        behind = asyncio.create_task(memory.recall("town-7", "c", "z", tick=1, timeout_s=60))
        go.set()
        answers = await asyncio.gather(waiting, odd, behind)

    told = ("ok", None) if timeout_s > 0 else ("empty", "timeout")
    assert [(a.status, a.reason) for a in answers] == [("ok", None), told, ("ok", None)]


async def test_a_client_opened_again_works_again(broker_settings: BrokerSettings) -> None:
    memory = client(broker_settings)
    async with answering(broker_settings, at_once):
        for tick in range(2):
            async with memory:
                assert (await memory.publish_tick("town-7", tick, [_TALK])).confirmed
                answer = await memory.recall("town-7", "a", "x", tick=1, timeout_s=5)
                assert answer.status == "ok"


async def test_a_connection_that_breaks_comes_back_once_and_works(
    opened: Door, through: BrokerSettings, broker_settings: BrokerSettings
) -> None:
    """What the old connection still has to say ends no new one."""
    async with answering(broker_settings, at_once), client(through) as memory:
        for broken in range(1, 4):
            await opened.cut()
            answer = await eventually(
                lambda: memory.recall("town-7", "a", "sees", tick=1, timeout_s=5),
                lambda answer: answer.status == "ok",
                what="an answer",
            )
            assert answer.fragment == "sees"
            assert (await memory.publish_tick("town-7", broken, [_TALK])).confirmed
            assert opened.visits == 2 + 2 * broken  # one connection each for ticks and recalls


async def test_begins_without_a_broker_and_finds_it_when_it_comes(
    opened: Door,
    through: BrokerSettings,
    broker_settings: BrokerSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tickmind.client._FIRST_CONNECTION_S", 0.1)
    await opened.shut()

    async with answering(broker_settings, at_once), client(through) as memory:
        assert (await memory.recall("town-7", "a", "x", tick=1)).reason == "connection"
        await opened.unlock()
        await eventually(
            lambda: memory.recall("town-7", "a", "x", tick=1, timeout_s=5),
            lambda answer: answer.status == "ok",
            what="an answer",
        )


async def test_says_once_why_there_is_no_connection_and_in_each_answer(
    opened: Door, through: BrokerSettings, caplog: pytest.LogCaptureFixture
) -> None:
    """An engine prints logs in its own way, or in Python's, which knows no fields of ours. What
    the driver says of each try is left out; of the engine's own connections it is not."""
    url = through.broker_url()
    wrong = BrokerSettings(amqp_url=SecretStr(url.replace("guest:guest", "guest:geheim")))

    async with client(wrong) as memory:
        await eventually(_visits(opened), lambda visits: visits >= 6, what="some tries")
        answer = await memory.recall("town-7", "a", "x", tick=1)
        receipt = await memory.publish_tick("town-7", 1, [_TALK], timeout_s=0.1)

    assert (answer.reason, receipt.reason) == ("connection", "connection")
    assert "refuses the user guest or the password" in (answer.detail or "")
    assert receipt.detail == answer.detail
    assert [record.getMessage() for record in caplog.records] == [f"waiting broker={answer.detail}"]
    assert "geheim" not in caplog.text
    await opened.shut()
    with pytest.raises(AMQPError):
        await aio_pika.connect(url)
    assert caplog.records[-1].name == "aiormq.connection"


async def test_a_decision_that_will_be_rejected_is_told_once(
    broker_settings: BrokerSettings, caplog: pytest.LogCaptureFixture
) -> None:
    async with client(broker_settings) as memory:
        for tick in range(3):
            bad = {"agnet": "bob", "action": "talk"}
            assert (await memory.publish_tick("town-7", tick, iter([_TALK, bad]))).confirmed

    assert [record.getMessage() for record in caplog.records] == [
        "will_be_rejected world=town-7 tick=0 why=agent: Field required"
    ]
