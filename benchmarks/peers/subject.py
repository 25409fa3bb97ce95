"""A system under comparison as a process: commands to it, its answers back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tickmind.errors import PermanentError
from tickmind.local.environment import child_environment

__all__ = ["Broken", "Subject", "running_subject"]

_ROOT = Path(__file__).parents[2]
#: A line of answers of a whole recall phase has some 200 kB.
_LINE_BYTES = 1 << 26
_START_S = 90.0
_END_S = 10.0
#: No system is to speak to anyone but us: what the peers' documentation switches it off by.
_SILENT = {
    "MEM0_TELEMETRY": "False",
    "POSTHOG_DISABLED": "1",
    "DO_NOT_TRACK": "1",
    "ANONYMIZED_TELEMETRY": "False",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
}


class Broken(PermanentError):
    """A system failed, or took longer than it may; the message says at what."""

    reason = "broken"


class Subject:
    """Asks one command after the other."""

    def __init__(self, process: asyncio.subprocess.Process, log_path: Path) -> None:
        self._process = process
        self._log_path = log_path
        self.pid = process.pid
        self.versions: Mapping[str, str] = {}

    async def ask(self, do: str, *, timeout_s: float, **options: Any) -> dict[str, Any]:
        """Its answer. Raises Broken."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **options}).encode() + b"\n")
        return await self.answer(do, timeout_s)

    async def answer(self, to: str, timeout_s: float) -> dict[str, Any]:
        """The next line of it. Raises Broken."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._process.stdout.readline()
        except TimeoutError as exc:
            raise Broken(f"{to} took longer than {timeout_s:.0f} s") from exc
        if not line:
            async with asyncio.timeout(_END_S):  # it is about to say why
                await self._process.wait()
            lines = self._log_path.read_text(errors="replace").strip().splitlines()
            raise Broken(f"{to}: {lines[-1] if lines else 'it ended without a word'}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@asynccontextmanager
async def running_subject(
    python: Path, module: str, given: Mapping[str, Any], state_dir: Path
) -> AsyncIterator[Subject]:
    """The system as a process, once it is open; gone when the block ends. Raises Broken."""
    log_path = state_dir / f"{module}.log"
    settings = {**_SILENT, "MEM0_DIR": str(state_dir / "mem0"), "OPENAI_API_KEY": "none"}
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(str(python), "-m", f"benchmarks.peers.{module}", json.dumps(dict(given))),
            cwd=_ROOT,
            env=child_environment(settings),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            limit=_LINE_BYTES,
        )
    try:
        subject = Subject(process, log_path)
        subject.versions = await subject.answer("starting", _START_S)
        yield subject
    finally:
        await _ended(process)


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Its input closed, it ends by itself; one that hangs is killed."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(_END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
