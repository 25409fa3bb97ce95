"""Faults of the network, at a door between a service and a server."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from tests.chaos.lasting import MOST_S, lasting
from tests.proxy import Door, Weather

__all__ = [
    "network_cuts",
    "network_deserts",
    "network_refuses",
    "network_silent",
    "network_slow",
    "slow",
]


def slow(source: random.Random) -> Weather:
    """A bad day between two zones: a tenth of a second and more for each piece, 1 MB/s."""
    return Weather(latency_s=0.08, jitter_s=0.04, bytes_per_s=1e6, source=source)


def network_slow(
    *doors: Door, weather: Weather, most_s: float = MOST_S
) -> AbstractAsyncContextManager[None]:
    """Everything arrives, late."""

    async def change(to: Weather | None) -> None:
        for opened in doors:
            opened.weather = to

    return lasting(lambda: change(weather), lambda: change(None), most_s=most_s)


def network_silent(*doors: Door, most_s: float = MOST_S) -> AbstractAsyncContextManager[None]:
    """Nothing arrives and nobody is told: connections stay open, newcomers wait."""

    async def hold() -> None:
        for opened in doors:
            opened.hold()

    async def release() -> None:
        for opened in doors:
            opened.release()

    return lasting(hold, release, most_s=most_s)


def network_refuses(*doors: Door, most_s: float = MOST_S) -> AbstractAsyncContextManager[None]:
    """Connections are reset, newcomers refused."""

    async def shut() -> None:
        for opened in doors:
            await opened.shut()

    async def unlock() -> None:
        for opened in doors:
            await opened.unlock()

    return lasting(shut, unlock, most_s=most_s)


def network_deserts(*doors: Door, most_s: float = MOST_S) -> AbstractAsyncContextManager[None]:
    """Half-open: the servers have lost the connections there are, the services still believe in
    them, at the longest to the end of the block. Newcomers are served."""

    async def desert() -> None:
        for opened in doors:
            opened.desert()

    async def cut() -> None:
        for opened in doors:
            opened.cut_deserted()

    return lasting(desert, cut, most_s=most_s)


@asynccontextmanager
async def network_cuts(
    *doors: Door, source: random.Random, pauses_s: tuple[float, float], most_s: float = MOST_S
) -> AsyncIterator[list[float]]:
    """Every connection is reset again and again, after pauses drawn between two lengths in
    seconds; the pauses so far."""
    pauses: list[float] = []

    async def cut() -> None:
        while True:
            pauses.append(source.uniform(*pauses_s))
            await asyncio.sleep(pauses[-1])
            for opened in doors:
                await opened.cut()

    async with asyncio.timeout(most_s):
        cutting = asyncio.create_task(cut())
        try:
            yield pauses
        finally:
            cutting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await cutting
