"""Recalls and the budget: they take what there is, wait for nothing, tell what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.running import eventually
from tickmind.budget import Budget
from tickmind.database import Database
from tickmind.embedding import Embedder, provider_of
from tickmind.errors import EmbeddingUnavailable, ProviderRefused, TextRefused
from tickmind.limits import Limit
from tickmind.local.provider.faults import Status, Throttle
from tickmind.local.provider.running import Provider
from tickmind.local.provider.triggers import Always, Next
from tickmind.metered import metered_for_queries
from tickmind.settings import EmbeddingSettings
from tickmind.slices import Slices
from tickmind.store import budget as store
from tickmind.store.budget import Usage

BUDGET = "the budget"


@asynccontextmanager
async def querying(
    database: Database, provider: Provider, **options: Any
) -> AsyncIterator[Embedder]:
    """An embedder as a retriever has it."""
    settings = EmbeddingSettings(
        embedding_base_url=provider.base_url,
        embedding_dimensions=64,
        embedding_budget=BUDGET,
        **options,
    )
    metered = metered_for_queries(provider_of(settings), database, settings)
    async with Embedder(settings, metered) as embedder:
        yield embedder


async def spent(database: Database) -> list[Usage]:
    async with database.reading() as session:
        return await store.usage(session)


async def at_once(embedder: Embedder, *texts: str) -> None:
    """Embed queries; fails where that waits for budget, which here takes a minute."""
    async with asyncio.timeout(20):
        await embedder.embed(texts, "query")


@pytest.mark.parametrize("limits", ["", "1000 texts/min, 100 calls/s"])
async def test_queries_are_booked_as_such(
    database: Database, provider: Provider, limits: str
) -> None:
    async with querying(database, provider, embedding_limits=limits) as embedder:
        for i in range(10):
            await at_once(embedder, f"what is at the market {i}", f"who is there {i}")
    totals = provider.ledger.totals()
    assert (totals.calls, totals.texts_billed) == (10, 20)
    assert await spent(database) == [
        Usage(provider=BUDGET, purpose="queries", calls=10, texts=20, tokens=totals.tokens_billed)
    ]


async def test_made_up_vectors_are_not_metered(database: Database) -> None:
    settings = EmbeddingSettings(embedding_provider="hash")
    provider = provider_of(settings)
    assert metered_for_queries(provider, database, settings) is provider


async def test_queries_without_limits_ask_for_nothing(
    database: Database, provider: Provider
) -> None:
    async with querying(database, provider) as embedder:
        await at_once(embedder, "fish")
        async with database.reading() as session:
            assert await store.waiting(session, BUDGET) == 0
    limited = Budget(database, BUDGET, [Limit(amount=1, unit="texts", window_s=600)])
    assert (await limited.reserve([1], elastic=False)).texts == 1


@pytest.mark.parametrize("limits", ["", "1000 texts/min"], ids=["unlimited", "limited"])
async def test_wait_told_to_a_retriever_holds_for_the_fleet(
    database: Database, provider: Provider, limits: str
) -> None:
    """case 33: the recall itself fails at once; embedders and other retrievers do not call."""
    provider.faults.add(Throttle(header="ms", retry_after_s=1.5), Next())
    loop = asyncio.get_running_loop()
    documents = Budget(database, BUDGET, [])
    async with (
        querying(database, provider, embedding_limits=limits) as first,
        querying(database, provider, embedding_limits=limits) as second,
    ):
        with pytest.raises(EmbeddingUnavailable, match="429"):
            await at_once(first, "fish")
        told_at = loop.time()

        async def blocked() -> object:
            async with database.reading() as session:
                return await store.blocked(session, BUDGET)

        await eventually(blocked, lambda found: found is not None, what="blocked")
        for embedder in (first, second):
            # A busy machine comes to the second when the time is over.
            assert not await _passes(embedder) or loop.time() - told_at >= 1.4
        await documents.reserve([1], elastic=False)
        assert loop.time() - told_at >= 1.4
        await eventually(lambda: _passes(first), bool, what="recalls go on")
    assert provider.ledger.early_calls() == []


async def _passes(embedder: Embedder) -> bool:
    try:
        await at_once(embedder, "bread")
    except EmbeddingUnavailable:
        return False
    return True


async def test_wait_told_to_an_embedder_is_heeded_by_retrievers(
    database: Database, provider: Provider
) -> None:
    await Budget(database, BUDGET, []).block(seconds=60, reason="quota")
    for limits in ("", "1000 texts/min"):
        async with querying(database, provider, embedding_limits=limits) as embedder:
            with pytest.raises(EmbeddingUnavailable):
                await at_once(embedder, "fish")
    assert provider.ledger.totals().calls == 0


async def test_recall_waits_for_no_budget(database: Database, provider: Provider) -> None:
    async with querying(database, provider, embedding_limits="4 texts/min") as embedder:
        await at_once(embedder, "a", "b")
        await at_once(embedder, "c", "d")
        for _ in range(3):
            with pytest.raises(EmbeddingUnavailable, match="nothing left for recalls"):
                await at_once(embedder, "e")
        with pytest.raises(EmbeddingUnavailable, match="nothing left for recalls"):
            await at_once(embedder, "a", "b", "c", "d", "e")
    assert provider.ledger.totals().calls == 2


async def test_query_that_is_refused_is_counted_and_not_billed(
    database: Database, provider: Provider
) -> None:
    for limits in ("", "1000 texts/min"):
        provider.faults.add(Status(code=400), Next())
        provider.faults.add(Status(code=401), Next())
        async with querying(database, provider, embedding_limits=limits) as embedder:
            with pytest.raises(TextRefused):
                await at_once(embedder, "fish")
            with pytest.raises(ProviderRefused):
                await at_once(embedder, "fish")
            await at_once(embedder, "fish")
    ((calls, texts),) = [(one.calls, one.texts) for one in await spent(database)]
    assert (calls, texts) == (6, 2)


async def test_rest_of_a_slice_is_given_back(database: Database) -> None:
    """What a busy retriever took and a quiet one does not spend goes to the documents."""
    limits = [Limit(amount=100, unit="texts", window_s=600)]
    slices = Slices(database, BUDGET, limits)
    for _ in range(12):  # the pace of the next slice
        slices.settle(await slices.spend([2]), tokens=3)
    (before,) = await spent(database)

    async def booked() -> tuple[int, int, int]:
        (now,) = await spent(database)
        return now.calls, now.texts, now.tokens

    await eventually(booked, lambda now: now == (12, 12, 36), what="given back")
    assert before.texts > 12
    documents = Budget(database, BUDGET, limits, kept=0.0)
    assert (await documents.reserve([1] * 100, elastic=True)).texts == 88
    await slices.close()


async def test_steady_recalls_ask_the_database_seldom(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    reserve = store.reserve

    async def counting(*args: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        return await reserve(*args, **options)

    monkeypatch.setattr(store, "reserve", counting)
    slices = Slices(database, BUDGET, [Limit(amount=100_000, unit="texts", window_s=600)])
    for _ in range(500):
        slices.settle(await slices.spend([2]), tokens=2)
    await slices.close()
    assert asked <= 12
    (booked,) = await spent(database)
    assert (booked.calls, booked.texts, booked.tokens) == (500, 500, 1000)


async def test_crowd_of_first_recalls_takes_one_slice_after_the_other(
    database: Database, provider: Provider
) -> None:
    """Nothing is spent twice."""
    async with querying(database, provider, embedding_limits="30 texts/min") as embedder:
        results = await asyncio.gather(
            *(embedder.embed([f"query {i}"], "query") for i in range(60)), return_exceptions=True
        )
    refused = [result for result in results if isinstance(result, EmbeddingUnavailable)]
    assert provider.ledger.totals().texts_billed == 60 - len(refused) <= 30
    assert len(refused) <= 45


async def test_rejection_that_names_no_wait_keeps_recalls_from_calling_for_a_while(
    database: Database, provider: Provider
) -> None:
    provider.faults.add(Throttle(header="none"), Always())
    async with querying(database, provider) as embedder:
        for _ in range(20):
            with pytest.raises(EmbeddingUnavailable):
                await at_once(embedder, "fish")
    assert provider.ledger.totals().calls == 1
