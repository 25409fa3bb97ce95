"""Whole families of processes: who belongs to one, and how it is ended to the last member."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

__all__ = ["alive", "descendants", "finish", "stop_orphan", "stop_orphans"]

#: How often processes that are about to end are looked at.
POLL_S = 0.05

#: What a killed stack left behind has had its signal to end already, from the system.
ORPHAN_GRACE_S = 20.0

#: Linux counts a process's start in ticks of 10 ms after the boot, whose time may be adjusted.
START_TOLERANCE_S = 1.0


def alive(process: psutil.Process) -> bool:
    """Whether it still runs; one that only waits to be reaped by its parent does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def descendants(pid: int) -> list[psutil.Process]:
    """Every process below `pid`, those in sessions of their own too."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


async def finish(processes: list[psutil.Process], *, grace_s: float = 2.0) -> None:
    """Wait for processes that are about to end; kill those that do not.

    2 s: Erlang's port helpers and PostgreSQL's backends end within 0.1 s of their parent.
    """
    for last_chance in (False, True):
        deadline = time.monotonic() + grace_s
        while remaining := [process for process in processes if alive(process)]:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(POLL_S)
        for process in remaining if not last_chance else ():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


async def stop_orphan(
    pid_path: Path,
    stop_signal: signal.Signals = signal.SIGTERM,
    grace_s: float = ORPHAN_GRACE_S,
) -> None:
    """End what `pid_path` names if it still runs: its parent was killed before it could.

    To be called by the holder of the directory's lock only, who thereby knows that whoever
    started the process is gone.
    """
    try:
        pid, started = pid_path.read_text().split()
        process = psutil.Process(int(pid))
        same = abs(process.create_time() - float(started)) < START_TOLERANCE_S
    except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
        same = False
    if same and alive(process):
        family = descendants(process.pid)
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(stop_signal)
            process.send_signal(signal.SIGCONT)
        await finish([process, *family], grace_s=grace_s)
    pid_path.unlink(missing_ok=True)


async def stop_orphans(directories: Iterable[Path]) -> None:
    """`stop_orphan` for every child that left its pid file directly in one of `directories`."""
    paths = [path for directory in directories for path in directory.glob("child-*.pid")]
    # SIGTERM is PostgreSQL's slow shutdown, but its sessions end with the other orphans.
    await asyncio.gather(*(stop_orphan(path) for path in paths))
