"""A disk that can be filled: a small file system in memory, gone at the end for sure."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.chaos.broken_database import connected
from tests.chaos.lasting import MOST_S, lasting
from tickmind.local.postgres import LocalPostgres

__all__ = ["disk_full", "small_disk", "tablespace"]

_PREFIX = "tickmind-disk-"
_PLACE = Path("/var/tmp")
#: What is written at once to fill it.
_CHUNK = bytes(1 << 20)
#: mount and umount answer at once.
_COMMAND_S = 10.0


@contextmanager
def small_disk(mebibytes: int, *, owner: tuple[int, int]) -> Iterator[Path]:
    """A file system of so many MiB that belongs to `owner` (uid, gid); unmounted on leaving.

    Skips the test where this process may not mount: that needs root, and no setting mends it.
    """
    _unmount_left_behind()
    place = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_PLACE))
    uid, gid = owner
    options = f"size={mebibytes}m,mode=0700,uid={uid},gid={gid}"
    try:
        mounted = _command("mount", "-t", "tmpfs", "-o", options, "tickmind", str(place))
        if mounted.returncode != 0:
            pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.strip()}")
        try:
            yield place
        finally:
            _unmount(place)
    finally:
        place.rmdir()


def disk_full(disk: Path, *, most_s: float = MOST_S) -> AbstractAsyncContextManager[None]:
    """Something else has taken all there is left on a disk (ENOSPC), and gives it back."""
    ballast = disk / "ballast"

    async def free() -> None:
        ballast.unlink(missing_ok=True)

    return lasting(lambda: asyncio.to_thread(_fill, ballast), free, most_s=most_s)


@asynccontextmanager
async def tablespace(server: LocalPostgres, name: str, disk: Path) -> AsyncIterator[None]:
    """A tablespace on a disk, gone on leaving with all databases in it."""
    async with connected(server.database_url("postgres")) as session:
        await session.execute(f"CREATE TABLESPACE {name} LOCATION '{disk}'")
    try:
        yield
    finally:
        async with connected(server.database_url("postgres")) as session:
            within = await session.fetch(
                "SELECT datname FROM pg_database d JOIN pg_tablespace t ON t.oid = d.dattablespace"
                " WHERE t.spcname = $1",
                name,
            )
            for row in within:
                await server.drop_database(row["datname"])
            await session.execute(f"DROP TABLESPACE {name}")


def _fill(ballast: Path) -> None:
    with ballast.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(_CHUNK)
        except OSError as exc:
            if exc.errno != errno.ENOSPC:
                raise


def _command(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=_COMMAND_S, check=False)


def _unmount(place: Path) -> None:
    # Lazily where a process still has a file open in it: it goes with that process.
    if _command("umount", str(place)).returncode != 0:
        _command("umount", "--lazy", str(place))


def _unmount_left_behind() -> None:
    """Of a run that was killed: its process id is in the name."""
    for place in _PLACE.glob(f"{_PREFIX}*"):
        found = re.match(rf"{_PREFIX}(\d+)-", place.name)
        if found and not psutil.pid_exists(int(found[1])):
            if os.path.ismount(place):
                _unmount(place)
            place.rmdir()
