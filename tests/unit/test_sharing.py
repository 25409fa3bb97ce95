"""Which questions share a call, and what an asker who gives up takes from the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from tickmind_retriever.sharing import Shared, TooLate


@dataclass
class Database:
    """Answers with the questions doubled, once it is let; remembers what it was asked.

    `busy`: lets it answer 0, `open` everything else.
    """

    busy: asyncio.Event = field(default_factory=asyncio.Event)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[tuple[str, list[int]]] = field(default_factory=list)
    cancelled: list[list[int]] = field(default_factory=list)
    error: Exception | None = None

    async def call(self, key: str, questions: Sequence[int]) -> list[int]:
        self.asked.append((key, list(questions)))
        try:
            await (self.busy if questions == [0] else self.open).wait()
        except asyncio.CancelledError:
            self.cancelled.append(list(questions))
            raise
        if self.error is not None:
            raise self.error
        return [question * 2 for question in questions]

    def answer(self) -> None:
        self.busy.set()
        self.open.set()


def _asking(
    shared: Shared[str, int, int], *questions: Sequence[int], key: str = "a"
) -> list[asyncio.Task[Sequence[int]]]:
    return [asyncio.create_task(shared.ask(key, some)) for some in questions]


async def _busy(shared: Shared[str, int, int]) -> asyncio.Task[Sequence[int]]:
    """Take a place, so that what is asked from now on has to wait."""
    (asked,) = _asking(shared, [0])
    await _settled()
    return asked


async def _sharing(
    database: Database, shared: Shared[str, int, int]
) -> list[asyncio.Task[Sequence[int]]]:
    """Two askers whose questions, 1 and 2, share a call that is under way."""
    busy = await _busy(shared)
    asks = _asking(shared, [1], [2])
    await _settled()
    database.busy.set()
    await busy
    await _settled()
    assert database.asked[-1] == ("a", [1, 2])
    return asks


async def _settled() -> None:
    """Let everything that can happen by itself happen."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_question_is_asked_at_once_where_a_place_is_free() -> None:
    database = Database()
    shared = Shared(database.call, parallel=2, most=10)

    asks = _asking(shared, [1], [2, 3])
    await _settled()

    assert database.asked == [("a", [1]), ("a", [2, 3])]
    database.answer()
    assert await asyncio.gather(*asks) == [[2], [4, 6]]


async def test_what_is_asked_while_all_places_are_taken_shares_the_next_call() -> None:
    database = Database()
    shared = Shared(database.call, parallel=1, most=10)
    busy = await _busy(shared)
    asks = _asking(shared, [1], [2, 3])
    await _settled()
    assert database.asked == [("a", [0])]

    database.answer()

    assert await asyncio.gather(busy, *asks) == [[0], [2], [4, 6]]
    assert database.asked == [("a", [0]), ("a", [1, 2, 3])]


async def test_questions_of_different_keys_share_nothing_and_take_turns() -> None:
    database = Database()
    shared = Shared(database.call, parallel=1, most=2)
    await _busy(shared)
    asks = [*_asking(shared, [1], [2], [3]), *_asking(shared, [4], key="b")]
    await _settled()

    database.answer()

    assert await asyncio.gather(*asks) == [[2], [4], [6], [8]]
    assert database.asked[1:] == [("a", [1, 2]), ("b", [4]), ("a", [3])]


async def test_no_call_has_more_questions_than_it_may_unless_one_asker_has() -> None:
    database = Database()
    shared = Shared(database.call, parallel=1, most=3)
    await _busy(shared)
    asks = _asking(shared, [1, 2], [3], [4, 5], [6, 7, 8, 9], [10])
    await _settled()

    database.answer()
    await asyncio.gather(*asks)

    asked = [questions for _, questions in database.asked[1:]]
    assert asked == [[1, 2, 3], [4, 5], [6, 7, 8, 9], [10]]


async def test_what_waits_is_spread_over_the_places_where_that_is_asked_for() -> None:
    database = Database()
    shared = Shared(database.call, parallel=2, most=10, spread=True)
    await _busy(shared)
    await _busy(shared)
    asks = _asking(shared, [1], [2], [3], [4], [5])
    await _settled()

    database.answer()
    await asyncio.gather(*asks)

    # Half of 5, half of the 2 that are left; the last takes the next place that is free.
    assert [questions for _, questions in database.asked[2:]] == [[1, 2, 3], [4], [5]]


async def test_no_more_calls_are_under_way_than_there_are_places() -> None:
    database = Database()
    shared = Shared(database.call, parallel=2, most=1)
    asks = _asking(shared, [1], [2], [3])
    await _settled()

    assert [questions for _, questions in database.asked] == [[1], [2]]

    database.answer()
    await asyncio.gather(*asks)
    assert shared.under_way == set()


async def test_error_reaches_all_who_share_the_call_and_none_of_the_next() -> None:
    database = Database(error=ConnectionError("gone"))
    shared = Shared(database.call, parallel=1, most=10)
    busy = await _busy(shared)
    asks = _asking(shared, [1], [2])
    await _settled()
    database.answer()

    for asked in (busy, *asks):
        with pytest.raises(ConnectionError, match="gone"):
            await asked

    database.error = None
    assert await shared.ask("a", [3]) == [6]


async def test_asker_who_gives_up_takes_nothing_from_the_others() -> None:
    database = Database()
    gone, stays = await _sharing(database, Shared(database.call, parallel=1, most=10))
    gone.cancel()
    await _settled()

    database.answer()

    assert await stays == [4]
    assert gone.cancelled()
    assert database.cancelled == []


async def test_call_ends_with_its_last_asker_and_its_place_is_free_at_once() -> None:
    database = Database()
    shared = Shared(database.call, parallel=1, most=2)
    gone = await _sharing(database, shared)
    (waiting,) = _asking(shared, [3])
    await _settled()
    for asked in gone:
        asked.cancel()
    await _settled()

    assert database.cancelled == [[1, 2]]
    assert database.asked[-2:] == [("a", [1, 2]), ("a", [3])]

    database.answer()
    assert await waiting == [6]


async def test_place_of_a_call_that_does_not_take_its_cancellation_is_free_too() -> None:
    let_go = asyncio.Event()

    async def stubborn(_: str, questions: Sequence[int]) -> Sequence[int]:
        if questions == [1]:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await let_go.wait()
        return questions

    shared: Shared[str, int, int] = Shared(stubborn, parallel=1, most=1)
    (gone,) = _asking(shared, [1])
    await _settled()
    gone.cancel()

    assert await shared.ask("a", [2]) == [2]

    (late,) = shared.under_way
    let_go.set()
    await late
    await _settled()
    assert shared.under_way == set()


async def test_question_nobody_waits_for_any_more_is_not_asked() -> None:
    database = Database()
    shared = Shared(database.call, parallel=1, most=10)
    first = _asking(shared, [1])
    await _settled()
    gone, stays = _asking(shared, [2], [3])
    await _settled()
    gone.cancel()
    await _settled()

    database.answer()

    assert await asyncio.gather(*first, stays) == [[2], [6]]
    assert database.asked == [("a", [1]), ("a", [3])]


async def test_call_that_takes_too_long_keeps_nobody_waiting_and_is_answered_still() -> None:
    slow = asyncio.Event()

    async def call(_: str, questions: Sequence[int]) -> Sequence[int]:
        if questions == [1]:
            await slow.wait()
        return questions

    shared: Shared[str, int, int] = Shared(call, parallel=1, most=1, patience_s=0.001)
    (first,) = _asking(shared, [1])
    await _settled()

    assert await shared.ask("a", [2]) == [2]

    slow.set()
    assert await first == [1]


async def test_who_waited_too_long_to_be_answered_in_time_is_told_and_not_asked_for() -> None:
    async def slow(_: str, questions: Sequence[int]) -> list[int]:
        asked.append(list(questions))
        await asyncio.sleep(0.05)
        return [question * 2 for question in questions]

    asked: list[list[int]] = []
    shared: Shared[str, int, int] = Shared(slow, parallel=1, most=1)
    loop = asyncio.get_running_loop()
    assert await shared.ask("a", [1], until=loop.time()) == [2]  # at once: nothing is known yet
    first = asyncio.create_task(shared.ask("a", [2], until=loop.time() + 0.01))  # nor waited for
    await asyncio.sleep(0)
    late = asyncio.create_task(shared.ask("a", [3], until=loop.time() + 0.06))
    in_time = asyncio.create_task(shared.ask("a", [4], until=loop.time() + 60))
    patient = asyncio.create_task(shared.ask("a", [5]))
    with pytest.raises(TooLate):
        await late
    assert await first == [4]
    assert await in_time == [8]
    assert await patient == [10]
    assert asked == [[1], [2], [4], [5]]
