"""What the fleet's budget costs the database: reservations a second, and how long each takes.

A part of `embedder`; `python -m benchmarks.reserve [--replicas 8] [--seconds 10]` runs it alone.

Each replica is a process of its own that reserves a call of 100 texts and settles it, at once and
again and again, under limits that let it. PostgreSQL keeps its data safe, as in production. The
windows hold what was granted before, so the last seconds are the dearest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from pydantic import SecretStr

from benchmarks.embedder_load import scratch_database
from benchmarks.stack import Stack, running_stack
from tickmind.budget import Budget
from tickmind.database import Database
from tickmind.limits import parse_limits
from tickmind.local.postgres import DATABASE
from tickmind.settings import DatabaseSettings

__all__ = ["measure_reservations"]

#: Never reached; three windows to sum over, as a provider with a sub-window has them.
_LIMITS = "100M texts/min, 1000M tokens/min, 100M texts/10s"
_TEXTS = 100
_TOKENS = 30


async def _replica(url: str, seconds: float) -> None:
    """Reserve and settle until the time is over; prints both latencies in milliseconds."""
    database = Database(
        DatabaseSettings(database_url=SecretStr(url), database_pool_size=1),
        application="bench-reserve",
    )
    budget = Budget(database, "bench", parse_limits(_LIMITS))
    tokens = [_TOKENS] * _TEXTS
    reserves: list[float] = []
    settles: list[float] = []
    until = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < until:
        reserved = await budget.reserve(tokens, elastic=True)
        granted = time.perf_counter()
        await budget.settle(reserved, tokens=_TOKENS * _TEXTS)
        reserves.append((granted - begun) * 1000)
        settles.append((time.perf_counter() - granted) * 1000)
    await database.dispose()
    print(json.dumps({"reserve": reserves, "settle": settles}))


async def measure_reservations(
    stack: Stack, replicas: int, seconds: float
) -> list[tuple[str, float, str]]:
    """Figures of so many processes that reserve and settle for so long: name, value, unit."""
    async with scratch_database(stack, f"reserve_{replicas}", template=DATABASE) as url:
        processes = [
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "benchmarks.reserve",
                "--replica",
                "--seconds",
                str(seconds),
                env=os.environ | {"BENCH_DATABASE_URL": url},
                cwd=Path(__file__).parents[1],
                stdout=asyncio.subprocess.PIPE,
            )
            for _ in range(replicas)
        ]
        outputs = await asyncio.gather(*(process.communicate() for process in processes))
    told = [json.loads(output) for output, _ in outputs]
    reserves = [ms for one in told for ms in one["reserve"]]
    settles = [ms for one in told for ms in one["settle"]]
    return [
        ("reservations_per_s", len(reserves) / seconds, "1/s"),
        ("reserve_ms_p50", float(np.percentile(reserves, 50)), "ms"),
        ("reserve_ms_p99", float(np.percentile(reserves, 99)), "ms"),
        ("settle_ms_p50", float(np.percentile(settles, 50)), "ms"),
        ("settle_ms_p99", float(np.percentile(settles, 99)), "ms"),
    ]


async def _main(replicas: int, seconds: float) -> None:
    async with running_stack() as stack:
        for count in sorted({1, replicas}):
            figures = await measure_reservations(stack, count, seconds)
            print(json.dumps({"replicas": count} | {name: value for name, value, _ in figures}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--replica", action="store_true", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.replica:
        asyncio.run(_replica(os.environ["BENCH_DATABASE_URL"], told.seconds))
    else:
        asyncio.run(_main(told.replicas, told.seconds))
