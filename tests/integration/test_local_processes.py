"""Child processes: they end with us, and only they."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from tickmind.errors import ConfigurationError
from tickmind.local.locking import exclusive
from tickmind.local.process_tree import alive, stop_orphan
from tickmind.local.processes import Child, Command, StartFailed, run, uninterrupted


def command(directory: Path, *argv: str, grace_s: float = 10.0) -> Command:
    return Command(
        name="Part",
        argv=argv,
        env=dict(os.environ),
        cwd=directory,
        log_path=directory / "part.log",
        pid_path=directory / "child-part.pid",
        grace_s=grace_s,
    )


def python(directory: Path, program: str, *, grace_s: float = 10.0) -> Command:
    return command(directory, sys.executable, "-c", program, grace_s=grace_s)


@asynccontextmanager
async def started(child: Child, line: str) -> AsyncIterator[Child]:
    """The child, once its log holds `line`; stopped on leaving."""

    async def says() -> bool:
        return line in child.log_tail()

    await child.start()
    try:
        await child.ready(says, timeout_s=20)
        yield child
    finally:
        await child.stop()


IGNORES_TERMINATION = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
print("other", other.pid, flush=True)
print("ready", flush=True)
time.sleep(600)
"""


async def test_stop_kills_what_ignores_it_and_what_left_its_session(tmp_path: Path) -> None:
    async with started(Child(python(tmp_path, IGNORES_TERMINATION, grace_s=0.2)), "ready") as child:
        other = psutil.Process(int(child.log_tail()[0].split()[1]))
        await child.stop()
        assert not child.running
        assert not alive(other)
    assert not list(tmp_path.glob("child-*.pid"))


async def test_failure_shows_the_log_when_a_part_ends_before_it_is_ready(tmp_path: Path) -> None:
    child = Child(python(tmp_path, "import sys; sys.exit('port 5 is taken')"))
    await child.start()

    async def never() -> bool:
        return False

    with pytest.raises(StartFailed, match=r"(?s)Part ended with exit code 1 .*port 5 is taken"):
        await child.ready(never, timeout_s=20)
    await child.stop()


async def test_run_names_the_program_when_it_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"(?s)exit code 127.*no-such-program"):
        await run(command(tmp_path, "no-such-program"), timeout_s=20)


async def test_orphan_of_a_killed_start_is_ended_by_the_next(tmp_path: Path) -> None:
    sleeper = "print('ready', flush=True); import time; time.sleep(600)"
    async with started(Child(python(tmp_path, sleeper)), "ready") as first:
        orphan = psutil.Process(first.pid)
        async with started(Child(python(tmp_path, sleeper)), "ready") as second:
            assert not alive(orphan)
            assert second.running


async def test_process_with_a_reused_number_is_left_alone(tmp_path: Path) -> None:
    """A pid file outlives its process; by then the number may be a stranger's."""
    heard = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, heard.set)
    pid_path = tmp_path / "child-part.pid"
    try:
        pid_path.write_text(f"{os.getpid()} {time.time() - 86_400}\n")
        await stop_orphan(pid_path, signal.SIGUSR1, 0.0)
        assert not heard.is_set()
        assert not pid_path.exists()
    finally:
        loop.remove_signal_handler(signal.SIGUSR1)


async def test_lock_names_its_holder_when_it_is_held(tmp_path: Path) -> None:
    with (
        exclusive(tmp_path / "lock", "held by {pid}"),
        pytest.raises(ConfigurationError, match=f"held by {os.getpid()}"),
        exclusive(tmp_path / "lock", "held by {pid}"),
    ):
        pass
    with exclusive(tmp_path / "lock", "held by {pid}"):
        pass


async def test_cleanup_is_finished_before_a_cancellation_is_raised() -> None:
    begun, allowed, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def cleanup() -> None:
        begun.set()
        await allowed.wait()
        finished.set()

    task = asyncio.create_task(uninterrupted(cleanup()))
    await begun.wait()
    task.cancel()
    allowed.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert finished.is_set()
