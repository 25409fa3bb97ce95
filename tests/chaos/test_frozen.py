"""Replicas that stop where they stand and go on later, as on a node that swaps or migrates."""

from __future__ import annotations

import signal

from tests.chaos.fleet import SERVICES
from tests.chaos.stack import Stack
from tests.chaos.town import Scenario, town

#: Longer than the town's leases (5 s): what the frozen embedder holds is another's by then.
_FROZEN_S = 8.0


async def test_replicas_that_freeze_and_go_on_harm_nobody(stack: Stack, scenario: Scenario) -> None:
    """One of two replicas of each service, one service after the other, and then all of them: what
    it still believes to hold when it goes on neither doubles nor undoes another's work."""
    async with town(stack, scenario, replicas=dict.fromkeys(SERVICES, 2)) as running:
        firsts = [running.fleet.replicas[service][0] for service in SERVICES]
        for frozen in (*([replica] for replica in firsts), firsts):
            async with running.fault(f"{' and '.join(map(str, frozen))} frozen"):
                for replica in frozen:
                    replica.child.send(signal.SIGSTOP)
                await running.lived(_FROZEN_S)
                for replica in frozen:
                    replica.child.send(signal.SIGCONT)
            await running.recovered()
