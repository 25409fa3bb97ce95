"""When an embedding API is no longer waited for, and when it is again."""

from __future__ import annotations

import asyncio

import pytest

from tests.running import eventually
from tickmind.errors import EmbeddingUnavailable
from tickmind_retriever import breaker as breaker_module
from tickmind_retriever.breaker import Breaker


class Probed:
    """Fails, hangs or passes as the test says; tells when it is called."""

    def __init__(self) -> None:
        self.fails = True
        self.hangs = False
        self.breaks = False
        self.under_way = 0
        self.most = 0
        self.calls: asyncio.Queue[int] = asyncio.Queue()

    async def __call__(self) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.calls.put_nowait(self.under_way)
        try:
            if self.hangs:
                await asyncio.Event().wait()
        finally:
            self.under_way -= 1
        if self.breaks:
            raise LookupError
        if self.fails:
            msg = "still down"
            raise EmbeddingUnavailable(msg)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker_module, "_PROBE_FIRST_S", 0.001)
    monkeypatch.setattr(breaker_module, "_PROBE_MOST_S", 0.002)
    monkeypatch.setattr(breaker_module, "_PROBE_S", 0.01)


async def _closed(breaker: Breaker) -> None:
    async def is_open() -> bool:
        return breaker.open

    await eventually(is_open, lambda found: not found, what="the breaker")


async def test_opens_after_three_failures_in_a_row_and_no_fewer() -> None:
    breaker = Breaker(Probed())
    for _ in range(10):
        breaker.failed("down")
        breaker.failed("down")
        assert not breaker.open
        breaker.passed()
    for _ in range(3):
        breaker.failed("the server is down (503)")
    assert breaker.open
    assert "503" in str(breaker.refusal())
    await breaker.close()


async def test_is_probed_one_at_a_time_until_it_passes() -> None:
    probed = Probed()
    breaker = Breaker(probed)
    for _ in range(5):
        breaker.failed("down")
    for _ in range(4):
        await probed.calls.get()
    assert breaker.open
    assert "still down" in str(breaker.refusal())
    assert probed.most == 1
    probed.fails = False
    await _closed(breaker)
    breaker.failed("down")
    assert not breaker.open


async def test_probe_that_hangs_is_followed_by_another() -> None:
    probed = Probed()
    probed.hangs = True
    breaker = Breaker(probed)
    for _ in range(3):
        breaker.failed("down")
    for _ in range(3):
        await probed.calls.get()
    assert probed.most == 1
    probed.hangs = probed.fails = False
    await _closed(breaker)


async def test_call_that_passes_closes_it_too_and_ends_the_probe() -> None:
    probed = Probed()
    probed.hangs = True
    breaker = Breaker(probed)
    for _ in range(3):
        breaker.failed("down")
    await probed.calls.get()
    breaker.passed()
    assert not breaker.open

    async def under_way() -> int:
        return probed.under_way

    await eventually(under_way, lambda count: count == 0, what="the probe")
    await breaker.close()


async def test_probe_that_breaks_does_not_keep_it_open_for_ever() -> None:
    """Whatever nobody thought of: calls go on, and open it anew where they fail."""
    probed = Probed()
    probed.breaks = True
    breaker = Breaker(probed)
    for _ in range(3):
        breaker.failed("down")
    await probed.calls.get()
    await _closed(breaker)
    probed.breaks = False
    breaker.failed("down")
    assert breaker.open
    await probed.calls.get()
    probed.fails = False
    await _closed(breaker)
    breaker.failed("down")
    assert not breaker.open
