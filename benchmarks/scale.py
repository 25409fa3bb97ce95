"""`scale`: does an agent's recall stay as fast while the database grows around it?

One database filled anew for each total (`bulk`: every text its own, so as many vectors as
memories, the most there can be; random vectors, 256 wide by default, so that two million fit on
the disk and in the time). Agents are skewed: of the memories, three tenths belong to agents of
100,000, two to agents of 10,000, two to agents of 1,000, the rest to agents of 100; all live side
by side, so one agent's rows lie all over the tables. PostgreSQL has 256 MB of its own cache; the
rest of the database is in the system's, where there is room.

At each total, with the retriever, the recorder and the embedder as processes with their defaults
(vectors by hashing, so that no provider is waited for):

- `scored_<agent>_<total>`: memories that a recall of such an agent scores exactly, by which plan:
  the space is signed, as any of so many texts is after a while;
- `latency_<agent>_<total>`: p50 of one caller's recalls of agents of that size, over the queue,
  and `cpu_ms_<agent>_<total>`: PostgreSQL's processor time for each;
- `ingest_per_s_<total>`: decisions the recorder stores out of a full queue, and
  `embedded_per_s_<total>`: texts the embedder then embeds, writes and links;
- `disk_bytes_<total>`: of the tables with their indexes, for each memory.

`flat_<agent>`: the latency at the last total over that at the first one that has such agents;
`flat_cpu_<agent>` the same of PostgreSQL's processor time, which other work moves less.
At the end `tickmind delete agent` removes the largest agent, and everything is vacuumed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aio_pika
import asyncpg

from benchmarks.bulk import Bulk, empty, fill
from benchmarks.ingest_load import DECISIONS, decisions
from benchmarks.processes import CpuClock
from benchmarks.publishing import publish
from benchmarks.recall_load import observation
from benchmarks.report import Report, at_most, machine
from benchmarks.stack import Stack, running_stack
from tickmind import MemoryClient
from tickmind.connecting import declare
from tickmind.database import Database
from tickmind.local.processes import Child
from tickmind.store.spaces import Space
from tickmind.topology import RECORDER_QUEUE

__all__ = ["SMALL", "Options", "flatness", "run", "sizes"]

_Say = Callable[[str], None]

WORLD = "bench"
#: The oldest memories are four half-lives old, as in `recall`.
LAST_TICK = 2000
#: Tenths of all memories that agents of a size have together; agents of 100 have the rest.
_TENTHS = {100_000: 3, 10_000: 2, 1_000: 2}
_SMALLEST = 100
#: Different agents of one size that are asked, in turn.
_ASKED = 20
#: Noise of medians on a machine with other work; beyond it growth is growth.
_FLAT = 1.3
_TIMEOUT_S = 30.0
_LOOK_S = 0.02
_PATIENCE_S = 300.0
_TABLES = ("memory", "embedding", "recall_index", "signature")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How much is measured. `recalls`: of agents of 100 and 1,000; a half of it of agents of
    10,000, a fifth of larger ones. `messages`: of 20 decisions, recorded at each total."""

    totals: tuple[int, ...] = (100_000, 500_000, 2_000_000)
    dimensions: int = 256
    recalls: int = 100
    messages: int = 400


#: For `--small`: a minute, and the largest agents are of 10,000.
SMALL = Options(totals=(20_000, 100_000), recalls=30, messages=50)


def sizes(total: int) -> dict[int, int]:
    """How many agents there are of each number of memories, so that it comes to the total.

    Raises ValueError for one that agents of 100 cannot make up.
    """
    if total < _SMALLEST or total % _SMALLEST:
        msg = f"a total is a multiple of {_SMALLEST}, not {total}"
        raise ValueError(msg)
    found = {size: total * tenths // 10 // size for size, tenths in _TENTHS.items()}
    rest = total - sum(size * agents for size, agents in found.items())
    found[_SMALLEST] = rest // _SMALLEST
    return {size: agents for size, agents in found.items() if agents}


def flatness(costs: Mapping[int, float]) -> float | None:
    """The cost at the largest total over that at the smallest; None where there is but one, or
    that took less than could be measured."""
    if len(costs) < 2 or not costs[min(costs)]:
        return None
    return costs[max(costs)] / costs[min(costs)]


@dataclass(slots=True, kw_only=True)
class _Found:
    """Figures so far. `latencies` and `cpu`: seconds by agent's size, then by total."""

    report: Report
    latencies: dict[int, dict[int, float]] = field(default_factory=dict)
    cpu: dict[int, dict[int, float]] = field(default_factory=dict)


async def run(say: _Say, options: Options | None = None) -> Report:
    """Measure; `say` is told in words how far it is. Raises StartFailed, RuntimeError."""
    options = options or Options()
    found = _Found(report=Report(name="scale", machine=machine()))
    async with running_stack() as stack:
        database = Database(stack.database_settings, application="bench")
        connection = await asyncpg.connect(stack.postgres.url)
        try:
            # A day's writing in a minute: with the default, checkpoints would follow each other.
            await connection.execute("ALTER SYSTEM SET max_wal_size = '8GB'")
            await connection.execute("SELECT pg_reload_conf()")
            for total in options.totals:
                await _at(stack, database, connection, total, options, found, say)
            await _delete(stack, connection, max(sizes(max(options.totals))), found, say)
        finally:
            await connection.close()
            await database.dispose()
    for size, latencies in sorted(found.latencies.items()):
        unit = f"at {max(latencies):,} / at {min(latencies):,} memories"
        if (ratio := flatness(latencies)) is not None:
            found.report.add(f"flat_{size}", ratio, f"p50 {unit}", at_most(_FLAT))
        if (ratio := flatness(found.cpu[size])) is not None:
            found.report.add(f"flat_cpu_{size}", ratio, f"PostgreSQL's CPU {unit}")
    return found.report


async def _at(
    stack: Stack,
    database: Database,
    connection: asyncpg.Connection[asyncpg.Record],
    total: int,
    options: Options,
    found: _Found,
    say: _Say,
) -> None:
    """All that is measured at one total."""
    settings = {
        "TICKMIND_EMBEDDING_PROVIDER": "hash",
        "TICKMIND_EMBEDDING_MODEL": "hash",
        "TICKMIND_EMBEDDING_DIMENSIONS": str(options.dimensions),
    }
    await empty(connection)
    begun = time.perf_counter()
    space = Space(model="hash", dimensions=options.dimensions)
    bulk = await fill(
        database, stack.postgres.url, sizes(total), space=space, world=WORLD, last_tick=LAST_TICK
    )
    say(f"{total:,} memories filled in after {time.perf_counter() - begun:.0f} s")
    disk = {name: await _bytes(connection, name) for name in _TABLES}
    found.report.add(f"disk_bytes_{total}", sum(disk.values()) / total, "bytes / memory")
    if total == max(options.totals):
        for name, used in disk.items():
            found.report.add(f"disk_bytes_{name}", used / total, f"bytes of {name} / memory")
    async with stack.service("retriever", settings):
        await _recalls(stack, bulk, options, found)
    say(f"{total:,}: recalls measured")
    await _ingest(stack, connection, options, settings, total, found)
    say(f"{total:,}: recording and embedding measured")


async def _bytes(connection: asyncpg.Connection[asyncpg.Record], table: str) -> int:
    return int(await connection.fetchval("SELECT pg_total_relation_size($1::regclass)", table))


async def _recalls(stack: Stack, bulk: Bulk, options: Options, found: _Found) -> None:
    source = random.Random(8)
    async with MemoryClient(stack.rabbitmq.url) as client:
        for size, names in sorted(bulk.agents.items()):
            picked = random.Random(size).sample(names, min(_ASKED, len(names)))
            share = {10_000: 2, 100_000: 5}.get(size, 1)
            took: list[float] = []
            for turn, name in enumerate(
                itertools.islice(itertools.cycle(picked), options.recalls // share + 2)
            ):
                if turn == 2:  # connections, plans and the first pages are warm by now
                    clock = CpuClock(stack.postgres.pid)
                begun = time.perf_counter()
                answer = await client.recall(
                    WORLD, name, observation(source), tick=LAST_TICK, timeout_s=_TIMEOUT_S
                )
                took.append(time.perf_counter() - begun)
                if answer.status != "ok" or len(answer.memories) != 5:
                    msg = f"a recall was answered {answer.status} ({answer.reason})"
                    raise RuntimeError(msg)
            used = clock.seconds() / (len(took) - 2)
            told = await client.recall(
                *(WORLD, picked[0], observation(source)),
                tick=LAST_TICK, timeout_s=_TIMEOUT_S, explain=True,
            )  # fmt: skip
            assert told.explain is not None
            found.report.add(
                f"scored_{size}_{bulk.memories}",
                told.explain["scored"],
                f"memories scored exactly, plan: {told.explain['plan']}",
            )
            median = statistics.median(took[2:])
            total = bulk.memories
            found.latencies.setdefault(size, {})[total] = median
            found.cpu.setdefault(size, {})[total] = used
            found.report.add(f"latency_{size}_{total}", median * 1000, "ms, p50")
            found.report.add(f"cpu_ms_{size}_{total}", used * 1000, "ms of PostgreSQL / recall")


async def _ingest(
    stack: Stack,
    connection: asyncpg.Connection[asyncpg.Record],
    options: Options,
    settings: Mapping[str, str],
    total: int,
    found: _Found,
) -> None:
    """Ticks out of a full queue into the tables, then the vectors of what they said."""
    source = random.Random(total)
    bodies = [
        json.dumps({"world": WORLD, "tick": LAST_TICK + 1 + n, "decisions": decisions(source)})
        for n in range(options.messages)
    ]
    async with await aio_pika.connect(stack.rabbitmq.url) as broker:
        channel = await broker.channel()
        await declare(channel, RECORDER_QUEUE)
        await publish(channel, WORLD, [body.encode() for body in bodies])
    ticks = f"SELECT count(*) FROM tick_receipt WHERE tick > {LAST_TICK}"
    told = {**stack.service_settings, **settings}
    async with stack.process("tickmind_recorder", settings=told) as recorder:
        rate = await _rate(connection, recorder, ticks, until=options.messages)
    found.report.add(f"ingest_per_s_{total}", rate * DECISIONS, "decisions / s")
    texts = await connection.fetchval("SELECT count(DISTINCT content_hash) FROM pending_embedding")
    before = await connection.fetchval("SELECT count(*) FROM embedding")
    vectors = f"SELECT count(*) - {before} FROM embedding"
    async with stack.process("tickmind_embedder", settings=told) as embedder:
        rate = await _rate(connection, embedder, vectors, until=texts)
        # Whoever said the same as another is linked by the same transaction or the next sweep.
        await _rate(
            connection, embedder, "SELECT -count(*) FROM pending_embedding", until=0, timed=False
        )
    found.report.add(f"embedded_per_s_{total}", rate, "texts / s")


async def _rate(
    connection: asyncpg.Connection[asyncpg.Record],
    worker: Child,
    counted: str,
    *,
    until: int,
    timed: bool = True,
) -> float:
    """How fast a count grows, from the first time it moved to its end. Raises RuntimeError where
    it never gets there."""
    seen: list[tuple[float, int]] = []
    begun = time.perf_counter()
    while True:
        now, count = time.perf_counter(), await connection.fetchval(counted)
        if count > 0 or not timed:
            seen.append((now, count))
        if count >= until:
            break
        if not worker.running:
            raise worker.failure("ended before its work was done")
        if now - begun > _PATIENCE_S:
            msg = f"{until - count} were left after {_PATIENCE_S:.0f} s"
            raise RuntimeError(msg)
        await asyncio.sleep(_LOOK_S)
    (first_s, first), (last_s, last) = seen[0], seen[-1]
    return (last - first) / (last_s - first_s) if last_s > first_s else 0.0


async def _delete(
    stack: Stack,
    connection: asyncpg.Connection[asyncpg.Record],
    size: int,
    found: _Found,
    say: _Say,
) -> None:
    """The largest agent goes by the command for it, then its dead rows by VACUUM."""
    arguments = ["delete", "agent", WORLD, f"agent-{size}-00000", "--yes"]
    begun = time.perf_counter()
    settings = {"TICKMIND_DATABASE_URL": stack.postgres.url}
    async with stack.process("tickmind.cli", arguments, settings=settings) as command:
        while command.running:
            await asyncio.sleep(_LOOK_S)
            if time.perf_counter() - begun > _PATIENCE_S:
                msg = f"deleting {size} memories took longer than {_PATIENCE_S:.0f} s"
                raise RuntimeError(msg)
    found.report.add("delete_s", time.perf_counter() - begun, f"s for {size:,} memories")
    left = await connection.fetchval(
        "SELECT count(*) FROM agent WHERE name = $1", f"agent-{size}-00000"
    )
    if left:
        raise command.failure("ended without deleting the agent")
    begun = time.perf_counter()
    for table in _TABLES:
        await connection.execute(f"VACUUM {table}")
    found.report.add("vacuum_s", time.perf_counter() - begun, "s")
    say("the largest agent is deleted, the tables are vacuumed")
