"""Services as processes of their own, as Kubernetes runs them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tickmind.settings import DatabaseSettings

__all__ = ["START_S", "asked_to_end", "service_process"]

#: Longest that a process may take to be there. A start is 2 s of a core: of that a machine full of
#: others gives a twentieth.
START_S = 90.0

#: Longest that a service may take to end; well below the 30 s that Kubernetes grants.
_END_S = 20.0


@asynccontextmanager
async def service_process(
    service: str, database: DatabaseSettings, log: Path, **environment: object
) -> AsyncIterator[Process]:
    """`python -m tickmind_<service>` of the provider's model `test`, what it says in `log`; killed
    on leaving if it still runs."""
    assert database.database_url is not None
    told = {
        "TICKMIND_DATABASE_URL": database.database_url.get_secret_value(),
        "TICKMIND_HEALTH_PORT": "0",
        "TICKMIND_HEALTH_HOST": "127.0.0.1",
        "TICKMIND_EMBEDDING_MODEL": "test",
        "TICKMIND_EMBEDDING_DIMENSIONS": "64",
        **{name: str(value) for name, value in environment.items()},
    }
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"tickmind_{service}"),
            env=os.environ | told,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def asked_to_end(process: Process) -> None:
    """Wait until a process has ended: by SIGTERM, and killed where that is not enough."""
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(_END_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
