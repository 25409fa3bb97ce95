"""The fleet's budget: never a call more than allowed, and nobody waits for ever."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text

from tests.remembering import counted
from tickmind import budget as budget_module
from tickmind.budget import Budget, Reserved
from tickmind.database import Database
from tickmind.embedding import provider_of
from tickmind.errors import EmbeddingUnavailable, TextRefused
from tickmind.limits import Limit
from tickmind.local.provider.limits import Limit as Enforced
from tickmind.local.provider.limits import RateLimiter
from tickmind.metered import MeteredProvider
from tickmind.settings import EmbeddingSettings
from tickmind.slices import Slices
from tickmind.store import budget as store

TEN = [10] * 10


async def call(budget: Budget, limiter: RateLimiter, texts: int = 10) -> int:
    """One call as a replica makes it; how many texts it carried. Fails where it is refused."""
    reserved = await budget.reserve([10] * texts, elastic=True)
    admitted = limiter.admit(texts=reserved.texts, tokens=10 * reserved.texts).admitted
    await budget.settle(reserved, tokens=None)
    assert admitted
    return reserved.texts


@pytest.mark.parametrize(
    ("limits", "enforced"),
    [
        (
            (Limit(amount=100, unit="texts", window_s=2),),
            (Enforced(unit="text", amount=100, window_s=2),),
        ),
        (
            (
                Limit(amount=1000, unit="tokens", window_s=2),
                Limit(amount=30, unit="texts", window_s=0.5),
            ),
            (
                Enforced(unit="token", amount=1000, window_s=2),
                Enforced(unit="text", amount=30, window_s=0.5),
            ),
        ),
        (
            (Limit(amount=12, unit="calls", window_s=2),),
            (Enforced(unit="call", amount=12, window_s=2),),
        ),
    ],
    ids=["texts", "tokens and a short window", "calls"],
)
async def test_replicas_together_are_never_refused(
    database: Database, limits: tuple[Limit, ...], enforced: tuple[Enforced, ...]
) -> None:
    limiter = RateLimiter(enforced, clock=asyncio.get_running_loop().time)
    budgets = [Budget(database, "p", limits) for _ in range(3)]

    async def replica(budget: Budget) -> int:
        return sum([await call(budget, limiter) for _ in range(8)])

    sent = await asyncio.gather(*(replica(budget) for budget in budgets))
    assert all(texts > 0 for texts in sent)


async def test_part_of_a_batch_goes_where_the_rest_has_no_room(database: Database) -> None:
    budget = Budget(database, "p", [Limit(amount=16, unit="texts", window_s=60)])
    assert (await budget.reserve(TEN, elastic=True)).texts == 10
    assert (await budget.reserve(TEN, elastic=True)).texts == 6


async def test_first_come_is_first_served(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large batch that came first is not overtaken by small ones that there is room for."""
    monkeypatch.setattr(budget_module, "_LONGEST_SLEEP_S", 0.05)
    budget = Budget(database, "p", [Limit(amount=10, unit="texts", window_s=600)])
    first = await budget.reserve([1] * 6, elastic=False)
    order: list[str] = []

    async def ask(name: str, texts: int) -> None:
        reserved = await budget.reserve([1] * texts, elastic=False)
        order.append(name)
        await budget.give_back(reserved)

    large = asyncio.create_task(ask("large", 10))
    await in_line(database, 1)
    small = asyncio.create_task(ask("small", 1))
    await in_line(database, 2)
    await budget.give_back(first)
    await asyncio.gather(large, small)
    assert order == ["large", "small"]


async def in_line(database: Database, waiting: int) -> None:
    while True:
        async with database.reading() as session:
            if await store.waiting(session, "p") >= waiting:
                return


async def test_who_died_in_line_holds_nobody_up(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place is kept for as long as it may sleep, and a bit."""
    monkeypatch.setattr(budget_module, "_LONGEST_SLEEP_S", 0.05)
    budget = Budget(database, "p", [Limit(amount=10, unit="texts", window_s=600)])
    first = await budget.reserve(TEN, elastic=False)
    dead = asyncio.create_task(budget.reserve(TEN, elastic=False))
    await in_line(database, 1)
    dead.cancel()
    await budget.give_back(first)
    too_long = "provider_ticket WHERE alive_until > clock_timestamp() + interval '6.5 s'"
    assert await counted(database, too_long) == 0
    async with database.writing() as session:
        await session.execute(
            text("UPDATE provider_ticket SET alive_until = clock_timestamp() - interval '1 ms'")
        )
    async with asyncio.timeout(30):
        assert (await budget.reserve(TEN, elastic=False)).texts == 10


async def test_what_no_window_ever_holds_is_told(database: Database) -> None:
    budget = Budget(database, "p", [Limit(amount=50, unit="tokens", window_s=60)])
    with pytest.raises(TextRefused, match="TICKMIND_EMBEDDING_LIMITS"):
        await budget.reserve([60], elastic=True)
    assert (await budget.reserve([10, 60], elastic=True)).texts == 1


async def test_wait_told_to_one_replica_holds_for_all(database: Database) -> None:
    """case 33: a Retry-After is shared; no replica calls earlier, limits or none."""
    loop = asyncio.get_running_loop()
    limited = Budget(database, "p", [Limit(amount=1000, unit="texts", window_s=60)])
    unlimited = Budget(database, "p", [])
    begun = loop.time()
    await limited.block(seconds=0.8, reason="rate_limit")
    await limited.block(seconds=0.1, reason="rate_limit")  # a shorter one takes nothing back
    returned = []

    async def ask(budget: Budget) -> None:
        await budget.reserve([1], elastic=False)
        returned.append(loop.time() - begun)

    await asyncio.gather(ask(limited), ask(unlimited), ask(limited))
    assert min(returned) >= 0.8


async def test_turn_that_is_used_late_is_asked_for_again(database: Database) -> None:
    """Nobody may have told it to stay away when it was given, and somebody has by then; without
    limits, too."""
    loop = asyncio.get_running_loop()
    budget = Budget(database, "p", [], guard_s=0.0)  # each is late
    metered = MeteredProvider(provider_of(EmbeddingSettings(embedding_provider="hash")), budget)
    async with metered.batch(["a text"]):
        told_at = loop.time()
        await Budget(database, "p", []).block(seconds=0.5, reason="rate_limit")
        await metered.call(["a text"])
    assert loop.time() - told_at >= 0.5


async def test_told_to_stop_gives_up_waiting(database: Database) -> None:
    budget = Budget(database, "p", [Limit(amount=1, unit="calls", window_s=600)])
    stop = asyncio.Event()
    budget.stop_with(stop)
    await budget.reserve([1], elastic=False)
    waiting = asyncio.create_task(budget.reserve([1], elastic=False))
    await in_line(database, 1)
    stop.set()
    with pytest.raises(EmbeddingUnavailable, match="stop"):
        async with asyncio.timeout(5):
            await waiting


async def test_call_that_was_not_made_costs_nothing(database: Database) -> None:
    budget = Budget(database, "p", [Limit(amount=10, unit="texts", window_s=600)])
    await budget.give_back(await budget.reserve(TEN, elastic=False))
    async with database.reading() as session:
        assert [(u.calls, u.texts, u.tokens) for u in await store.usage(session)] == [(0, 0, 0)]
    assert (await budget.reserve(TEN, elastic=False)).texts == 10


async def test_books_hold_what_the_provider_counted(database: Database) -> None:
    for limits in ([], [Limit(amount=1000, unit="tokens", window_s=600)]):
        budget = Budget(database, f"p{len(limits)}", limits)
        await budget.settle(await budget.reserve(TEN, elastic=False), tokens=77)
        await budget.close()
    async with database.reading() as session:
        assert [(u.calls, u.texts, u.tokens) for u in await store.usage(session)] == [
            (1, 10, 77),
            (1, 10, 77),
        ]


async def test_estimate_follows_what_the_provider_counts(database: Database) -> None:
    budget = Budget(database, "p", [])
    before = budget.estimate("The market sells fresh fish")
    for _ in range(50):
        reserved = Reserved(id=None, texts=1, tokens=budget.estimate("The market sells fresh fish"))
        await budget.settle(reserved, tokens=3 * before)
    assert budget.estimate("The market sells fresh fish") == pytest.approx(3 * before, rel=0.15)


async def test_documents_leave_a_share_to_queries_once_a_retriever_lives(
    database: Database,
) -> None:
    limits = [Limit(amount=100, unit="texts", window_s=600)]
    slices = Slices(database, "p", limits)
    await slices.spend([1])
    budget = Budget(database, "p", limits)
    taken = await budget.reserve([1] * 100, elastic=True)
    assert taken.texts == 89
    for _ in range(10):
        await slices.spend([1])


async def test_queries_without_budget_fail_at_once(database: Database) -> None:
    limits = [Limit(amount=2, unit="texts", window_s=600)]
    slices = Slices(database, "p", limits)
    await slices.spend([1, 1])
    with pytest.raises(EmbeddingUnavailable, match="nothing left for recalls"):
        await slices.spend([1])


async def test_slice_grows_with_what_is_spent(database: Database) -> None:
    slices = Slices(database, "p", [Limit(amount=10_000, unit="texts", window_s=600)])

    async def reservations() -> int:
        async with database.reading() as session:
            return sum(u.calls for u in await store.usage(session))

    for _ in range(40):
        await slices.spend([1])
    taken = await reservations()
    for _ in range(20):
        await slices.spend([1])
    assert await reservations() - taken <= 40
