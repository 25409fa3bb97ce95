"""The embedding API fails in every way there is, for a while."""

from __future__ import annotations

from sqlalchemy import text

from tests.chaos.stack import Stack
from tests.chaos.town import Scenario, town
from tickmind.local.provider.faults import Fault, Hang, Outage, Status, Throttle, WrongCount
from tickmind.local.provider.triggers import Always

_AWAY_S = 6.0
_WAYS: tuple[Fault, ...] = (
    Outage(how="503"),
    Outage(how="reset"),
    Hang(),
    Throttle(retry_after_s=2.0),
    WrongCount(by=-1),
    Status(code=500, body="html"),
)


async def test_outages_of_the_provider_are_outlived(stack: Stack, scenario: Scenario) -> None:
    """cases 29, 35: whatever the provider does, recalls are answered in time, recording goes on,
    and once it is well the backlog drains by itself and no text has been given up on."""
    async with town(stack, scenario, replicas={"embedder": 2}) as running:
        for way in _WAYS:
            async with running.fault(f"provider: {way.kind}"):
                before = sum(map(len, running.ledger.confirmed.values()))
                rule = running.provider.faults.add(way, Always())
                await running.lived(_AWAY_S)
                running.provider.faults.remove(rule)
                running.provider.faults.release()
                assert sum(map(len, running.ledger.confirmed.values())) > before
            await running.recovered()
        async with running.database.reading() as session:
            parked = (
                await session.execute(text("SELECT count(*) FROM embedding_job WHERE attempts > 1"))
            ).scalar_one()
        assert parked == 0

    assert scenario.told[-1].parked == 0
