"""The clock of the tests' deadlines."""

from __future__ import annotations

import asyncio
import gc
import time
from weakref import ref

from tests.clock import Clock


async def test_a_wait_of_ones_own_is_counted() -> None:
    """Each of its beats, however late they are: so long waits come to any sum."""
    clock = Clock()
    while clock.s < 0.2:  # noqa: ASYNC110  # what is counted is the waiting itself
        await asyncio.sleep(0.05)
    assert clock.wall_s >= 0.2


async def test_computing_is_counted() -> None:
    clock = Clock()
    until = time.thread_time() + 0.2
    while time.thread_time() < until:
        pass
    assert clock.s >= 0.2


async def test_what_others_took_is_not() -> None:
    clock = Clock()
    before = clock.s
    time.sleep(0.5)  # noqa: ASYNC251  # as if the machine were another's for so long
    assert clock.s - before < 0.25
    assert clock.wall_s >= 0.5


async def test_a_clock_that_nobody_has_beats_no_more() -> None:
    clock = Clock()
    gone = ref(clock)
    del clock
    gc.collect()
    assert gone() is None
