"""Replicas that come and go under load, as autoscaling has it."""

from __future__ import annotations

from tests.chaos.stack import Stack
from tests.chaos.town import Scenario, town

_MOST = {"embedder": 8, "recorder": 3, "retriever": 3}


async def test_scaling_up_and_down_loses_nothing(stack: Stack, scenario: Scenario) -> None:
    """1 → 8 → 1 embedders, 1 → 3 → 1 recorders and retrievers, one service after the other: each
    replica that goes finishes what it has begun and ends with 0."""
    async with town(stack, scenario) as running:
        for service, most in _MOST.items():
            async with running.fault(f"{service} scaled to {most}"):
                await running.fleet.scale(service, most)
                await running.lived(3.0)
            async with running.fault(f"{service} scaled to 1"):
                await running.fleet.scale(service, 1)
                await running.lived(1.0)
