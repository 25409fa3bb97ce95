"""What the fleet's budget costs the database: reservations a second, and how long each takes.

    python -m benchmarks.reserve [--replicas 8] [--seconds 10]

Each replica is a process of its own that reserves a call of 100 texts and settles it, at once and
again and again, under limits that let it. PostgreSQL keeps its data safe, as in production. The
windows hold what was granted before, so the last seconds are the dearest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from pydantic import SecretStr

from tickmind.budget import Budget
from tickmind.database import Database
from tickmind.limits import parse_limits
from tickmind.local.postgres import running_postgres
from tickmind.settings import DatabaseSettings
from tickmind_migrations import upgrade

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


async def _measured(url: str, replicas: int, seconds: float) -> dict[str, float]:
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "benchmarks.reserve",
            "--replica",
            "--seconds",
            str(seconds),
            env=os.environ | {"BENCH_DATABASE_URL": url},
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(replicas)
    ]
    reserves: list[float] = []
    settles: list[float] = []
    for output, _ in await asyncio.gather(*(process.communicate() for process in processes)):
        told = json.loads(output)
        reserves += told["reserve"]
        settles += told["settle"]
    return {
        "replicas": replicas,
        "reservations_per_s": round(len(reserves) / seconds, 1),
        "reserve_ms_p50": round(float(np.percentile(reserves, 50)), 2),
        "reserve_ms_p99": round(float(np.percentile(reserves, 99)), 2),
        "settle_ms_p50": round(float(np.percentile(settles, 50)), 2),
        "settle_ms_p99": round(float(np.percentile(settles, 99)), 2),
    }


async def _main(replicas: int, seconds: float) -> None:
    # Where PostgreSQL's system user can reach it.
    directory = Path(tempfile.mkdtemp(prefix="tickmind-bench-", dir="/var/tmp"))
    directory.chmod(0o755)
    try:
        async with running_postgres(directory / "postgres", durable=True) as server:
            for count in sorted({1, replicas}):
                name = f"reserve_{count}"
                await server.create_database(name)
                url = server.database_url(name)
                await upgrade(DatabaseSettings(database_url=SecretStr(url)), lambda _: None)
                print(json.dumps(await _measured(url, count, seconds)))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


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
