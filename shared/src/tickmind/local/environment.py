"""What the stack's processes see of the environment, and how they are asked for their health."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from tickmind.local.ports import LOOPBACK

__all__ = ["answers_ok", "child_environment"]

#: Settings a user may have exported that would contradict the ones the stack gives.
OVERRIDDEN = ("TICKMIND_DATABASE_", "TICKMIND_AMQP_", "TICKMIND_EMBEDDING_", "TICKMIND_HEALTH_")

#: libpq's variables (PGHOST, PGPORT, …), some of which asyncpg heeds beside a URL.
LIBPQ = "PG"

#: A health endpoint answers within milliseconds; one that does not is not ready.
HEALTH_TIMEOUT_S = 5.0

#: Bytes from which glibc gives memory back as soon as it is free. It raises its own threshold with
#: each large array, and keeps all that a recall index was made with: measured 139 MB instead of
#: 175 in an embedder that has built one 1536 wide. As in services/Dockerfile.
MMAP_THRESHOLD = "1048576"


def child_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with `settings` in place of all that could contradict them."""
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith((*OVERRIDDEN, LIBPQ))
    }
    # A proxy for the outside must not be asked for this machine.
    exempt = ",".join(filter(None, (kept.get("no_proxy"), kept.get("NO_PROXY"), LOOPBACK)))
    return {
        "MALLOC_MMAP_THRESHOLD_": MMAP_THRESHOLD,
        **kept,
        "no_proxy": exempt,
        "NO_PROXY": exempt,
        "PYTHONUNBUFFERED": "1",
        **settings,
    }


async def answers_ok(port: int, path: str) -> bool:
    """Whether GET on a loopback port is answered with 200."""
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                request = f"GET {path} HTTP/1.1\r\nHost: {LOOPBACK}\r\nConnection: close\r\n\r\n"
                writer.write(request.encode())
                status = (await reader.readline()).split()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return len(status) > 1 and status[1] == b"200"
