"""The command line run as a person runs it: a process of its own, with its own environment."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.forking import Forks
from tickmind.cli import main
from tickmind.settings import BrokerSettings, DatabaseSettings

__all__ = ["Cli", "Done", "end_forks", "run_here", "servers_of"]

_forks: list[Forks] = []
_starting = threading.Lock()


def _started() -> Forks:
    """What commands are forked by, started by the first of them."""
    with _starting:
        if not _forks:
            _forks.append(Forks())
        return _forks[0]


def end_forks() -> None:
    """End what they were forked by."""
    while _forks:
        _forks.pop().end()


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout as one JSON document, which is all it may hold."""
        return json.loads(self.out)


def servers_of(database: DatabaseSettings, broker: BrokerSettings) -> dict[str, str]:
    """The environment that names these servers."""
    assert database.database_url is not None
    return {
        "TICKMIND_DATABASE_URL": database.database_url.get_secret_value(),
        "TICKMIND_AMQP_URL": broker.broker_url(),
    }


def run_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *args: str
) -> Done:
    """Run in this process, for what needs no server; quicker than a process of its own."""
    monkeypatch.setattr(sys, "argv", ["tickmind", *args])
    code = main()
    said = capsys.readouterr()
    return Done(code=code or 0, out=said.out, err=said.err)


class Cli:
    """`tickmind` in a directory and an environment. Nothing of the developer's reaches it."""

    def __init__(self, where: Path, env: Mapping[str, str] | None = None) -> None:
        self.where = where
        mine = ("TICKMIND_", "COLUMNS", "NO_COLOR", "FORCE_COLOR")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(mine)}
        self.env = {**kept, **(env or {})}
        # Other variables are read by other packages, as they are loaded.
        self._forked = all(name.startswith("TICKMIND_") for name in env or {})

    async def start(self, *args: str, **options: Any) -> asyncio.subprocess.Process:
        """The process, its output piped."""
        return await self._start(sys.executable, "-m", "tickmind.cli", *args, **options)

    async def _forked_or_started(self, *args: str, **options: Any) -> asyncio.subprocess.Process:
        if not self._forked:
            return await self.start(*args, **options)
        forks = await asyncio.to_thread(_started)
        return await self._start(*forks.command(*args), **options)

    async def _start(self, *command: str, **options: Any) -> asyncio.subprocess.Process:
        given: dict[str, Any] = {
            "stdin": asyncio.subprocess.DEVNULL,
            "stdout": asyncio.subprocess.PIPE,
            "stderr": asyncio.subprocess.PIPE,
            **options,
        }
        return await asyncio.create_subprocess_exec(*command, cwd=self.where, env=self.env, **given)

    async def __call__(self, *args: str, stdin: bytes | None = None) -> Done:
        """Run to the end; nobody is at the terminal."""
        given = {} if stdin is None else {"stdin": asyncio.subprocess.PIPE}
        process = await self._forked_or_started(*args, **given)
        try:
            async with asyncio.timeout(90):
                out, err = await process.communicate(stdin)
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode is not None
        assert b"Traceback" not in err, err.decode()
        return Done(code=process.returncode, out=out.decode(), err=err.decode())

    async def answering(self, answer: str, *args: str) -> Done:
        """Run with a person at the terminal who types `answer` and a line break."""
        ours, theirs = pty.openpty()
        try:
            process = await self._forked_or_started(*args, stdin=theirs)
            os.write(ours, f"{answer}\n".encode())
            async with asyncio.timeout(90):
                out, err = await process.communicate()
        finally:
            os.close(ours)
            os.close(theirs)
        assert process.returncode is not None
        return Done(code=process.returncode, out=out.decode(), err=err.decode())
