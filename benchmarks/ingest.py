"""`ingest`: one recorder process against the least that could store the same rows.

3,000 messages of 20 decisions wait in the recorder's own queue (quorum, with its arguments); for
the ceiling (`ingest_ceiling`, which says what it leaves out) as many of the same length, with the
rows they come to. Then one process begins to consume, and the clock runs from the first message
taken to the last one committed; that all are acknowledged and all rows there is checked after.
Recorder and ceiling take turns, on emptied tables each time and in changing order; the ratios are
taken within a round and their median is reported, since a machine's speed may change from minute
to minute. A ratio of 1 would mean that checking, grading, hashing and repeating safely cost
nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import aio_pika
import asyncpg
from aio_pika.abc import AbstractChannel

from benchmarks.ingest_load import DECISIONS, WORLD, Load, make_load
from benchmarks.processes import CpuClock
from benchmarks.publishing import publish
from benchmarks.report import Report, at_least, machine
from benchmarks.stack import Stack, running_stack
from tickmind.connecting import declare
from tickmind.database import Database
from tickmind.local.processes import Child
from tickmind.store.spaces import Space, ensure_space
from tickmind.topology import RECORDER_QUEUE
from tickmind_recorder.settings import RecorderSettings

__all__ = ["Options", "run"]

#: What the recorder keeps under way at once; the ceiling gets as many.
_IN_FLIGHT = 2
#: How often the queue and the tables are looked at; each look costs the servers some 0.2 ms.
_LOOK_S = 0.005
#: A round takes seconds; after this long something is broken.
_ROUND_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How much is measured. `batch_decisions`: of recorder and ceiling; default the recorder's."""

    messages: int = 3000
    rounds: int = 5
    batch_decisions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """One round of one consumer: wall time, and processor time of each that took part."""

    wall_s: float
    consumer_s: float
    postgres_s: float
    rabbitmq_s: float


async def run(report: Callable[[str], None], options: Options | None = None) -> Report:
    """Measure; `report` is told in words how far it is. Raises StartFailed, RuntimeError."""
    options = options or Options()
    async with running_stack() as stack, _bench(stack, options) as bench:
        subjects = {
            "ceiling": _Subject(start=bench.ceiling, messages=bench.load.rows),
            "recorder": _Subject(start=bench.recorder, messages=bench.load.ticks),
        }
        costs: dict[str, list[_Cost]] = {name: [] for name in subjects}
        for number in range(options.rounds):
            for name in sorted(subjects, reverse=number % 2 == 1):
                costs[name].append(await bench.measure(subjects[name]))
            told = ", ".join(f"{name} {of[-1].wall_s:.2f} s" for name, of in costs.items())
            report(f"round {number + 1} of {options.rounds}: {told}")
    return _figures(bench.load, costs["ceiling"], costs["recorder"])


def _figures(load: Load, ceilings: list[_Cost], recorders: list[_Cost]) -> Report:
    found = Report(name="ingest", machine=machine())
    pairs = list(zip(ceilings, recorders, strict=True))
    thousands = load.decisions / 1000
    found.add_spread(
        "ingest_ratio",
        [ceiling.wall_s / recorder.wall_s for ceiling, recorder in pairs],
        "rate / ceiling's rate",
        at_least(0.7),
    )
    found.add_spread(
        "ingest_cpu_ratio",
        [_total_s(ceiling) / _total_s(recorder) for ceiling, recorder in pairs],
        "ceiling's CPU / CPU, servers included",
    )
    found.add_spread("decisions_per_s", [load.decisions / cost.wall_s for cost in recorders], "1/s")
    found.add_spread(
        "ceiling_decisions_per_s", [load.decisions / cost.wall_s for cost in ceilings], "1/s"
    )
    for who, costs in (("", recorders), ("ceiling_", ceilings)):
        for part in ("consumer", "postgres", "rabbitmq"):
            name = "cpu" if part == "consumer" else f"{part}_cpu"
            found.add_spread(
                f"{who}{name}_ms_per_1000_decisions",
                [getattr(cost, f"{part}_s") * 1000 / thousands for cost in costs],
                "ms",
            )
    found.add("memories_per_decision", load.memories / load.decisions, "")
    return found


def _total_s(cost: _Cost) -> float:
    return cost.consumer_s + cost.postgres_s + cost.rabbitmq_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """A consumer, and what waits for it in the queue."""

    start: Callable[[], AbstractAsyncContextManager[Child]]
    messages: Sequence[bytes]


class _Bench:
    """The queue, the tables and the two consumers."""

    def __init__(
        self,
        stack: Stack,
        load: Load,
        *,
        batch_decisions: int,
        space_id: int,
        database: asyncpg.Connection[asyncpg.Record],
        channel: AbstractChannel,
    ) -> None:
        if len(load.ticks) * DECISIONS % batch_decisions:
            msg = "the ceiling takes full batches only: choose messages accordingly"
            raise ValueError(msg)
        self._stack = stack
        self.load = load
        self._batch_decisions = batch_decisions
        self._space_id = space_id
        self._database = database
        self._channel = channel
        self._prefetch = max(
            RecorderSettings().recorder_prefetch, 2 * _IN_FLIGHT * batch_decisions // DECISIONS
        )

    async def measure(self, subject: _Subject) -> _Cost:
        """One round: empty tables, a full queue, then the consumer. Raises RuntimeError where it
        did not do all its work."""
        await self._database.execute("TRUNCATE memory, tick_receipt, reject CASCADE")
        await publish(self._channel, WORLD, subject.messages)
        await self._database.execute("CHECKPOINT")
        async with subject.start() as consumer, asyncio.timeout(_ROUND_TIMEOUT_S):
            while await self._waiting() == len(self.load.ticks):
                _check_runs(consumer)
                await asyncio.sleep(_LOOK_S)
            begun = time.perf_counter()
            clocks = [
                CpuClock(pid)
                for pid in (consumer.pid, self._stack.postgres.pid, self._stack.rabbitmq.pid)
            ]
            while await self._received() < len(self.load.ticks):
                _check_runs(consumer)
                await asyncio.sleep(_LOOK_S)
            wall_s = time.perf_counter() - begun
            consumer_s, postgres_s, rabbitmq_s = (clock.seconds() for clock in clocks)
        stored = await self._database.fetchrow(
            "SELECT (SELECT count(*) FROM memory), (SELECT count(*) FROM pending_embedding),"
            " (SELECT sum(decisions) FROM tick_receipt)"
        )
        if tuple(stored) != (self.load.memories, self.load.memories, self.load.decisions):
            msg = f"memories, pending rows and decisions stored were {tuple(stored)}"
            raise RuntimeError(msg)
        if unacknowledged := await self._waiting():
            msg = f"{unacknowledged} messages came back: they were never acknowledged"
            raise RuntimeError(msg)
        return _Cost(
            wall_s=wall_s, consumer_s=consumer_s, postgres_s=postgres_s, rabbitmq_s=rabbitmq_s
        )

    async def _waiting(self) -> int:
        """Messages ready in the queue."""
        queue = await self._channel.declare_queue(RECORDER_QUEUE.name, passive=True)
        return queue.declaration_result.message_count or 0

    async def _received(self) -> int:
        """Messages stored: each is a tick of its own."""
        return int(await self._database.fetchval("SELECT count(*) FROM tick_receipt"))

    @asynccontextmanager
    async def recorder(self) -> AsyncIterator[Child]:
        settings = {
            **self._stack.service_settings,
            "TICKMIND_RECORDER_BATCH_DECISIONS": str(self._batch_decisions),
            "TICKMIND_RECORDER_PREFETCH": str(self._prefetch),
        }
        async with self._stack.process("tickmind_recorder", settings=settings) as child:
            yield child

    @asynccontextmanager
    async def ceiling(self) -> AsyncIterator[Child]:
        options = {
            "--amqp": self._stack.rabbitmq.url,
            "--database": self._stack.postgres.url,
            "--queue": RECORDER_QUEUE.name,
            "--batch": self._batch_decisions // DECISIONS,
            "--in-flight": _IN_FLIGHT,
            "--prefetch": self._prefetch,
            "--world-id": self.load.world_id,
            "--space-id": self._space_id,
        }
        arguments = [str(word) for option in options.items() for word in option]
        async with self._stack.process(
            "benchmarks.ingest_ceiling", arguments, settings={}
        ) as child:
            yield child


def _check_runs(consumer: Child) -> None:
    if not consumer.running:
        raise consumer.failure("ended before its work was done")


@asynccontextmanager
async def _bench(stack: Stack, options: Options) -> AsyncIterator[_Bench]:
    database = Database(stack.database_settings, application="bench", vectors=False)
    try:
        async with database.writing() as session:
            generation = await ensure_space(session, Space(model="bench", dimensions=1536))
        load = await make_load(database, messages=options.messages)
    finally:
        await database.dispose()
    connection = await asyncpg.connect(stack.postgres.url)
    try:
        async with await aio_pika.connect(stack.rabbitmq.url) as broker:
            channel = await broker.channel()
            await declare(channel, RECORDER_QUEUE)
            default = RecorderSettings().recorder_batch_decisions
            yield _Bench(
                stack,
                load,
                batch_decisions=options.batch_decisions or default,
                space_id=generation.space_id,
                database=connection,
                channel=channel,
            )
    finally:
        await connection.close()
