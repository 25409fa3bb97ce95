"""How late answers are at their deadline: at half of the measured saturation, all of them cut off.

Ranking is kept from ending (its table is locked), so each request runs into its deadline, its
statement is cancelled in PostgreSQL, and its connection goes back: the most a deadline can cost.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Coroutine
from typing import Any

import asyncpg

from benchmarks.recall_load import LAST_TICK, WORLD, observation
from benchmarks.recall_parts import Parts
from benchmarks.report import Report, at_most
from benchmarks.stack import Stack
from tickmind import MemoryClient

__all__ = ["measure_deadlines"]

_DEADLINE_MS = 100
#: Long enough that a late answer is measured, not given up on.
_TIMEOUT_S = 5.0


async def measure_deadlines(
    stack: Stack, parts: Parts, found: Report, *, saturation: float, seconds: float
) -> None:
    """Add `overshoot_p99_ms`: client's clock, from sending to the answer, less the deadline.

    `saturation`: recalls a second that many callers without a pause get. Raises RuntimeError where
    a request was not cut off.
    """
    source = random.Random(8)
    lock = await asyncpg.connect(stack.postgres.url)
    try:
        async with MemoryClient(stack.rabbitmq.url) as client:

            async def one() -> float:
                begun = time.perf_counter()
                answer = await client.recall(
                    WORLD,
                    parts.agent(),
                    observation(source),
                    tick=LAST_TICK,
                    timeout_s=_TIMEOUT_S,
                    deadline_ms=_DEADLINE_MS,
                )
                if answer.reason != "deadline":
                    msg = f"a locked table was answered {answer.status} ({answer.reason})"
                    raise RuntimeError(msg)
                return (time.perf_counter() - begun) * 1000 - _DEADLINE_MS

            transaction = lock.transaction()
            await transaction.start()
            await lock.execute("LOCK TABLE recall_index IN ACCESS EXCLUSIVE MODE")
            late = await _paced(one, rate=saturation / 2, seconds=seconds)
            await transaction.rollback()
        await parts.recall()  # nothing is left behind
    finally:
        await lock.close()
    cuts = statistics.quantiles(late, n=100)
    found.add("overshoot_p99_ms", cuts[98], "ms after the deadline", at_most(20))
    found.add("overshoot_p50_ms", cuts[49], "ms after the deadline")
    found.add("overshoot_rate_per_s", saturation / 2, "1/s, all cut off")


async def _paced(
    work: Callable[[], Coroutine[Any, Any, float]], *, rate: float, seconds: float
) -> list[float]:
    """What each gave; begun at even distances, whether those before have ended or not."""
    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
            tasks.append(group.create_task(work()))
    return [task.result() for task in tasks]
