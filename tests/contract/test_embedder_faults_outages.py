"""What embedders make of a provider that breaks down, hangs, goes away and comes back.

Worker processes that are killed in the middle of a batch: tests/integration,
test_embedder_service.py.
"""

from __future__ import annotations

import pytest

from tests.fleet import called_early, finished, fleet, make_impatient, promises_kept
from tests.remembering import counted, embedder_settings, remember
from tests.running import eventually
from tickmind.database import Database
from tickmind.local.provider.faults import Drip, Fault, Hang, Outage, Status, Truncate
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.running import Provider
from tickmind.local.provider.triggers import Always, Containing, EveryNth, Next, RandomShare
from tickmind.settings import DatabaseSettings
from tickmind.store.budget import usage

TEXTS = [f"text number {i}" for i in range(40)]
BATCH = 10
POISON = "the poison text"
#: Of what gives no answer in time. A call that passes takes a hundredth of it: one that a busy
#: machine makes as slow is paid for twice.
TIMEOUT_S = 1.0

#: Whether an answer may have been paid for although it never came.
BREAKDOWNS: list[tuple[str, Fault, bool]] = [
    ("500", Status(code=500), False),
    ("502-page", Status(code=502, body="html"), False),
    ("503-gemini", Status(code=503, body="gemini"), False),
    ("504-empty", Status(code=504, body="empty"), False),
    ("529", Status(code=529, body="text"), False),
    ("outage-503", Outage(how="503"), False),
    ("reset", Outage(how="reset"), False),
    ("truncated-reset", Truncate(share=0.5, how="reset"), True),
    ("truncated-close", Truncate(share=0.9, how="close"), True),
    ("headers-only", Truncate(share=0.0, how="close"), True),
    ("hang", Hang(), True),
    ("drip", Drip(seconds=5.0, chunks=50), True),
]


def timeout_s(fault: Fault) -> float:
    """An answer that nobody waited for would be paid for twice: where it comes, it is awaited."""
    return TIMEOUT_S if isinstance(fault, Hang | Drip) else 10


def each(*, but: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    chosen = [row for row in BREAKDOWNS if row[0] not in but]
    return pytest.mark.parametrize(
        ("fault", "paid"), [row[1:] for row in chosen], ids=[row[0] for row in chosen]
    )


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    make_impatient(monkeypatch)


@each()
async def test_backlog_drains_unaided_once_the_provider_is_back(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    fault: Fault,
    paid: bool,
) -> None:
    """case 29: calls while down are few and small, and nobody is charged for it."""
    provider.faults.add(fault, Always())
    settings = embedder_settings(
        database_settings,
        provider.base_url,
        embedding_max_inputs=BATCH,
        embedding_timeout_s=timeout_s(fault),
    )
    await remember(database, TEXTS)
    async with fleet(settings, replicas=2) as replicas:
        await provider.ledger.wait_until(lambda ledger: ledger.totals().calls >= 14)
        totals = provider.ledger.totals()
        # Two callers each of two replicas come with a batch; then it is one text at a time.
        assert totals.texts_sent <= 2 * 2 * BATCH + totals.calls
        for replica in replicas:
            await eventually(replica.fault, lambda told: told is not None, what="told")
        assert await counted(database, "embedding") == 0
        assert await counted(database, "embedding_job WHERE attempts > 1") == 0
        provider.faults.clear()
        provider.faults.release()
        await finished(database)
        for replica in replicas:
            await eventually(replica.fault, lambda told: told is None, what="ready")

    await promises_kept(database, TEXTS)
    billed = sum(provider.ledger.times_billed(text) for text in TEXTS)
    assert billed <= len(TEXTS) + (totals.texts_sent + 2 if paid else 0)


@each(but=("hang", "drip"))
async def test_breakdowns_now_and_then_lose_nothing(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    fault: Fault,
    paid: bool,
) -> None:
    provider.faults.add(fault, RandomShare(share=0.3, seed=4))
    settings = embedder_settings(
        database_settings,
        provider.base_url,
        embedding_max_inputs=BATCH,
        embedder_max_attempts=20,
    )
    await remember(database, TEXTS)
    async with fleet(settings, replicas=2):
        await finished(database)

    await promises_kept(database, TEXTS)
    if not paid:
        assert {provider.ledger.times_billed(text) for text in TEXTS} == {1}


async def test_bursts_of_503_with_a_time_told_are_waited_out_by_all(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """A Retry-After on a 503 is a telling like any."""
    provider.options = ProviderOptions(native_width=64, latency_s=0.02)
    provider.faults.add(Status(code=503, headers={"retry-after": "1"}), Next(after=2))
    settings = embedder_settings(database_settings, provider.base_url, embedding_max_inputs=5)
    await remember(database, TEXTS)
    async with fleet(settings, replicas=3) as replicas:
        await finished(database)

    (refused,) = (call for call in provider.ledger.calls if call.status == 503)
    assert called_early(replicas, refused, wait_s=1) == []
    await promises_kept(database, TEXTS)


@each(but=("529", "504-empty", "503-gemini"))
async def test_text_that_breaks_its_calls_is_parked_alone(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    fault: Fault,
    paid: bool,
) -> None:
    """case 13: its neighbours are embedded, in bounded calls."""
    provider.faults.add(fault, Containing(substring="poison"))
    settings = embedder_settings(
        database_settings,
        provider.base_url,
        embedding_max_inputs=BATCH,
        embedding_timeout_s=timeout_s(fault),
        embedder_max_attempts=2,
    )
    await remember(database, [*TEXTS[:15], POISON])
    async with fleet(settings, replicas=2):
        await finished(database)

    await promises_kept(database, [*TEXTS[:15], POISON], parked={POISON: "the embedding API"})
    assert provider.ledger.times_sent(POISON) <= 16
    if not paid:
        assert {provider.ledger.times_billed(text) for text in TEXTS[:15]} == {1}


async def test_answer_that_comes_after_we_gave_up_is_paid_twice_at_most_and_booked(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    provider.faults.add(Hang(seconds=2 * TIMEOUT_S), Next(requests=2))
    settings = embedder_settings(
        database_settings,
        provider.base_url,
        embedding_max_inputs=BATCH,
        embedding_timeout_s=TIMEOUT_S,
        embedder_concurrency=2,
        embedding_limits="1000 calls/s",
    )
    await remember(database, TEXTS)
    async with fleet(settings):
        await finished(database)

    times = [provider.ledger.times_billed(text) for text in TEXTS]
    assert max(times) == 2
    assert times.count(2) <= 2 * BATCH
    async with database.reading() as session:
        (booked,) = await usage(session)
    totals = provider.ledger.totals()
    assert (booked.calls, booked.texts) == (totals.calls, totals.texts_billed)
    await promises_kept(database, TEXTS)


async def test_slow_answers_within_the_time_out_are_simply_waited_for(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    provider.faults.add(Drip(seconds=0.3, chunks=6), EveryNth(n=2))
    settings = embedder_settings(database_settings, provider.base_url, embedding_max_inputs=BATCH)
    await remember(database, TEXTS)
    async with fleet(settings):
        await finished(database)
    assert provider.ledger.billed_texts == dict.fromkeys(TEXTS, 1)
    await promises_kept(database, TEXTS)


async def test_refused_calls_stand_in_no_bill(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """The calls count, since windows may; their texts and tokens cost nothing."""
    for limits in ("", "1000 calls/s"):
        provider.faults.add(Status(code=500), Next(requests=2))
        provider.faults.add(Status(code=400), Next(requests=3))
        provider.faults.add(Outage(how="503"), Next(requests=2))
        settings = embedder_settings(
            database_settings,
            provider.base_url,
            embedding_max_inputs=BATCH,
            embedding_limits=limits,
            embedding_budget=f"budget {limits}",
        )
        before = provider.ledger.totals()
        texts = [f"{text} {limits}" for text in TEXTS]
        await remember(database, texts)
        async with fleet(settings):
            await finished(database)
        totals = provider.ledger.totals()
        assert totals.texts_sent - before.texts_sent > totals.texts_billed - before.texts_billed
        async with database.reading() as session:
            booked = {one.provider: one for one in await usage(session)}[f"budget {limits}"]
        assert booked.calls == totals.calls - before.calls
        assert booked.texts == totals.texts_billed - before.texts_billed
        assert booked.tokens == totals.tokens_billed - before.tokens_billed


async def test_provider_that_is_not_there_yet_is_waited_for(
    database: Database, database_settings: DatabaseSettings
) -> None:
    """Connections are refused; nobody restarts anything."""
    provider = Provider(ProviderOptions(native_width=64))
    await provider.start()
    await provider.stop()
    settings = embedder_settings(database_settings, provider.base_url, embedding_max_inputs=BATCH)
    await remember(database, TEXTS)
    async with fleet(settings) as (replica,):
        await eventually(
            replica.fault, lambda told: "connection to the embedding API" in str(told), what="told"
        )
        await provider.start()
        try:
            await finished(database)
        finally:
            await provider.stop()
    await promises_kept(database, TEXTS)
