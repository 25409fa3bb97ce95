"""Child processes that never outlive us, however we end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from tickmind.errors import PermanentError
from tickmind.local.process_tree import descendants, finish, stop_orphan

__all__ = [
    "Child",
    "Command",
    "StartFailed",
    "SystemUser",
    "launched",
    "run",
    "uninterrupted",
]

T = TypeVar("T")

LAUNCH = Path(__file__).with_name("launch.py")

#: How often a starting child is asked whether it is ready; a start takes 0.1 s at least.
POLL_S = 0.05

#: A log longer than this is set aside when its process starts anew.
MAX_LOG_BYTES = 10_000_000

#: How many last lines of a log explain a failure to a person.
TAIL_LINES = 15

#: For a child that was never ready: it has accepted no work, and Erlang ignores SIGTERM at first.
STARTING_GRACE_S = 3.0


class StartFailed(PermanentError):
    """A part of the local stack did not start; the text ends with the last lines of its log."""

    reason = "start_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemUser:
    """A user of this machine to run a command as."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run and how to end it.

    `name`: as a person reads it. `env`: the whole environment. `pid_path`: where its process id is
    kept, so that a later start finds what a killed one left. `stop_signal` asks it to end; after
    `grace_s` seconds it is killed.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    log_path: Path
    pid_path: Path
    user: SystemUser | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    grace_s: float = 10.0


@dataclass(slots=True)
class Child:
    """One run, or several after each other, of a command in a session of its own.

    Its own session, so that Ctrl-C in a terminal reaches us alone and we end it in order.
    """

    command: Command
    _process: asyncio.subprocess.Process | None = None
    _ended: asyncio.Task[int] | None = None
    _log_start: int = 0
    _was_ready: bool = False

    @property
    def pid(self) -> int:
        """Process id of the present or the last run; raises RuntimeError before the first."""
        if self._process is None:
            raise RuntimeError(f"{self.command.name} was never started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._ended is not None and not self._ended.done()

    async def start(self) -> None:
        """Start the command; what an earlier, killed start of it left running is ended first."""
        if self.running:
            raise RuntimeError(f"{self.command.name} is running already")
        command = self.command
        await stop_orphan(command.pid_path, command.stop_signal, command.grace_s)
        if command.log_path.exists() and command.log_path.stat().st_size > MAX_LOG_BYTES:
            command.log_path.replace(command.log_path.with_suffix(".log.old"))
        self._was_ready = False
        with command.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *launched(command),
                env=dict(command.env),
                cwd=command.cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._ended = asyncio.create_task(self._reap(self._process))
        with contextlib.suppress(psutil.NoSuchProcess):
            started = psutil.Process(self._process.pid).create_time()
            command.pid_path.write_text(f"{self._process.pid} {started}\n")

    async def ready(
        self, probe: Callable[[], Awaitable[bool]], *, timeout_s: float, hint: str = ""
    ) -> None:
        """Wait until `probe` says yes; raises StartFailed when it ends first or takes too long."""
        deadline = time.monotonic() + timeout_s
        while True:
            if not self.running:
                raise self.failure(f"ended with {self._exit()} before it was ready", hint)
            if await probe():
                self._was_ready = True
                return
            if time.monotonic() > deadline:
                raise self.failure(f"was not ready within {timeout_s:.0f} s", hint)
            await self.wait(POLL_S)

    async def wait(self, timeout_s: float | None = None) -> int | None:
        """Exit code once it has ended (negative: the signal that ended it), None at the timeout."""
        if self._ended is None:
            raise RuntimeError(f"{self.command.name} was never started")
        await asyncio.wait([self._ended], timeout=timeout_s)
        return self._ended.result() if self._ended.done() else None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it still runs."""
        if self._process is not None and self.running:
            # Not Process.send_signal, which polls first and so may take the exit code away from
            # the thread that waits for it (Python 3.11).
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def stop(self) -> None:
        """End the process and everything it started: asked first, killed after the grace time."""
        if self._process is None or self._ended is None:
            return
        family = descendants(self._process.pid) if self.running else []
        self.send(self.command.stop_signal)
        # A process that was suspended cannot heed anything but SIGKILL.
        self.send(signal.SIGCONT)
        grace_s = self.command.grace_s if self._was_ready else STARTING_GRACE_S
        if await self.wait(grace_s) is None:
            self.send(signal.SIGKILL)
            await self.wait()
        await finish(family)
        self.command.pid_path.unlink(missing_ok=True)

    def failure(self, what: str, hint: str = "") -> StartFailed:
        """The error that says `what` happened and shows how this run's log ends."""
        lines = self.log_tail()
        shown = "\n".join(f"  {line}" for line in lines) or "  (nothing)"
        return StartFailed(
            f"{self.command.name} {what}.{' ' + hint if hint else ''} "
            f"Its log, {self.command.log_path}, ends with:\n{shown}"
        )

    def log_tail(self) -> list[str]:
        """The last lines of this run's log."""
        with self.command.log_path.open("rb") as log:
            log.seek(self._log_start)
            text = log.read().decode(errors="replace")
        return text.splitlines()[-TAIL_LINES:]

    def _exit(self) -> str:
        code = self._process.returncode if self._process is not None else None
        if code is not None and code < 0:
            return signal.Signals(-code).name
        return f"exit code {code}"

    async def _reap(self, process: asyncio.subprocess.Process) -> int:
        code = await process.wait()
        # At once: the number of this process group may belong to a stranger later.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        return code


def launched(command: Command) -> list[str]:
    """The argument list that runs the command bound to this process's life.

    Linux signals the children when the *thread* that started them ends: start them from the
    thread that runs the event loop, never from a worker thread.
    """
    user = command.user
    return [
        sys.executable,
        "-I",
        "-S",
        str(LAUNCH),
        str(os.getpid()),
        str(int(command.stop_signal)),
        str(user.uid if user else -1),
        str(user.gid if user else -1),
        *command.argv,
    ]


async def run(command: Command, *, timeout_s: float, hint: str = "") -> None:
    """Run a command to its end; raises StartFailed unless it exits 0 in time."""
    child = Child(command)
    await child.start()
    try:
        code = await child.wait(timeout_s)
        if code is None:
            raise child.failure(f"did not finish within {timeout_s:.0f} s", hint)
        if code != 0:
            raise child.failure(f"failed with {child._exit()}", hint)
    finally:
        await uninterrupted(child.stop())


async def uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Finish `work` even when cancelled; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and task.exception() is None:
        raise cancelled
    return task.result()
