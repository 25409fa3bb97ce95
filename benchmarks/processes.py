"""What a process costs: processor time and resident memory, of it and of all below it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

__all__ = ["CpuClock", "Peak", "TaskClock", "resident_mb", "watched_memory"]

#: How often resident memory is looked at under load.
_LOOK_S = 0.05


class CpuClock:
    """Processor time that a process and its children use from now on.

    The kernel counts it in ticks of 10 ms; a child that ends takes its share with it, so read
    while those that matter still run.
    """

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._before = self._read()

    def seconds(self) -> float:
        """User and system time since the clock was made, seconds."""
        now = self._read()
        return sum(used - self._before.get(pid, 0.0) for pid, used in now.items())

    def _read(self) -> dict[int, float]:
        used = {}
        for process in (self._process, *self._process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                used[process.pid] = times.user + times.system
        return used


class TaskClock:
    """Processor time of one process alone, of its first thread, in nanoseconds exactly: what else a
    server does in the background is not in it. Linux only."""

    def __init__(self, pid: int) -> None:
        self._path = Path(f"/proc/{pid}/schedstat")
        self._before = self._read()

    def seconds(self) -> float:
        """Since the clock was made."""
        return (self._read() - self._before) / 1e9

    def _read(self) -> int:
        return int(self._path.read_text().split()[0])


def resident_mb(pid: int) -> float:
    """Resident memory of one process now, in 10^6 bytes."""
    return float(psutil.Process(pid).memory_info().rss) / 1e6


class Peak:
    """The most resident memory each of several processes was seen with, in 10^6 bytes."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.mb = dict.fromkeys(pids, 0.0)

    def look(self) -> None:
        for pid, most in self.mb.items():
            self.mb[pid] = max(most, resident_mb(pid))


@asynccontextmanager
async def watched_memory(*pids: int) -> AsyncIterator[Peak]:
    """Look at the processes' memory until the block ends."""
    peak = Peak(pids)

    async def watch() -> None:
        while True:
            peak.look()
            await asyncio.sleep(_LOOK_S)

    watching = asyncio.create_task(watch())
    try:
        yield peak
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
    peak.look()
