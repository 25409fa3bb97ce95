"""The phases of `soak`: fill, ramp, sustained load, overload, recovery."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.soak_figures import Ramp, percentile, settle, steady
from benchmarks.soak_samples import Backlog, Sample, Sampler
from benchmarks.soak_towns import MEMORIES, Call, Load, Stretch
from tickmind.local.provider.remote import RemoteProvider
from tickmind.topology import RECORDER_QUEUE

__all__ = ["Bench", "Recovery", "Watched"]

_Say = Callable[[str], None]

#: Ticks that are published at once where the towns grow to their ages.
_FILLERS = 30
#: A first rate that any machine sustains, in ticks a second.
_FIRST_RATE = 4.0
#: A rate is sustained where so many recalls are answered in time, and what is left undone at its
#: end is less than what comes in so many seconds.
_RECALLS_OK, _BACKLOG_S = 0.99, 1.0
#: What a phase leaves undone is waited for this long.
_DRAIN_S = 300.0
_LOOK_S = 0.25
#: A young space is rebuilt once (8,192 distinct vectors); looked for every 10 s, done in seconds.
_SIGNED_S = 60.0
_MINUTE_S = 60.0
#: Peaks of an overload are short.
_OVERLOAD_SAMPLE_S = 1.0
#: After an overload one recall is asked this often; of these so many in a row, 2 s, tell that
#: recalls are answered again.
_PROBE_S, _PROBES = 0.1, 20


@dataclass(slots=True, kw_only=True)
class Watched:
    """A stretch of load, and what was seen meanwhile."""

    stretch: Stretch
    samples: list[Sample] = field(default_factory=list)
    channels: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Seconds from the end of an overload until the recorder's queue was empty and all of it
    stored, nothing pending any more, and recalls answered again; None: not within the limit."""

    queue_s: float | None
    pending_s: float | None
    recalls_s: float | None


class Bench:
    """The phases, on services that run."""

    def __init__(
        self, load: Load, sampler: Sampler, api: RemoteProvider, *, sample_s: float, say: _Say
    ) -> None:
        self._load = load
        self._sampler = sampler
        self._api = api
        self._sample_s = sample_s
        self._say = say

    @property
    def confirmed(self) -> dict[str, set[int]]:
        """Ticks that the broker has taken, by town."""
        return {town.name: town.confirmed for town in self._load.towns.all}

    async def fill(self) -> None:
        """Let the towns grow to the ages they begin with, all of it embedded and indexed."""
        begun = time.perf_counter()
        await self._load.fill(at_once=_FILLERS)
        self._say(f"published in {time.perf_counter() - begun:.0f} s, to be embedded")
        await self.drained()
        self._say(f"filled in {time.perf_counter() - begun:.0f} s")
        try:
            async with asyncio.timeout(_SIGNED_S):
                while True:
                    if await self._sampler.signed():
                        return
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            self._say("the index has no signatures yet: going on without")

    async def capacity(self, *, step_s: float) -> float:
        """Ticks a second, with their recalls, that are sustained. Raises RuntimeError where none
        is."""
        ramp = Ramp(rate=_FIRST_RATE)
        while not ramp.done:
            stretch = Stretch(rate=ramp.rate)
            playing = asyncio.create_task(self._load.play(stretch, seconds=step_s))
            try:
                await stretch.sent.wait()
                behind = self._behind_s(await self._sampler.backlog(), stretch.rate)
            finally:
                await playing
            in_time = sum(call.ok for call in stretch.recalls) / max(1, len(stretch.recalls))
            whole = not stretch.skipped and all(call.ok for call in stretch.publishes)
            sustained = whole and in_time >= _RECALLS_OK and behind <= _BACKLOG_S
            self._say(
                f"{ramp.rate:.1f} ticks/s: {'' if sustained else 'not '}sustained;"
                f" {in_time:.1%} of recalls in time, {behind:.2f} s behind"
            )
            ramp.tell(sustained=sustained)
            await self.drained()
        if ramp.capacity is None:
            msg = "no rate was sustained: is the machine busy with something else?"
            raise RuntimeError(msg)
        return ramp.capacity

    def _behind_s(self, backlog: Backlog, rate: float) -> float:
        """How long ago what is done just now was confirmed, by the rate."""
        return (self._unrecorded(backlog) + backlog.pending / MEMORIES) / rate

    def _unrecorded(self, backlog: Backlog) -> int:
        return max(0, sum(map(len, self.confirmed.values())) - backlog.recorded)

    async def sustained(self, rate: float, *, seconds: float) -> Watched:
        """Play that long, looking at everything; over when all that was sent has ended."""
        watched = Watched(stretch=Stretch(rate=rate))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._load.play(watched.stretch, seconds=seconds))
            await self._watch(watched, every_s=self._sample_s, channels=True)
        await self.drained()
        return watched

    async def overloaded(self, rate: float, *, seconds: float) -> tuple[Watched, Recovery]:
        """Play more than is sustained, then nothing more: what was seen, and what came after."""
        watched = Watched(stretch=Stretch(rate=rate))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._load.play(watched.stretch, seconds=seconds))
            await self._watch(watched, every_s=_OVERLOAD_SAMPLE_S, channels=False)
            recovery = await self._recovered()
        watched.samples.append(await self._sampler.look())
        return watched, recovery

    async def _watch(self, watched: Watched, *, every_s: float, channels: bool) -> None:
        """Look until no more is sent."""
        stretch = watched.stretch
        next_s = _MINUTE_S
        if channels:
            watched.channels.append(await self._sampler.channels())
        while not stretch.sent.is_set():
            watched.samples.append(await self._sampler.look())
            if watched.samples[-1].at - stretch.begun >= next_s:
                self._tell(watched, next_s)
                next_s += _MINUTE_S
                if channels:
                    watched.channels.append(await self._sampler.channels())
                # Its ledger would grow for as long as this goes on.
                await self._api.reset()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await stretch.sent.wait()
        watched.samples.append(await self._sampler.look())

    def _tell(self, watched: Watched, until_s: float) -> None:
        since = watched.stretch.begun + until_s - _MINUTE_S
        took = [call.took_s * 1000 for call in watched.stretch.recalls if call.at >= since]
        sample = watched.samples[-1]
        memory = ", ".join(f"{name} {mb:.0f}" for name, mb in sample.memory_mb.items())
        self._say(
            f"minute {until_s / _MINUTE_S:.0f}: recalls p50 {percentile(took, 0.5):.1f} ms,"
            f" p99 {percentile(took, 0.99):.1f} ms; {sample.backlog.pending} pending; MB: {memory}"
        )

    async def _recovered(self) -> Recovery:
        begun = time.perf_counter()
        probes: list[Call] = []
        backlogs: list[Backlog] = []

        async def probe() -> None:
            probes.append(await self._load.recall())

        def answered() -> float | None:
            return steady([(call.at - begun, call.ok) for call in probes], run=_PROBES)

        async with asyncio.TaskGroup() as tasks:
            while time.perf_counter() - begun < _DRAIN_S:
                tasks.create_task(probe())
                backlogs.append(await self._sampler.backlog())
                if self._done(backlogs[-1]) and answered() is not None:
                    break
                await asyncio.sleep(_PROBE_S)
        waiting = [
            (one.at - begun, self._unrecorded(one) + one.queues[RECORDER_QUEUE.name])
            for one in backlogs
        ]
        return Recovery(
            queue_s=settle(waiting, most=0),
            pending_s=settle([(one.at - begun, one.pending) for one in backlogs], most=0),
            recalls_s=answered(),
        )

    def _done(self, backlog: Backlog) -> bool:
        waits = backlog.queues[RECORDER_QUEUE.name] or backlog.pending
        return not (waits or self._unrecorded(backlog) or self._load.under_way)

    async def drained(self) -> None:
        """Wait until nothing is under way, queued or pending. Raises RuntimeError where that takes
        too long."""
        backlog = await self._sampler.backlog()
        try:
            async with asyncio.timeout(_DRAIN_S):
                while True:
                    if self._done(backlog):
                        return
                    await asyncio.sleep(_LOOK_S)
                    backlog = await self._sampler.backlog()
        except TimeoutError:
            msg = f"after {_DRAIN_S:.0f} s without load {backlog.pending} memories are pending"
            raise RuntimeError(msg) from None
