"""Replicas whose clock is wrong, and steps."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection

from tests.chaos.fleet import SERVICES, Replica
from tests.chaos.stack import Stack
from tests.chaos.town import Scenario, town
from tickmind.local.ports import LOOPBACK

_OFF_S = 300


async def _ahead(replicas: Sequence[Replica], seconds: float) -> bool:
    """Whether their clocks are so much ahead of ours."""
    found = [await _ahead_s(replica) for replica in replicas]
    return all(abs(ahead_s - seconds) < 10 for ahead_s in found)


async def _ahead_s(replica: Replica) -> float:
    """By how much its clock is ahead of ours, by the Date of its answers."""

    def ask() -> str:
        connection = HTTPConnection(LOOPBACK, replica.port, timeout=10)
        try:
            connection.request("GET", "/livez")
            return connection.getresponse().headers["date"]
        finally:
            connection.close()

    told = parsedate_to_datetime(await asyncio.to_thread(ask))
    return (told - datetime.now(UTC)).total_seconds()


async def test_clocks_that_are_off_harm_nobody(stack: Stack, scenario: Scenario) -> None:
    """One replica of each service is five minutes ahead, then steps to five minutes behind, and
    back: leases and deadlines are the database's and the sender's, so nobody is the worse for it.
    """
    async with town(stack, scenario) as running:
        off = [
            await running.fleet.add(
                service,
                through=["tests.chaos.skewed"],
                settings={"CHAOS_CLOCK_OFFSET_S": str(_OFF_S)},
            )
            for service in SERVICES
        ]
        # Alone: what it does not answer, nobody does.
        await running.fleet.remove(running.fleet.replicas["retriever"][0])
        async with running.fault("clocks five minutes ahead"):
            await running.lived(8.0)
            assert await _ahead(off, _OFF_S)
        await running.recovered()
        for name, ahead_s in (("behind", -_OFF_S), ("ahead", _OFF_S)):
            async with running.fault(f"clocks step to five minutes {name}"):
                for replica in off:
                    replica.child.send(signal.SIGUSR1)
                await running.lived(3.0)
                assert await _ahead(off, ahead_s)
            await running.recovered()
