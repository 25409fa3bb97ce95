"""How much memory each service keeps resident, at rest and under load."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import asyncpg

from benchmarks.ingest_load import WORLD, decisions
from benchmarks.processes import resident_mb, watched_memory
from benchmarks.recall_load import LAST_TICK, observation
from benchmarks.recall_load import WORLD as RECALL_WORLD
from benchmarks.recall_parts import HASH
from benchmarks.report import Report, at_most
from benchmarks.stack import Stack
from tickmind import MemoryClient

__all__ = ["measure_memory"]

#: Long enough for a service to have done what it does when nothing happens: the embedder sweeps
#: every 2 s by default.
_REST_S = 5.0
#: Ticks of 20 decisions, 30 memories each: published as fast as they are confirmed.
_TICKS = 500
#: Recalls under way at once meanwhile, each of so many agents.
_CALLERS, _AGENTS_A_RECALL = 32, 10
_LOOK_S = 0.2
_TIMEOUT_S = 30.0


async def measure_memory(stack: Stack, found: Report) -> None:
    """Start the three services, wait, then publish and recall until all is embedded."""
    async with AsyncExitStack() as services:
        pids = {
            name: await services.enter_async_context(stack.service(name, HASH))
            for name in ("recorder", "embedder", "retriever")
        }
        await asyncio.sleep(_REST_S)
        for name, pid in pids.items():
            found.add(f"{name}_rest_mb", resident_mb(pid), "MB", at_most(150))
        async with watched_memory(*pids.values()) as peak:
            await _load(stack)
        for name, pid in pids.items():
            found.add(f"{name}_load_mb", peak.mb[pid], "MB")


async def _load(stack: Stack) -> None:
    database = await asyncpg.connect(stack.postgres.url)
    source = random.Random(7)
    try:
        async with MemoryClient(stack.rabbitmq.url) as client:
            ended = asyncio.Event()

            async def recall() -> None:
                while not ended.is_set():
                    asked: list[tuple[str | int, str]] = [
                        (f"agent-1000-{source.randrange(100):03}", observation(source))
                        for _ in range(_AGENTS_A_RECALL)
                    ]
                    await client.recall_many(
                        RECALL_WORLD, asked, tick=LAST_TICK, timeout_s=_TIMEOUT_S
                    )

            async with asyncio.TaskGroup() as tasks:
                for _ in range(_CALLERS):
                    tasks.create_task(recall())
                for tick in range(_TICKS):
                    receipt = await client.publish_tick(
                        WORLD, LAST_TICK + tick, decisions(source), timeout_s=_TIMEOUT_S
                    )
                    if not receipt.confirmed:
                        msg = f"tick {tick} was not confirmed: {receipt.reason}"
                        raise RuntimeError(msg)
                await _finished(database)
                ended.set()
    finally:
        await database.close()


async def _finished(database: asyncpg.Connection[asyncpg.Record]) -> None:
    """Wait until every tick is recorded and every memory indexed."""
    while True:
        recorded, pending = await database.fetchrow(
            "SELECT (SELECT max(tick) FROM tick_receipt), EXISTS (SELECT FROM pending_embedding)"
        )
        if recorded >= LAST_TICK + _TICKS - 1 and not pending:
            return
        await asyncio.sleep(_LOOK_S)
