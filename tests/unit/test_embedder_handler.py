"""The embedder's loops and judgements without its servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from uuid import uuid4

import pytest

from tickmind.database_errors import DatabaseUnavailable
from tickmind.errors import ConfigurationError
from tickmind.store.embedding import Swept
from tickmind.store.jobs import Job
from tickmind_embedder import worker as worker_module
from tickmind_embedder.calling import Evidence
from tickmind_embedder.handler import ProviderPaused
from tickmind_embedder.horizon import Horizon
from tickmind_embedder.worker import Worker


def _job(content: str, *, attempts: int = 1) -> Job:
    return Job(content_hash=content.encode(), content=content, attempts=attempts, token=uuid4())


class Scripted:
    """A handler whose texts are numbers; `embeds` says what becomes of a batch."""

    def __init__(self, jobs: int, embeds: Callable[[Sequence[Job]], None]) -> None:
        self._left = [_job(str(number)) for number in range(jobs)]
        self._embeds = embeds
        self.batches: list[int] = []
        self.given_back: list[str] = []
        self.claims = 0
        self.sweeps = 0
        self.generations = 0
        self.unavailable = 0
        self.under_way = 0
        self.most_under_way = 0
        self.changed = asyncio.Event()

    async def generation(self) -> None:
        self.generations += 1
        if self.unavailable:
            self.unavailable -= 1
            msg = "away"
            raise DatabaseUnavailable(msg)

    async def sweep(self, *, full: bool, go_on: Callable[[Swept], bool]) -> None:
        self.sweeps += 1
        if self.unavailable:
            self.unavailable -= 1
            msg = "away"
            raise DatabaseUnavailable(msg)

    async def claim(self, *, most: int | None = None) -> list[Job]:
        self.claims += 1
        jobs, self._left = self._left[: most or 4], self._left[most or 4 :]
        return jobs

    async def give_back(self, jobs: Sequence[Job]) -> None:
        self._left = [*jobs, *self._left]
        self.given_back += [job.content for job in jobs]

    async def embed(self, jobs: Sequence[Job]) -> None:
        self.batches.append(len(jobs))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        try:
            self._embeds(jobs)
        except ProviderPaused:
            await self.give_back(jobs)
            raise
        finally:
            self.changed.set()

    @property
    def done(self) -> bool:
        return not self._left and not self.under_way


async def _until(handler: Scripted, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            handler.changed.clear()
            await handler.changed.wait()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_WAIT_FIRST_S", 0.005)
    monkeypatch.setattr(worker_module, "_WAIT_MOST_S", 0.01)
    monkeypatch.setattr(worker_module, "_DATABASE_WAIT_MOST_S", 0.01)


def _worker(handler: Scripted, *, concurrency: int = 3) -> Worker:
    return Worker(handler, concurrency=concurrency, sweep_s=600)  # type: ignore[arg-type]


async def test_what_the_last_process_left_is_claimed_at_once() -> None:
    """Though no sweep makes a new job of it."""
    handler = Scripted(10, lambda _: None)
    stop = asyncio.Event()
    working = asyncio.create_task(_worker(handler).run(stop))
    await _until(handler, lambda: handler.done)
    stop.set()
    await working
    assert sum(handler.batches) == 10


async def test_paused_provider_is_probed_by_one_caller_with_one_text() -> None:
    down = True

    def embeds(jobs: Sequence[Job]) -> None:
        if down:
            raise ProviderPaused("down", None)

    handler = Scripted(40, embeds)
    stop = asyncio.Event()
    worker = _worker(handler)
    working = asyncio.create_task(worker.run(stop))
    await _until(handler, lambda: len(handler.batches) >= 12)
    assert handler.batches[:3] == [4, 4, 4]
    assert set(handler.batches[3:]) == {1}
    assert worker.fault == "down"
    handler.most_under_way = 0

    down = False
    await _until(handler, lambda: handler.done)
    stop.set()
    await working
    assert worker.fault is None
    assert handler.most_under_way == 3
    # Nothing was embedded twice, and nothing lost.
    assert sum(handler.batches) - len(handler.given_back) == 40


async def test_success_of_a_call_under_way_does_not_end_anothers_pause() -> None:
    """A 429 says when to come back; what was sent before it may still pass."""
    order = iter(["pause", "ok", "ok"])

    def embeds(jobs: Sequence[Job]) -> None:
        if next(order, "ok") == "pause":
            raise ProviderPaused("told to wait", 0.3)

    handler = Scripted(40, embeds)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    working = asyncio.create_task(_worker(handler).run(stop))
    await _until(handler, lambda: len(handler.batches) >= 4)
    assert loop.time() - begun >= 0.3
    await _until(handler, lambda: handler.done)
    stop.set()
    await working


async def test_worker_waits_for_a_database_that_is_away() -> None:
    handler = Scripted(5, lambda _: None)
    handler.unavailable = 4
    stop = asyncio.Event()
    working = asyncio.create_task(_worker(handler).run(stop))
    await _until(handler, lambda: handler.done)
    stop.set()
    await working
    assert handler.generations == 5


async def test_settings_of_another_space_end_the_worker_as_they_are() -> None:
    def embeds(jobs: Sequence[Job]) -> None:
        msg = "another space"
        raise ConfigurationError(msg)

    working = _worker(Scripted(5, embeds)).run(asyncio.Event())
    with pytest.raises(ConfigurationError, match="another space"):
        await working


async def test_claim_that_comes_with_the_end_is_given_back() -> None:
    stop = asyncio.Event()
    handler = Scripted(4, lambda _: None)
    original = handler.claim

    async def claim(*, most: int | None = None) -> list[Job]:
        stop.set()
        return await original(most=most)

    handler.claim = claim  # type: ignore[method-assign]
    await _worker(handler, concurrency=1).run(stop)
    assert handler.batches == []
    assert handler.given_back == ["0", "1", "2", "3"]


async def test_hint_during_a_sweep_causes_another() -> None:
    handler = Scripted(0, lambda _: None)
    stop = asyncio.Event()
    worker = _worker(handler)
    original = handler.sweep

    async def sweep(*, full: bool, go_on: Callable[[Swept], bool]) -> None:
        await original(full=full, go_on=go_on)
        if handler.sweeps == 1:
            worker.hint()
        if handler.sweeps == 2:
            stop.set()

    handler.sweep = sweep  # type: ignore[method-assign]
    async with asyncio.timeout(10):
        await worker.run(stop)
    assert handler.sweeps == 2


async def test_sweep_that_had_to_wait_for_others_is_soon_followed_by_the_next() -> None:
    """Not after ten times as long, as one would be that had so much to do."""
    handler = Scripted(0, lambda _: None)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    ended: list[float] = []

    async def sweep(*, full: bool, go_on: Callable[[Swept], bool]) -> None:
        assert full  # nobody hints
        if not ended:
            await asyncio.sleep(2)  # behind a lock
        go_on(_swept(1, 1, 1))
        ended.append(loop.time())
        if len(ended) == 2:
            stop.set()

    handler.sweep = sweep  # type: ignore[method-assign]
    async with asyncio.timeout(30):
        await Worker(handler, concurrency=1, sweep_s=0.05).run(stop)  # type: ignore[arg-type]
    assert ended[1] - ended[0] < 10


def _swept(highest: int, running_from: int, begun_until: int) -> Swept:
    return Swept(
        seen=1,
        linked=0,
        jobs=1,
        highest=highest,
        running_from=running_from,
        begun_until=begun_until,
    )


def test_horizon_moves_at_once_where_nothing_is_under_way() -> None:
    horizon = Horizon()
    last = _swept(100, 50, 50)
    horizon.swept(last, last)
    assert horizon.start == 100


def test_horizon_waits_for_the_transactions_of_that_time() -> None:
    horizon = Horizon()
    horizon.swept(_swept(100, 40, 50), _swept(100, 40, 50))
    assert horizon.start == 0
    horizon.swept(_swept(150, 49, 60), _swept(150, 49, 60))
    assert horizon.start == 0
    horizon.swept(_swept(170, 50, 70), _swept(170, 50, 70))
    assert horizon.start == 100
    horizon.swept(_swept(170, 70, 70), _swept(170, 70, 70))
    assert horizon.start == 170


def test_horizon_trusts_no_transaction_that_began_during_the_sweep() -> None:
    """Its first chunk saw nothing under way, its last one did."""
    horizon = Horizon()
    horizon.swept(_swept(100, 50, 50), _swept(200, 50, 53))
    assert horizon.start == 0
    horizon.swept(_swept(200, 53, 53), _swept(200, 53, 53))
    assert horizon.start == 200


def test_horizon_never_moves_back_and_keeps_few_marks() -> None:
    horizon = Horizon()
    horizon.swept(_swept(100, 10, 10), _swept(100, 10, 10))
    horizon.swept(_swept(0, 11, 11), _swept(0, 11, 11))
    assert horizon.start == 100
    for number in range(1000):  # a transaction that lasts for hours
        mark = _swept(200 + number, 20, 100 + number)
        horizon.swept(mark, mark)
    assert horizon.start == 100
    assert len(horizon._marks) <= 17
    horizon.swept(_swept(1199, 1099, 1099), _swept(1199, 1099, 1099))
    assert horizon.start == 1199


async def test_evidence_remembers_whose_calls_broke_down_until_they_pass() -> None:
    evidence = Evidence()
    a, b, c = _job("a"), _job("b"), _job("c")
    assert evidence.broken_at([a, b]) is None
    evidence.broke_down([a, b])
    broken_at = evidence.broken_at([b, c])
    assert broken_at is not None
    assert evidence.passed_at < broken_at
    evidence.passed([c])
    assert evidence.passed_at >= broken_at
    assert evidence.broken_at([c]) is None
    evidence.passed([a, b])
    assert evidence.broken_at([a, b]) is None


async def test_evidence_is_bounded() -> None:
    evidence = Evidence()
    evidence.broke_down([_job(str(number)) for number in range(20_000)])
    assert evidence.broken_at([_job("19999")]) is not None
    assert evidence.broken_at([_job("0")]) is None
