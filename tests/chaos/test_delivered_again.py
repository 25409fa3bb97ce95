"""Everything delivered several times, in any order, by several engines at once."""

from __future__ import annotations

from tests.chaos.stack import Stack
from tests.chaos.town import Scenario, town

#: How long the town lives so.
_LIVED_S = 25.0


async def test_all_delivered_again_in_any_order_is_remembered_once(
    stack: Stack, scenario: Scenario
) -> None:
    """case 28: each tick three times among eleven others, shuffled, by three engines, into two
    recorders: each event is one memory of everyone concerned."""
    async with (
        town(stack, scenario, replicas={"recorder": 2}, again=2, shuffled=12) as running,
        running.fault("all delivered three times"),
    ):
        await running.lived(_LIVED_S)

    assert running.ledger.deliveries == 3 * running.ledger.events
