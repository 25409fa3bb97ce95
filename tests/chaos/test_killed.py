"""SIGKILL of services at random points, many times."""

from __future__ import annotations

import asyncio

import pytest

from tests.chaos.fleet import SERVICES, Replica
from tests.chaos.stack import Stack
from tests.chaos.town import Scenario, Town, town

#: Kills of each of two replicas, one after the other; a round takes some 4 s.
_ROUNDS = 6
#: All processes at once, so often.
_BLACKOUTS = 3


@pytest.mark.parametrize("service", SERVICES)
async def test_replicas_killed_at_random_points_lose_nothing(
    stack: Stack, scenario: Scenario, service: str
) -> None:
    """case 26: two replicas of a service, each killed again and again wherever it stands, at
    times both; they come back under other names, and nothing waits longer than a lease."""
    async with town(stack, scenario, replicas={service: 2}) as running:
        await asyncio.gather(
            *(
                _killed_often(running, replica, chance_seed=place)
                for place, replica in enumerate(running.fleet.replicas[service])
            )
        )

    assert len(running.faults) == 2 * _ROUNDS


async def _killed_often(running: Town, replica: Replica, *, chance_seed: int) -> None:
    # Of its own, so that the times do not depend on who asked first.
    chance = type(running.random)(f"{running.scenario.seed} {replica.service} {chance_seed}")
    for _ in range(_ROUNDS):
        await running.lived(chance.uniform(0.1, 1.5))
        async with running.fault(f"{replica} killed"):
            await replica.kill()
            await running.lived(chance.uniform(0.0, 0.5))
            await running.fleet.start(replica)


async def test_all_processes_killed_at_once_lose_nothing(stack: Stack, scenario: Scenario) -> None:
    """Every process of tickmind at the same moment, as where a node dies."""
    async with town(stack, scenario, replicas=dict.fromkeys(SERVICES, 2)) as running:
        for _ in range(_BLACKOUTS):
            await running.lived(running.random.uniform(0.5, 3.0))
            async with running.fault("all killed"):
                await asyncio.gather(*(replica.kill() for replica in running.fleet.all))
                await running.lived(running.random.uniform(0.0, 1.0))
                await asyncio.gather(
                    *(running.fleet.start(replica) for replica in running.fleet.all)
                )
            await running.recovered()
