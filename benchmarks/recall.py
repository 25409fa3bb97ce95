"""`recall`: request and reply over the queue against the bare parts it is made of.

A world of 100 agents of 1,000 memories each (1536 dimensions; the embedding provider is the hash
one, so a query's vector costs no waiting), observations that never repeat. Beside the retriever, a
process with its default settings asked through `MemoryClient`, run in the same rounds:

- bare SQL: the retriever's own ranking statement, prepared, executed by asyncpg on as many
  connections as the retriever has, one agent a statement (`bare_sql`);
- bare echo RPC: a server on aio-pika that answers at once with as many bytes (`rpc`).

`latency_ratio_c1`: one caller, taking turns between the three with every request; p50 over the
sum of the two p50. `throughput_ratio_c64`: 64 callers without a pause for some seconds; rate over
the smaller of the two rates. `batch_ratio_100`: one request for 100 agents over 100 bare
statements on as many connections as the retriever ranks with at once. Of all the median of the
rounds' ratios. Every answer is checked to be one. `overshoot_p99_ms`: see `recall_deadlines`.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.processes import CpuClock
from benchmarks.recall_deadlines import measure_deadlines
from benchmarks.recall_load import World, fill
from benchmarks.recall_memory import measure_memory
from benchmarks.recall_parts import Parts, running_parts
from benchmarks.report import Report, at_least, at_most, machine
from benchmarks.stack import Stack, running_stack
from tickmind.database import Database

__all__ = ["Options", "run"]

_Say = Callable[[str], None]
_Work = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How much is measured. `growth`: further sizes of an agent, in memories."""

    agents: int = 100
    memories: int = 1000
    growth: tuple[int, ...] = (250, 4000)
    rounds: int = 7
    requests_a_round: int = 60
    seconds_a_round: float = 2.0
    seconds_of_deadlines: float = 10.0
    callers: int = 64
    batch: int = 100
    batches_a_round: int = 2


#: Agents of each further size.
_GROWTH_AGENTS = 5


async def run(report: _Say, options: Options | None = None) -> Report:
    """Measure; `report` is told in words how far it is. Raises StartFailed, RuntimeError."""
    options = options or Options()
    found = Report(name="recall", machine=machine())
    async with running_stack() as stack:
        database = Database(stack.database_settings, application="bench")
        try:
            sizes = {
                options.memories: options.agents,
                **dict.fromkeys(options.growth, _GROWTH_AGENTS),
            }
            world = await fill(database, stack.postgres.url, sizes)
            report("filled")
            async with running_parts(stack, database, world) as parts:
                for work in (parts.sql, parts.echo, parts.recall):
                    await _rate(work, callers=options.callers, seconds=1.0)
                await _latency(parts, found, options)
                report("latency measured")
                await _throughput(stack, parts, found, options)
                report("throughput measured")
                await measure_deadlines(
                    stack,
                    parts,
                    found,
                    saturation=found.figures["recall_per_s_c64"].value,
                    seconds=options.seconds_of_deadlines,
                )
                report("deadlines measured")
                await _batches(parts, found, options)
                report("batches measured")
                await _growth(parts, world, found, options)
        finally:
            await database.dispose()
        await measure_memory(stack, found)
    return found


async def _latency(parts: Parts, found: Report, options: Options) -> None:
    """One caller; which of the three comes next is drawn anew for each turn."""
    source = random.Random(6)
    works: dict[str, _Work] = {"sql": parts.sql, "echo": parts.echo, "recall": parts.recall}
    medians: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(options.rounds):
        took: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(options.requests_a_round):
            for name in source.sample(sorted(works), len(works)):
                took[name].append(await _timed(works[name]))
        for name, seconds in took.items():
            medians[name].append(statistics.median(seconds))
    found.add_spread(
        "latency_ratio_c1",
        [
            recall / (sql + echo)
            for sql, echo, recall in zip(*(medians[name] for name in works), strict=True)
        ],
        "p50 / (SQL p50 + echo p50)",
        at_most(1.5),
    )
    for name, seconds in medians.items():
        found.add_spread(f"{name}_p50_ms", [s * 1000 for s in seconds], "ms")


async def _throughput(stack: Stack, parts: Parts, found: Report, options: Options) -> None:
    """Many callers; the three one after the other in each round, in turning order."""
    works: dict[str, _Work] = {"sql": parts.sql, "echo": parts.echo, "recall": parts.recall}
    pids = {
        "retriever": parts.retriever_pid,
        "postgres": stack.postgres.pid,
        "rabbitmq": stack.rabbitmq.pid,
    }
    rates: dict[str, list[float]] = {name: [] for name in works}
    costs: dict[str, list[dict[str, float]]] = {name: [] for name in works}
    for number in range(options.rounds):
        for name in sorted(works, reverse=number % 2 == 1):
            clocks = {who: CpuClock(pid) for who, pid in pids.items()}
            own = time.process_time()
            done, seconds = await _rate(
                works[name], callers=options.callers, seconds=options.seconds_a_round
            )
            rates[name].append(done / seconds)
            cost = {who: clock.seconds() for who, clock in clocks.items()}
            cost["client"] = time.process_time() - own
            costs[name].append({who: used / done * 1000 for who, used in cost.items()})
    found.add_spread(
        "throughput_ratio_c64",
        [
            recall / min(sql, echo)
            for sql, echo, recall in zip(*(rates[name] for name in works), strict=True)
        ],
        "rate / min(SQL's, echo's)",
        at_least(0.5),
    )
    found.add_spread(
        "throughput_cpu_ratio_c64",
        [
            sum(sql.values()) / sum(recall.values())
            for sql, recall in zip(costs["sql"], costs["recall"], strict=True)
        ],
        "SQL's CPU / CPU, servers and client included",
    )
    for name, values in rates.items():
        found.add_spread(f"{name}_per_s_c64", values, "1/s")
    for who in ("retriever", "postgres", "rabbitmq", "client"):
        of_recalls = [cost[who] for cost in costs["recall"]]
        found.add_spread(f"{who}_cpu_ms_per_recall", of_recalls, "ms")
    of_sql = [cost["postgres"] for cost in costs["sql"]]
    found.add_spread("postgres_cpu_ms_per_bare_sql", of_sql, "ms")


async def _batches(parts: Parts, found: Report, options: Options) -> None:
    """One request for many agents against as many bare statements, in turn."""
    recalls: list[float] = []
    statements: list[float] = []
    for number in range(options.rounds):
        works: list[tuple[list[float], _Work]] = [
            (recalls, partial(parts.recall_batch, options.batch)),
            (statements, partial(parts.sql_batch, options.batch)),
        ]
        for took, work in works if number % 2 == 0 else reversed(works):
            took.append(min([await _timed(work) for _ in range(options.batches_a_round)]))
    found.add_spread(
        "batch_ratio_100",
        [recall / sql for recall, sql in zip(recalls, statements, strict=True)],
        "time / bare statements' time",
        at_most(1.5),
    )
    found.add_spread("batch_ms", [s * 1000 for s in recalls], "ms")
    found.add_spread("batch_sql_ms", [s * 1000 for s in statements], "ms")


async def _growth(parts: Parts, world: World, found: Report, options: Options) -> None:
    """What an agent's number of memories does to one caller's p50."""
    took: dict[int, list[float]] = {size: [] for size in sorted(world.agents)}
    for turn in range(options.requests_a_round):
        for size, seconds in took.items():
            agents = world.agents[size]
            agent = agents[turn % len(agents)]
            seconds.append(await _timed(partial(parts.recall, agent)))
    for size, seconds in took.items():
        found.add(f"recall_p50_ms_{size}_memories", statistics.median(seconds) * 1000, "ms")


async def _timed(work: _Work) -> float:
    begun = time.perf_counter()
    await work()
    return time.perf_counter() - begun


async def _rate(work: _Work, *, callers: int, seconds: float) -> tuple[int, float]:
    """How often it is done by so many callers that never pause, and in how many seconds."""
    begun = time.perf_counter()
    done = 0

    async def call() -> None:
        nonlocal done
        while time.perf_counter() - begun < seconds:
            await work()
            done += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(callers):
            tasks.create_task(call())
    return done, time.perf_counter() - begun
