"""What /readyz of a replica says, and waiting for it."""

from __future__ import annotations

import asyncio
import json

from tests.chaos.fleet import Fleet, Replica
from tests.running import eventually
from tickmind.local.ports import LOOPBACK

__all__ = ["faults_of", "until_all_ready", "until_all_unready", "until_unready"]

#: A check may take 3 s, and several go on at once.
_ANSWER_S = 10.0
#: The longest until a fault shows: a lost connection is noticed at once, and told by the next look.
_SHOWS_S = 15.0


async def faults_of(replica: Replica) -> dict[str, str]:
    """Which parts /readyz names, each with its sentence; none: it is ready."""
    request = f"GET /readyz HTTP/1.1\r\nHost: {LOOPBACK}\r\nConnection: close\r\n\r\n"
    async with asyncio.timeout(_ANSWER_S):
        reader, writer = await asyncio.open_connection(LOOPBACK, replica.port)
        try:
            writer.write(request.encode())
            answer = await reader.read()
        finally:
            writer.close()
    head, body = answer.split(b"\r\n\r\n", 1)
    told = json.loads(body)
    assert (b" 200 " in head.splitlines()[0]) == (not told["faults"]), head
    faults: dict[str, str] = told["faults"]
    return faults


async def until_unready(replica: Replica, *parts: str, saying: str = "") -> dict[str, str]:
    """Wait until a replica's /readyz names one of `parts`, and no other, with these words; what it
    says."""
    return await eventually(
        lambda: faults_of(replica),
        lambda faults: (
            bool(faults) and set(faults) <= set(parts) and saying in " ".join(faults.values())
        ),
        what=f"{replica} unready for {' or '.join(parts)} alone",
        timeout_s=_SHOWS_S,
    )


async def until_all_unready(fleet: Fleet, *parts: str) -> None:
    """Wait until every replica's does."""
    await asyncio.gather(*(until_unready(replica, *parts) for replica in fleet.all))


async def until_all_ready(fleet: Fleet) -> None:
    """Wait until nobody has a fault to tell."""
    for replica in fleet.all:
        await eventually(
            lambda replica=replica: faults_of(replica),  # type: ignore[misc]
            lambda faults: not faults,
            what=f"what {replica} lacks",
        )
