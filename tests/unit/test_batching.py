"""Batches: when they are full, in which order things happen, and what one bad message costs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from opentelemetry.context import Context
from prometheus_client import CollectorRegistry

from tickmind.database import Database
from tickmind.database_errors import DatabaseUnavailable
from tickmind.errors import PermanentError
from tickmind.policy import default_policy
from tickmind.settings import DatabaseSettings
from tickmind_recorder import batching
from tickmind_recorder.batching import Batcher
from tickmind_recorder.handler import Delivery, Handler, Metrics, Refused


class Events(list[str]):
    """What happened, in order; may be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._more = asyncio.Event()

    def append(self, event: str) -> None:
        super().append(event)
        self._more.set()

    async def wait_for(self, *events: str) -> None:
        async with asyncio.timeout(10):
            while not set(events) <= set(self):
                self._more.clear()
                await self._more.wait()


class FakeHandler(Handler):
    """A real handler whose transactions are a list of what was stored and rejected."""

    def __init__(self) -> None:
        database = Database(DatabaseSettings(), application="test")  # connects to nothing
        super().__init__(database, default_policy(), Metrics(CollectorRegistry()))
        self.events = Events()
        self.fault: Callable[[Sequence[Delivery]], BaseException | None] = lambda _: None
        self.reject_fault: Callable[[], BaseException | None] = lambda: None
        self.gate = asyncio.Event()
        self.gate.set()
        self.tried = asyncio.Event()

    async def store(self, deliveries: Sequence[Delivery]) -> None:
        self.tried.set()
        await self.gate.wait()
        if fault := self.fault(deliveries):
            raise fault
        self.events.append("store " + " ".join(_name(d) for d in deliveries))

    async def reject(self, deliveries: Sequence[Delivery], *, why: PermanentError) -> None:
        if fault := self.reject_fault():
            raise fault
        self.events.append(f"reject {_name(deliveries[0])}: {why}")


class FakeItem:
    """A delivery whose way back is the handler's list of events."""

    def __init__(self, name: str, handler: FakeHandler, decisions: int = 1) -> None:
        body = {
            "world": name,
            "tick": 1,
            "decisions": [{"agent": "a", "action": "stay"}] * decisions,
        }
        self.delivery = handler.read(json.dumps(body).encode(), "")
        self.name = name
        self.lost = False
        self.trace: Context | None = None
        self._handler = handler
        self.settled = False

    @property
    def channel(self) -> FakeItem:
        return self

    def settle(self) -> None:
        self.settled = True

    async def flush(self) -> None:
        if self.settled:
            self._handler.events.append(f"ack {self.name}")

    async def give_up(self) -> None:
        self._handler.events.append(f"dead {self.name}")


def _name(delivery: Delivery) -> str:
    assert delivery.tick is not None
    return delivery.tick.world


@pytest.fixture
async def handler() -> FakeHandler:
    return FakeHandler()


def _batcher(handler: FakeHandler, *, decisions: int = 3, wait_s: float = 3600.0) -> Batcher:
    return Batcher(
        handler,
        batch_decisions=decisions,
        batch_s=wait_s,
        stored=lambda: handler.events.append("hint"),
    )


@asynccontextmanager
async def _run(batcher: Batcher) -> AsyncIterator[None]:
    running = asyncio.create_task(batcher.run())
    try:
        yield
    finally:
        batcher.close()
        async with asyncio.timeout(10):
            await running


async def test_stores_commits_then_acknowledges_then_hints(handler: FakeHandler) -> None:
    batcher = _batcher(handler)

    async with _run(batcher):
        for name in "abc":
            batcher.put(FakeItem(name, handler))

    assert handler.events[0] == "store a b c"
    assert sorted(handler.events[1:4]) == ["ack a", "ack b", "ack c"]
    assert handler.events[4:] == ["hint"]


async def test_acknowledges_nothing_before_the_commit(handler: FakeHandler) -> None:
    batcher = _batcher(handler, decisions=1)
    handler.gate.clear()

    async with _run(batcher):
        batcher.put(FakeItem("a", handler))
        await handler.tried.wait()
        assert handler.events == []
        handler.gate.set()

    assert handler.events == ["store a", "ack a", "hint"]


async def test_a_batch_is_full_with_so_many_decisions(handler: FakeHandler) -> None:
    batcher = _batcher(handler, decisions=3)
    for name in "abcd":
        batcher.put(FakeItem(name, handler, decisions=2))

    async with _run(batcher):
        pass

    assert [event for event in handler.events if event.startswith("store")] == [
        "store a b",
        "store c d",
    ]


async def test_a_batch_is_full_with_so_much_text(
    handler: FakeHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A speech of 1 MiB counts for everyone who hears it."""
    monkeypatch.setattr(batching, "_BATCH_CHARS", 100)
    batcher = _batcher(handler, decisions=1000)
    for name in "abc":
        item = FakeItem(name, handler)
        talk = {"agent": "x", "action": "talk", "speech": "y" * 20, "heard_by": ["1", "2", "3"]}
        item.delivery = handler.read(
            json.dumps({"world": name, "tick": 1, "decisions": [talk]}).encode(), ""
        )
        batcher.put(item)

    async with _run(batcher):
        pass

    assert [event for event in handler.events if event.startswith("store")] == [
        "store a",
        "store b",
        "store c",
    ]


async def test_rejected_bodies_count_as_text() -> None:
    handler = FakeHandler()

    assert handler.read(b"x" * 1000, "").chars == 1000


async def test_a_batch_is_stored_once_its_first_message_has_waited(handler: FakeHandler) -> None:
    batcher = _batcher(handler, decisions=1000, wait_s=0.02)

    async with _run(batcher):
        batcher.put(FakeItem("a", handler))
        async with asyncio.timeout(5):
            await handler.tried.wait()


async def test_closing_stores_what_waits(handler: FakeHandler) -> None:
    batcher = _batcher(handler, decisions=1000)

    async with _run(batcher):
        for name in "ab":
            batcher.put(FakeItem(name, handler))

    assert handler.events[0] == "store a b"


async def test_one_bad_message_costs_only_itself(handler: FakeHandler) -> None:
    handler.fault = lambda batch: (
        Refused("SQLSTATE 23514") if any(_name(d) == "b" for d in batch) else None
    )
    batcher = _batcher(handler)
    for name in "abc":
        batcher.put(FakeItem(name, handler))

    async with _run(batcher):
        pass

    stored = [event for event in handler.events if event.startswith(("store", "reject"))]
    assert stored == ["store a", "reject b: SQLSTATE 23514", "store c"]
    assert {"ack a", "ack b", "ack c"} <= set(handler.events)


async def test_what_cannot_even_be_rejected_goes_to_the_dead_letters(handler: FakeHandler) -> None:
    handler.fault = lambda batch: Refused("x") if any(_name(d) == "b" for d in batch) else None
    handler.reject_fault = lambda: Refused("y")
    batcher = _batcher(handler)
    for name in "abc":
        batcher.put(FakeItem(name, handler))

    async with _run(batcher):
        pass

    assert "dead b" in handler.events
    assert "ack b" not in handler.events
    assert {"ack a", "ack c"} <= set(handler.events)


async def test_a_fault_of_our_own_costs_only_the_message_that_has_it(handler: FakeHandler) -> None:
    """A message that would end the process would end it again after each restart."""
    handler.fault = lambda batch: KeyError("x") if any(_name(d) == "b" for d in batch) else None
    batcher = _batcher(handler)
    for name in "abc":
        batcher.put(FakeItem(name, handler))

    async with _run(batcher):
        pass

    assert "reject b: storing it failed (KeyError)" in handler.events
    assert {"store a", "store c"} <= set(handler.events)


async def test_waits_for_a_database_that_is_away_and_keeps_all(
    handler: FakeHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "_RETRY_FIRST_S", 0.001)
    faults = [DatabaseUnavailable("away")] * 4
    handler.fault = lambda _: faults.pop() if faults else None
    batcher = _batcher(handler, decisions=2)

    async with _run(batcher):
        for name in "abcd":
            batcher.put(FakeItem(name, handler))
        await handler.events.wait_for("ack a", "ack b", "ack c", "ack d")

    stored = {event for event in handler.events if event.startswith("store")}
    assert stored == {"store a b", "store c d"}


async def test_tells_why_nothing_can_be_stored_until_it_is(
    handler: FakeHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "_RETRY_FIRST_S", 0.001)
    handler.fault = lambda _: DatabaseUnavailable("read-only")
    batcher = _batcher(handler, decisions=1)
    before = await batcher.check()

    async with _run(batcher):
        batcher.put(FakeItem("a", handler))
        await handler.tried.wait()
        handler.tried.clear()
        await handler.tried.wait()  # the first try is over
        meanwhile = await batcher.check()
        handler.fault = lambda _: None
        await handler.events.wait_for("ack a")

    assert (before, meanwhile, await batcher.check()) == (None, "read-only", None)


async def test_a_database_that_never_answers_is_tried_again(
    handler: FakeHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "_RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(batching, "STORE_TIMEOUT_S", 0.01)
    handler.gate.clear()
    batcher = _batcher(handler, decisions=1)

    async with _run(batcher):
        batcher.put(FakeItem("a", handler))
        await handler.tried.wait()
        handler.tried.clear()
        await handler.tried.wait()
        handler.gate.set()
        await handler.events.wait_for("ack a")

    assert handler.events == ["store a", "ack a", "hint"]


async def test_closing_while_the_database_is_away_leaves_all_unacknowledged(
    handler: FakeHandler,
) -> None:
    """They are delivered to another recorder, or to the next one."""
    handler.fault = lambda _: DatabaseUnavailable("away")
    batcher = _batcher(handler, decisions=1)

    async with _run(batcher):
        for name in "abcde":
            batcher.put(FakeItem(name, handler))
        await handler.tried.wait()

    assert not any(event.startswith(("ack", "store")) for event in handler.events)


async def test_lets_go_of_what_is_delivered_again(
    handler: FakeHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waited for the database while the broker went away comes again on a new channel."""
    monkeypatch.setattr(batching, "_RETRY_FIRST_S", 0.001)
    faults = [DatabaseUnavailable("away")]
    handler.fault = lambda _: faults.pop() if faults else None
    batcher = _batcher(handler, decisions=2)
    items = [FakeItem(name, handler) for name in "abcd"]

    async with _run(batcher):
        for item in items[:2]:
            batcher.put(item)
        await handler.tried.wait()  # a and b are under way, and will be tried again
        for item in items[2:]:
            batcher.put(item)
        for item in (items[0], items[2]):
            item.lost = True
        batcher.forget_lost()
        await handler.events.wait_for("store b")

    assert [event for event in handler.events if event.startswith("store")] == [
        "store b",
        "store d",
    ]
