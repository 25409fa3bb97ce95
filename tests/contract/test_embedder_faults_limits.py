"""What embedders make of limits: a 429 in whatever words, quotas, and limits that are kept."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace

import pytest

from tests.fleet import (
    called_early,
    came_back,
    finished,
    fleet,
    make_impatient,
    promises_kept,
)
from tests.remembering import counted, embedder_settings, remember
from tests.running import eventually
from tickmind.budget import GUARD_S
from tickmind.database import Database
from tickmind.local.provider.faults import Body, Throttle
from tickmind.local.provider.limits import Limit, sub_window
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.running import Provider
from tickmind.local.provider.triggers import Always, Next
from tickmind.settings import DatabaseSettings
from tickmind.store.budget import usage

TEXTS = [f"the market sells fish {i}" for i in range(60)]
BATCH = 5


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    make_impatient(monkeypatch)


#: How a 429 says when to come back, and whether that is understood.
STYLES: list[tuple[str, Throttle, bool]] = [
    ("seconds", Throttle(header="seconds", retry_after_s=1), True),
    ("ms", Throttle(header="ms", retry_after_s=0.6), True),
    ("both", Throttle(header="both", retry_after_s=0.6), True),
    ("http-date", Throttle(header="http-date", retry_after_s=0.5), True),
    ("gemini-array", Throttle(header="none", body="gemini", retry_after_s=0.6), True),
    ("gemini-object", Throttle(header="none", body="gemini-object", retry_after_s=0.6), True),
    ("past-date", Throttle(header="past-date"), False),
    ("negative", Throttle(header="negative"), False),
    ("garbage", Throttle(header="garbage"), False),
    ("none", Throttle(header="none"), False),
    ("html", Throttle(header="none", body="html"), False),
    ("empty", Throttle(header="none", body="empty"), False),
]


@pytest.mark.parametrize(
    ("throttle", "told", "limits"),
    [
        *((throttle, told, "") for _, throttle, told in STYLES),
        *((throttle, told, "600 texts/s") for _, throttle, told in STYLES[:2]),
    ],
    ids=[*(name for name, _, _ in STYLES), *(f"limited-{name}" for name, _, _ in STYLES[:2])],
)
async def test_no_replica_calls_before_the_time_one_was_told(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    throttle: Throttle,
    told: bool,
    limits: str,
) -> None:
    """case 33: told in any words or in none; the batch stays a batch, and nobody is charged."""
    provider.options = ProviderOptions(native_width=64, latency_s=0.02)
    provider.faults.add(throttle, Next(after=4))
    settings = embedder_settings(
        database_settings, provider.base_url, embedding_max_inputs=BATCH, embedding_limits=limits
    )
    await remember(database, TEXTS)
    async with fleet(settings, replicas=3) as replicas:
        await provider.ledger.wait_until(lambda ledger: ledger.totals().rejections >= 1)
        assert await counted(database, "embedding_job WHERE attempts > 1") == 0
        await finished(database)

    (refused,) = (call for call in provider.ledger.calls if call.status == 429)
    assert (refused.retry_after_s is not None) == told
    if refused.retry_after_s is not None:
        assert called_early(replicas, refused, wait_s=refused.retry_after_s) == []
    assert provider.ledger.billed_texts == dict.fromkeys(TEXTS, 1)
    await promises_kept(database, TEXTS)


async def test_replicas_come_back_one_after_the_other(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """case 33: Retry-After, three replicas: none calls earlier, and not all of them at once."""
    draws = itertools.cycle([0.1, 0.9])
    drawn = SimpleNamespace(random=lambda: next(draws))
    monkeypatch.setattr("tickmind.budget.random", drawn)  # of those who wait for the others' block
    monkeypatch.setattr("tickmind_embedder.worker._SPREAD", 0.0)
    provider.options = ProviderOptions(native_width=64, latency_s=0.4)
    # So long that between two draws there is more than a busy machine takes from all of them.
    wait_s = 5
    provider.faults.add(Throttle(header="seconds", retry_after_s=wait_s), Next(after=6))
    settings = embedder_settings(
        database_settings,
        provider.base_url,
        embedding_max_inputs=BATCH,
        embedder_concurrency=1,
    )
    await remember(database, [*TEXTS, *(f"{text}, too" for text in TEXTS)])
    async with fleet(settings, replicas=3) as replicas:
        await finished(database)

    (refused,) = (call for call in provider.ledger.calls if call.status == 429)
    first, _, third = came_back(replicas, refused)[:3]
    assert first >= wait_s
    assert third - first >= 0.1
    assert third <= wait_s * 1.5


SPENT = "the embedding quota is used up: raise it at the provider, or wait"


@pytest.mark.parametrize("body", ["openai", "gemini", "gemini-object"])
@pytest.mark.parametrize("quota", ["day", "insufficient"])
async def test_spent_quota_pauses_all_and_is_told(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    body: Body,
    quota: str,
) -> None:
    """Whatever RetryInfo says of a second: it is the day, or money, and a person may look."""
    spent = provider.faults.add(
        Throttle(header="none", body=body, quota=quota, retry_after_s=0.01),  # type: ignore[arg-type]
        Always(),
    )
    settings = embedder_settings(
        database_settings, provider.base_url, embedding_max_inputs=BATCH, embedder_concurrency=2
    )
    await remember(database, TEXTS)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with fleet(settings, replicas=2) as replicas:
        await provider.ledger.wait_until(lambda ledger: ledger.totals().rejections >= 6)
        for replica in replicas:
            await eventually(replica.fault, lambda told: told == SPENT, what="told")
        provider.faults.remove(spent)
        spent_s = loop.time() - begun
        rejections = provider.ledger.totals().rejections
        await finished(database)
        for replica in replicas:
            await eventually(replica.fault, lambda told: told is None, what="ready")

    # Two replicas of two callers run into it at once; then somebody tries every 0.3 s.
    assert rejections <= 4 + 4 * spent_s / 0.3
    await promises_kept(database, TEXTS)


async def test_rejections_without_end_are_met_with_few_calls(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """No wait is told: ours doubles, for all replicas."""
    provider.faults.add(Throttle(header="none"), Always())
    settings = embedder_settings(
        database_settings, provider.base_url, embedding_max_inputs=BATCH, embedder_concurrency=1
    )
    await remember(database, TEXTS)
    begun = asyncio.get_running_loop().time()
    async with fleet(settings, replicas=3):
        await provider.ledger.wait_until(lambda ledger: ledger.totals().rejections >= 14)
        took_s = asyncio.get_running_loop().time() - begun
        assert await counted(database, "embedding_job WHERE attempts > 1") == 0
        provider.faults.clear()
        await finished(database)
    # Each of three: after 0.05, 0.1 and then 0.2 s at the earliest.
    assert took_s >= 0.05 + 0.1 + 0.2
    await promises_kept(database, TEXTS)


SLIDING = Limit(unit="text", amount=30, window_s=1)
#: What the provider enforces, and the same as the operator writes it.
ENFORCED: list[tuple[str, tuple[Limit, ...], str]] = [
    ("texts-sliding", (SLIDING,), "30 texts/1s"),
    ("texts-fixed", (Limit(unit="text", amount=30, window_s=1, algorithm="fixed"),), "30 texts/s"),
    (
        "texts-bucket",
        (Limit(unit="text", amount=30, window_s=1, algorithm="bucket"),),
        "30 texts/s",
    ),
    ("calls-sliding", (Limit(unit="call", amount=6, window_s=1),), "6 calls/s"),
    ("calls-fixed", (Limit(unit="call", amount=6, window_s=1, algorithm="fixed"),), "6 calls/s"),
    ("tokens-sliding", (Limit(unit="token", amount=250, window_s=1),), "250 tokens/s"),
    ("sub-window", (SLIDING, sub_window(SLIDING, 0.4)), "30 texts/s, 12 texts/0.4s"),
    (
        "all",
        (
            SLIDING,
            Limit(unit="call", amount=8, window_s=1, algorithm="fixed"),
            Limit(unit="token", amount=300, window_s=1, algorithm="bucket"),
        ),
        "30 texts/s, 8 calls/s, 300 tokens/s",
    ),
]


@pytest.mark.parametrize(
    ("enforced", "limits"),
    [(enforced, limits) for _, enforced, limits in ENFORCED],
    ids=[name for name, _, _ in ENFORCED],
)
async def test_limits_in_the_settings_are_never_run_into(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    enforced: tuple[Limit, ...],
    limits: str,
) -> None:
    """Three replicas, and not one 429; what was spent stands in the books.

    A busy machine takes longer than the guard between a call and its arrival now and then: it is
    as long here as that may be.
    """
    provider.options = ProviderOptions(native_width=64, limits=enforced)
    settings = embedder_settings(
        database_settings,
        provider.base_url,
        embedding_max_inputs=BATCH,
        embedding_limits=limits,
    )
    texts = [*TEXTS, *(f"{text}, too" for text in TEXTS[:15])]
    await remember(database, texts)
    async with fleet(settings, replicas=3, guard_s=4 * GUARD_S):
        await finished(database)

    totals = provider.ledger.totals()
    assert totals.rejections == 0
    await promises_kept(database, texts)
    async with database.reading() as session:
        (booked,) = await usage(session)
    assert (booked.calls, booked.texts) == (totals.calls, totals.texts_billed)
    assert booked.tokens == totals.tokens_billed
