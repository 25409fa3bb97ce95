"""RabbitMQ on this machine, for whoever tests at the same time."""

from __future__ import annotations

import asyncio
import fcntl
import os
import tempfile
from pathlib import Path

from tickmind.local.rabbitmq_install import ensure_rabbitmq

__all__ = ["install_rabbitmq"]

_LOCK = Path(tempfile.gettempdir()) / f"tickmind-test-install-{os.getuid()}.lock"


async def install_rabbitmq() -> None:
    """Install it where this machine has none. One process at a time: a package manager serves no
    two, and a server that is half unpacked looks like one."""
    with _LOCK.open("w") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        await ensure_rabbitmq(assume_yes=True, ask=None)


if __name__ == "__main__":
    asyncio.run(install_rabbitmq())
