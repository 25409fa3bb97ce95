"""`soak`: a sustained load for many minutes, an overload, and what comes after.

The three services as processes with their default settings, one of each, on PostgreSQL and
RabbitMQ; vectors of 384 from the test provider, a process of its own without limits. The load is a
mix: each tick of a town publishes 20 decisions (30 memories, 20 of them of texts never said
before) and asks four agents' memories, each in a request of its own with the client's deadline of
0.8 s, new observations every time. Towns end at 1,000 ticks and new ones begin, so that agents
have 0 to 600 memories however long it goes on (below five minutes half of both). Ticks are begun at
an even rate, whether those before have ended or not; client, services, provider and servers share
the machine.

`capacity_…`: the highest rate of the mix at which, for some seconds, every tick is confirmed, 99 %
of recalls are answered in time and less than a second's worth is left undone; found by ramping.
The rest is measured against it, in the same run.

Sustained (`--minutes`, 20), at half of capacity. Of a warm-up (two minutes, at most a quarter)
nothing counts. `<process>_mb_per_hour`: slope of resident memory; `_memory_growth`: its last tenth
over its first. `…_spread`: highest less lowest count of connections, AMQP channels, files.
`…_p99_drift`: p99 of the last third over that of the first. `pending_drift`: memories pending on
average in the last third less in the first, in seconds of load. `recalls_failed`: without an
answer for a reason; `recalls_late`: that the client gave back more than 100 ms after the deadline.

Overload, at three times capacity for up to 90 s: `overload_<process>_growth` is its peak memory
over the sustained peak; `overload_answered`: recalls answered in time, over what capacity would
be; `overload_shed_…`: the others, by what the client was told, as a share of all asked; `told_…`:
the services' own counts meanwhile. `recovery_…_s`: from its end until the recorder's queue is
empty and stored, nothing is pending, and two seconds' recalls in a row are answered.

`memories_lost`, `memories_extra`: at the very end, by tick, of all that was confirmed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from benchmarks.embedder_load import provider
from benchmarks.report import Report, at_most, machine
from benchmarks.soak_figures import Ledger, drift, growth, percentile, slope_per_hour
from benchmarks.soak_phases import Bench, Recovery, Watched
from benchmarks.soak_samples import Sample, Sampler, sampler
from benchmarks.soak_towns import (
    DECISIONS,
    MEMORIES,
    RECALL_TIMEOUT_S,
    RECALLS,
    Call,
    Load,
    Towns,
)
from benchmarks.stack import running_stack
from tickmind import MemoryClient
from tickmind.local.provider.options import ProviderOptions
from tickmind.topology import RECALL_QUEUE, RECORDER_QUEUE

__all__ = ["SMALL", "Options", "run"]

_SERVICES = ("recorder", "embedder", "retriever")
#: multilingual-e5-small's; at 1536 twenty minutes would take 3 GB of disk.
_DIMENSIONS = 384
#: An answer is late where the client gives it back so long after the deadline: its own loop, under
#: an overload of its own, wakes up tens of milliseconds late.
_LATE_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How much is measured. `minutes`: of sustained load; what else is shorter with it."""

    minutes: float = 20.0
    towns: int = 3
    overload: float = 3.0

    @property
    def seconds(self) -> float:
        return self.minutes * 60

    @property
    def life(self) -> int:
        """Of a town, in ticks. The towns begin with as many in all, 20 texts each: enough for the
        one rebuild of a young space, at 8,192, to be over before anything is measured."""
        return 1000 if self.minutes >= 5 else 500

    @property
    def warm_up_s(self) -> float:
        return min(120.0, self.seconds / 4)

    @property
    def overload_s(self) -> float:
        return min(90.0, max(20.0, self.seconds / 2))

    @property
    def step_s(self) -> float:
        """Of the ramp."""
        return 8.0 if self.minutes >= 5 else 5.0

    @property
    def sample_s(self) -> float:
        return 5.0 if self.minutes >= 5 else 2.0


SMALL = Options(minutes=1.0)


async def run(report: Callable[[str], None], options: Options | None = None) -> Report:
    """Measure; `report` is told in words how far it is. Raises StartFailed, RuntimeError."""
    options = options or Options()
    found = Report(name="soak", machine=machine())
    async with _bench(options, report) as (bench, looking):
        await bench.fill()
        capacity = await bench.capacity(step_s=options.step_s)
        _capacity(found, capacity)
        watched = await bench.sustained(capacity / 2, seconds=options.seconds)
        calm = _sustained(found, watched, options)
        report("sustained load measured, now the overload")
        overload, recovery = await bench.overloaded(
            options.overload * capacity, seconds=options.overload_s
        )
        _overload(found, overload, calm, capacity)
        _recovery(found, recovery)
        await bench.drained()
        stored = await looking.stored()
        ledger = Ledger.of(bench.confirmed, stored, memories_a_tick=MEMORIES)
        found.add("ticks_confirmed", ledger.confirmed, "")
        found.add("memories_stored", ledger.stored, "")
        found.add("memories_lost", ledger.lost, "", at_most(0))
        found.add("memories_extra", ledger.extra, "", at_most(0))
        found.add("memories_unindexed", await looking.unindexed(), "", at_most(0))
    return found


@asynccontextmanager
async def _bench(
    options: Options, report: Callable[[str], None]
) -> AsyncIterator[tuple[Bench, Sampler]]:
    """Everything as processes, and a client."""
    async with AsyncExitStack() as parts:
        stack = await parts.enter_async_context(running_stack())
        given = ProviderOptions(native_width=_DIMENSIONS)
        api = await parts.enter_async_context(provider(stack, given, instance="soak"))
        settings = {
            **stack.service_settings,
            "TICKMIND_EMBEDDING_PROFILE": "openai-compatible",
            "TICKMIND_EMBEDDING_BASE_URL": api.base_url,
            "TICKMIND_EMBEDDING_DIMENSIONS": str(_DIMENSIONS),
            "TICKMIND_EMBEDDING_LIMITS": "",
        }
        services = {
            name: await parts.enter_async_context(
                stack.server(f"tickmind_{name}", settings=settings, path="/readyz")
            )
            for name in _SERVICES
        }
        client = await parts.enter_async_context(MemoryClient(stack.rabbitmq.url))
        looking = await parts.enter_async_context(sampler(stack, services))
        load = Load(client, Towns(count=options.towns, life=options.life))
        yield Bench(load, looking, api, sample_s=options.sample_s, say=report), looking


def _capacity(found: Report, capacity: float) -> None:
    found.add("capacity_ticks_per_s", capacity, "1/s")
    found.add("capacity_decisions_per_s", capacity * DECISIONS, "1/s")
    found.add("capacity_memories_per_s", capacity * MEMORIES, "1/s")
    found.add("capacity_recalls_per_s", capacity * RECALLS, "1/s")


def _sustained(found: Report, watched: Watched, options: Options) -> Sequence[Sample]:
    """Add what the sustained load came to; the samples that count."""
    stretch = watched.stretch
    since = stretch.begun + options.warm_up_s
    samples = [sample for sample in watched.samples if sample.at >= since]
    found.add("sustained_ticks_per_s", stretch.ticks / stretch.seconds, "1/s")
    found.add("ticks_skipped", stretch.skipped, "", at_most(0))
    for name in samples[0].memory_mb:
        points = [(sample.at, sample.memory_mb[name]) for sample in samples]
        values = [value for _, value in points]
        ours = at_most(1.1) if name in _SERVICES else None
        found.add(f"{name}_mb", values[-1], "MB")
        found.add(f"{name}_mb_per_hour", slope_per_hour(points), "MB/h")
        found.add(f"{name}_memory_growth", growth(values), "end / start", ours)
    for name in _SERVICES:
        files = [sample.files[name] for sample in samples]
        found.add(f"{name}_files_spread", max(files) - min(files), "")
    # Pools open their connections as they are needed, and keep them.
    for name, counts, most in (
        ("postgres_connections", [sample.postgres for sample in samples], 2),
        ("amqp_connections", [sample.amqp for sample in samples], 0),
        # Whoever tells the queues' depths has a channel for each, for a moment.
        ("amqp_channels", watched.channels, 4),
    ):
        found.add(name, counts[-1], "")
        found.add(f"{name}_spread", max(counts) - min(counts), "", at_most(most))
    _latency(found, "recall", [call for call in stretch.recalls if call.at >= since])
    _latency(found, "confirm", [call for call in stretch.publishes if call.at >= since])
    pending = [sample.backlog.pending / MEMORIES / stretch.rate for sample in samples]
    third = max(1, len(pending) // 3)
    drifted = sum(pending[-third:]) / third - sum(pending[:third]) / third
    found.add("pending_drift_s", drifted, "s of load", at_most(1.0))
    found.add("pending_end", samples[-1].backlog.pending, "memories")
    found.add("recalls_asked", len(stretch.recalls), "")
    found.add("recalls_failed", sum(not call.ok for call in stretch.recalls), "", at_most(0))
    found.add("recalls_late", _late(stretch.recalls), "", at_most(0))
    unconfirmed = sum(not call.ok for call in stretch.publishes)
    found.add("ticks_unconfirmed", unconfirmed, "", at_most(0))
    return samples


def _latency(found: Report, name: str, calls: Sequence[Call]) -> None:
    took = [(call.at, call.took_s * 1000) for call in calls]
    milliseconds = [value for _, value in took]
    found.add(f"{name}_p50_ms", percentile(milliseconds, 0.5), "ms")
    found.add(f"{name}_p99_ms", percentile(milliseconds, 0.99), "ms")
    found.add(f"{name}_p99_drift", drift(took), "last third / first", at_most(1.5))


def _late(calls: Sequence[Call]) -> int:
    return sum(call.took_s > RECALL_TIMEOUT_S + _LATE_S for call in calls)


def _overload(found: Report, watched: Watched, calm: Sequence[Sample], capacity: float) -> None:
    stretch = watched.stretch
    found.add("overload_ratio", stretch.ticks / stretch.seconds / capacity, "offered / capacity")
    for name in calm[0].memory_mb:
        peak = max(sample.memory_mb[name] for sample in watched.samples)
        before = max(sample.memory_mb[name] for sample in calm)
        ours = at_most(1.5) if name in _SERVICES else None
        found.add(f"overload_{name}_mb", peak, "MB")
        found.add(f"overload_{name}_growth", peak / before, "peak / sustained peak", ours)
    for name in (RECORDER_QUEUE.name, RECALL_QUEUE.name):
        most = max(sample.backlog.queues[name] for sample in watched.samples)
        found.add(f"overload_queue_{name.removeprefix('tickmind.')}", most, "messages at most")
    pending = max(sample.backlog.pending for sample in watched.samples)
    found.add("overload_pending", pending, "memories at most")
    found.add("overload_ticks_skipped", stretch.skipped, "")
    unconfirmed = sum(not call.ok for call in stretch.publishes)
    found.add("overload_ticks_unconfirmed", unconfirmed, "")
    confirms = [call.took_s * 1000 for call in stretch.publishes if call.ok]
    found.add("overload_confirm_p99_ms", percentile(confirms, 0.99), "ms")
    answered = sum(call.ok for call in stretch.recalls)
    asked = len(stretch.recalls)
    found.add("overload_recalls_asked", asked, "")
    found.add(
        "overload_answered",
        answered / stretch.seconds / (capacity * RECALLS),
        "recalls in time / capacity",
    )
    found.add("overload_recalls_late", _late(stretch.recalls), "", at_most(0))
    for reason in sorted({call.outcome for call in stretch.recalls if not call.ok}):
        shed = sum(call.outcome == reason for call in stretch.recalls)
        found.add(f"overload_shed_{reason}", shed / asked, "of all asked")
    first, last = watched.samples[0].told, watched.samples[-1].told
    for name, value in last.items():
        if "recalls" in name and name in first and value > first[name]:
            found.add(f"told {name}", value - first[name], "")


def _recovery(found: Report, recovery: Recovery) -> None:
    for name, value in (
        ("queue", recovery.queue_s),
        ("pending", recovery.pending_s),
        ("recalls", recovery.recalls_s),
    ):
        if value is None:
            found.add(f"recovery_{name}_not", 1, "not within the limit", at_most(0))
        else:
            found.add(f"recovery_{name}_s", value, "s")
