"""The network between services, servers, engines and the provider: cut, slow, silent, half-open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from tests.chaos.broken_network import (
    network_cuts,
    network_deserts,
    network_refuses,
    network_silent,
    network_slow,
    slow,
)
from tests.chaos.fleet import SERVICES
from tests.chaos.load import Pace
from tests.chaos.network import Doors
from tests.chaos.readiness import until_all_ready, until_unready
from tests.chaos.stack import Stack
from tests.chaos.town import Scenario, Town, town
from tests.proxy import Door, door
from tickmind.local.ports import LOOPBACK


def _doors(running: Town) -> Doors:
    assert running.doors is not None
    return running.doors


async def test_network_cut_again_and_again(stack: Stack, scenario: Scenario) -> None:
    """Every connection of services and engines is reset at random moments."""
    async with town(stack, scenario, doors=True) as running:
        doors = _doors(running)
        await running.lived(2)
        for name in ("database", "broker", "engines"):
            async with (
                running.fault(f"network to {name} cut"),
                network_cuts(
                    getattr(doors, name), source=running.random, pauses_s=(0.2, 2.0)
                ) as cuts,
            ):
                await running.lived(8)
            assert len(cuts) > 3
        await running.recovered()


async def test_network_refused(stack: Stack, scenario: Scenario) -> None:
    """Nobody gets through for a while, first to the database, then to the broker."""
    async with town(stack, scenario, doors=True) as running:
        doors = _doors(running)
        await running.lived(2)
        async with running.fault("database unreachable"), network_refuses(doors.database):
            for replica in running.fleet.all:
                await until_unready(replica, "database", "store", "space")
        await running.recovered()
        async with running.fault("broker unreachable"), network_refuses(doors.broker):
            for replica in running.fleet.all:
                await until_unready(replica, "broker")
        await running.recovered()
        async with running.fault("engines cut off"), network_refuses(doors.engines):
            await running.lived(5)
        await running.recovered()


async def test_network_slow(stack: Stack, scenario: Scenario) -> None:
    """A tenth of a second for each piece, everywhere: what takes too long is empty in time."""
    async with town(stack, scenario, doors=True) as running:
        doors = _doors(running)
        await running.lived(2)
        weather = slow(running.random)
        async with (
            running.fault("network slow"),
            network_slow(doors.database, doors.broker, doors.engines, weather=weather),
        ):
            await running.lived(20)
        await running.recovered()


async def test_network_silent(stack: Stack, scenario: Scenario) -> None:
    """Nothing passes and nobody is told, for a while."""
    async with town(stack, scenario, doors=True) as running:
        doors = _doors(running)
        await running.lived(2)
        for name in ("database", "broker", "engines"):
            async with running.fault(f"{name} silent"), network_silent(getattr(doors, name)):
                await running.lived(8)
        await running.recovered()
        await until_all_ready(running.fleet)


@pytest.mark.parametrize("name", ["database", "broker", "engines"])
async def test_network_half_open(stack: Stack, scenario: Scenario, name: str) -> None:
    """Connections that the server has lost and we still believe in: noticed by ourselves, by
    missed heartbeats (33 s) and by the bounds of transactions (60 s), with nobody to help."""
    # It takes a minute; what waits by then is to be worked off within the rest of the recovery.
    async with town(stack, scenario, doors=True, pace=Pace(ticks_per_s=1)) as running:
        await running.lived(2)
        async with network_deserts(getattr(_doors(running), name)):
            async with running.fault(f"{name} half-open"):
                pass
            await running.recovered()
        await until_all_ready(running.fleet)
        if name != "database":
            assert max(running.recoveries) < 60


@asynccontextmanager
async def _town_behind_a_door(
    stack: Stack, scenario: Scenario, settings: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Town, Door]]:
    """A town whose services reach the provider through a door."""
    async with door((LOOPBACK, 0)) as api:
        told = {"TICKMIND_EMBEDDING_BASE_URL": f"http://{LOOPBACK}:{api.port}/v1"}
        async with town(stack, scenario, settings=told, begin=False) as running:
            api.server = (LOOPBACK, int(running.provider.url.rpartition(":")[2]))
            await running.fleet.begin(dict.fromkeys(SERVICES, 1))
            running.load.begin()
            yield running, api


async def test_network_to_provider_broken(stack: Stack, scenario: Scenario) -> None:
    """Cut, slow, silent and refused in turn, between embedder and retriever and the embedding API:
    what is published waits, what is asked is answered in time."""
    async with _town_behind_a_door(stack, scenario) as (running, api):
        await running.lived(3)
        async with (
            running.fault("provider cut"),
            network_cuts(api, source=running.random, pauses_s=(0.1, 1.0)),
        ):
            await running.lived(6)
        async with (
            running.fault("provider slow"),
            network_slow(api, weather=slow(running.random)),
        ):
            await running.lived(6)
        async with running.fault("provider silent"), network_silent(api):
            await running.lived(8)
        async with running.fault("provider refuses"), network_refuses(api):
            for replica in running.fleet.replicas["embedder"]:
                await until_unready(replica, "embedding")
        await running.recovered()
        await until_all_ready(running.fleet)
