"""What is paid for twice: nothing that is embedded, nothing that another holds, little in a crash.

A process that is killed by a signal: tests/integration, test_embedder_service.py.
"""

from __future__ import annotations

import pytest
from sqlalchemy import text

from tests.fleet import finished, fleet, make_impatient, promises_kept
from tests.remembering import counted, embedder_settings, leases_run_out, remember
from tests.running import eventually
from tickmind.database import Database
from tickmind.local.provider.faults import Hang
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.running import Provider
from tickmind.local.provider.triggers import Next
from tickmind.settings import DatabaseSettings
from tickmind.store.budget import usage

TEXTS = [f"text number {i}" for i in range(40)]
BATCH = 5
#: It is renewed each second; a machine that takes two from us for others would end it.
LEASE_S = 3.0


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    make_impatient(monkeypatch)


async def test_text_that_is_embedded_is_never_sent_again(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """Said by others, in other worlds, after a restart, and many times at once."""
    settings = embedder_settings(database_settings, provider.base_url, embedding_max_inputs=BATCH)
    await remember(database, TEXTS * 3)
    async with fleet(settings, replicas=3):
        await finished(database)
        await remember(database, TEXTS, agent="bob", tick=2)
        await finished(database)
    async with fleet(settings):
        await remember(database, [*TEXTS, "and one that is new"], world="another town")
        await finished(database)

    assert provider.ledger.billed_texts == dict.fromkeys([*TEXTS, "and one that is new"], 1)
    assert provider.ledger.totals().texts_sent == len(TEXTS) + 1
    await promises_kept(database, [*TEXTS * 5, "and one that is new"])


async def test_text_that_one_holds_is_sent_by_no_other(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """Longer than the lease, which is renewed; and remembered again meanwhile."""
    provider.faults.add(Hang(), Next(requests=2))
    settings = embedder_settings(
        database_settings,
        provider.base_url,
        embedding_max_inputs=BATCH,
        embedder_lease_s=LEASE_S,
        embedder_concurrency=1,
    )
    await remember(database, TEXTS)
    leases: set[object] = set()

    async def renewals() -> int:
        await remember(database, TEXTS, tick=2)
        async with database.reading() as session:
            found = await session.execute(text("SELECT min(lease_until) FROM embedding_job"))
            leases.add(found.scalar_one())
        return len(leases)

    async with fleet(settings, replicas=4):
        await provider.ledger.wait_until(lambda ledger: ledger.totals().texts_billed == len(TEXTS))
        await eventually(
            lambda: counted(database, "embedding_job"), lambda held: held == 2 * BATCH, what="held"
        )
        # Three to a lease: it would have run out.
        await eventually(renewals, lambda times: times >= 5, what="renewed")
        provider.faults.release()
        await finished(database)

    assert {provider.ledger.times_sent(text) for text in TEXTS} == {1}
    assert await counted(database, "recall_index") == await counted(database, "memory")


async def test_crash_buys_again_at_most_what_was_in_flight(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """case 26: its leases run out, and another finishes."""
    provider.faults.add(Hang(), Next(requests=2, after=3))
    settings = embedder_settings(
        database_settings,
        provider.base_url,
        embedding_max_inputs=BATCH,
        embedder_concurrency=2,
        embedding_limits="1000 texts/s",
    )
    await remember(database, TEXTS)
    async with fleet(settings) as (doomed,):
        await provider.ledger.wait_until(lambda ledger: ledger.totals().texts_billed == 5 * BATCH)
        await eventually(
            lambda: counted(database, "embedding"), lambda n: n == 3 * BATCH, what="stored"
        )
        await doomed.crash()
    assert await counted(database, "embedding") == 3 * BATCH
    await leases_run_out(database)
    async with fleet(settings, replicas=2):
        await finished(database)

    times = sorted(provider.ledger.times_billed(text) for text in TEXTS)
    assert times == [1] * (len(TEXTS) - 2 * BATCH) + [2] * (2 * BATCH)
    await promises_kept(database, TEXTS)


@pytest.mark.parametrize("limits", ["", "1000 texts/s"], ids=["unlimited", "limited"])
async def test_answer_is_not_lost_to_a_database_that_goes_away_meanwhile(
    database: Database, database_settings: DatabaseSettings, provider: Provider, limits: str
) -> None:
    """Neither by the store nor by the budget, which is told later."""
    provider.options = ProviderOptions(native_width=64)
    provider.faults.add(Hang(), Next(requests=2))
    settings = embedder_settings(
        database_settings,
        provider.base_url,
        embedding_max_inputs=len(TEXTS) // 2,
        embedding_limits=limits,
    )
    await remember(database, TEXTS)
    async with fleet(settings):
        await provider.ledger.wait_until(lambda ledger: ledger.totals().texts_billed == len(TEXTS))
        async with database.reading() as session:
            await session.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE"
                    " datname = current_database() AND application_name = 'test-embedder'"
                )
            )
        provider.faults.release()
        await finished(database)

    assert provider.ledger.billed_texts == dict.fromkeys(TEXTS, 1)
    await promises_kept(database, TEXTS)
    async with database.reading() as session:
        (booked,) = await usage(session)
    assert (booked.calls, booked.texts) == (2, len(TEXTS))
    assert booked.tokens == provider.ledger.totals().tokens_billed
