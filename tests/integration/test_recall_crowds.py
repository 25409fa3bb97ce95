"""Many recalls at once: one embedding call, a pool that is not used up, and nobody starved."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import text

from tests.integration.test_recall_choice import embedded
from tests.remembering import known, remember
from tests.retrieving import body, retriever_settings, retrieving
from tests.running import eventually
from tickmind.database import Database
from tickmind.hashed import hash_embed
from tickmind.local.provider.faults import Hang
from tickmind.local.provider.running import Provider
from tickmind.local.provider.triggers import Always, Containing
from tickmind.settings import DatabaseSettings
from tickmind.store import lexical
from tickmind.store import recall as recall_module
from tickmind.store.spaces import Space, active_generation
from tickmind.store.whom import whom
from tickmind_retriever import handler as handler_module
from tickmind_retriever import ranker as ranker_module
from tickmind_retriever import words as words_module
from tickmind_retriever.chosen import chosen


class Statements:
    """Counts the ranking statements, and how many are under way at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, before: str | None = None) -> None:
        self.all = self.now = self.most = 0
        original = recall_module.rank

        async def watched(session: Any, questions: Any, **options: Any) -> Any:
            self.all += 1
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                if before is not None:
                    await session.execute(text(before))
                return await original(session, questions, **options)
            finally:
                self.now -= 1

        monkeypatch.setattr(ranker_module, "rank", watched)


async def test_thousand_requests_share_a_pool_of_five(
    database: Database, database_settings: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each a world's agent of its own text; statements stay below the pool, all are answered."""
    for number in range(20):
        await embedded(database, [f"fish {number}", "rain"], agent=f"agent {number}")
    statements = Statements(monkeypatch)
    settings = retriever_settings(database_settings, database_pool_size=5)
    pool = Database(settings, application="retriever-under-test")
    async with retrieving(pool, settings) as retriever:
        replies = await asyncio.gather(
            *(
                retriever.recall((f"agent {n % 20}", f"fish {n}"), deadline_ms=60_000)
                for n in range(1000)
            )
        )
        assert pool.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    await pool.dispose()
    assert Counter((a.status, a.reason, a.detail) for r in replies for a in r.replies) == {
        ("ok", None, None): 1000
    }
    assert statements.most <= 4
    assert statements.all < 1000


async def test_small_request_is_not_starved_by_large_ones(
    database: Database, database_settings: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three requests for a thousand agents each are under way, in either manner of ranking."""
    await embedded(database, ["fish", "rain"])
    await embedded(database, ["fish", "rain"], agent="bob")
    async with database.reading() as session:
        bob = (await whom(session, "town", ["bob"], space_id=1)).agents["bob"]
    statements = Statements(monkeypatch, before="SELECT pg_sleep(0.005)")
    ahead: list[int] = []

    async def watched(ask: Any, terms: Any, questions: Any, **options: Any) -> Any:
        before = statements.all
        ranked = await chosen(ask, terms, questions, **options)
        asked_by_bob = bob in {question.agent_id for question in questions}
        if asked_by_bob and not any(task.done() for task in large):
            ahead.append(statements.all - before)
        return ranked

    monkeypatch.setattr(ranker_module, "chosen", watched)
    settings = retriever_settings(database_settings, database_pool_size=3)
    pool = Database(settings, application="retriever-under-test")
    async with retrieving(pool, settings) as retriever:
        large = [
            asyncio.create_task(
                retriever.recall(
                    *[("alice", f"fish {n}") for n in range(1000)], k=k, deadline_ms=60_000
                )
            )
            for k in (5, 5, 4)
        ]

        async def begun() -> int:
            return statements.all

        await eventually(begun, lambda count: count > 10, what="statements")
        for number in range(5):
            reply = await retriever.recall(("bob", f"rain {number}"), deadline_ms=60_000)
            assert reply.replies[0].status == "ok"
        # Each waited for its turn behind a few statements of each request, not behind all 375. A
        # busy machine may be through with these when it comes to the last of the small ones.
        assert ahead
        assert max(ahead) < 25
        for task in large:
            assert {answer.status for answer in (await task).replies} == {"ok"}
    await pool.dispose()


async def test_crowd_looks_for_the_generation_together(
    database: Database, database_settings: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where none is known, as after a start, and where there is none: one looks, and then another
    for all who came meanwhile."""
    await remember(database, ["fish"])
    looks = 0

    async def watched(session: Any) -> Any:
        nonlocal looks
        looks += 1
        return await active_generation(session)

    monkeypatch.setattr(handler_module, "active_generation", watched)
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        asked = [retriever.recall(("alice", "fish"), fallback="text") for _ in range(100)]
        replies = await asyncio.gather(*asked)
        assert looks == 2
    assert {reply.replies[0].status for reply in replies} == {"degraded"}


async def test_requests_within_a_moment_share_one_embedding_call(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What is known of it lets all of them come to their texts at the same moment.
    monkeypatch.setattr(handler_module, "_GENERATION_S", 3600.0)
    space = Space(model="test", dimensions=64)
    await known(database, {}, space)
    await remember(database, ["fish"])
    await known(database, {"fish": hash_embed("fish", 64)}, space)
    settings = retriever_settings(
        database_settings, provider.base_url, embedding_max_inputs=100, retriever_gather_ms=500
    )
    async with retrieving(database, settings) as retriever:
        await retriever.recall(("alice", "warm"))
        before = provider.ledger.totals().calls
        replies = await asyncio.gather(
            *(retriever.recall(("alice", f"market {n}")) for n in range(40))
        )
        assert provider.ledger.totals().calls == before + 1
        await asyncio.gather(*(retriever.recall(("alice", f"market {n}")) for n in range(40)))
        assert provider.ledger.totals().calls == before + 1
    assert {reply.replies[0].status for reply in replies} == {"ok"}


async def test_tick_of_a_hundred_agents_is_answered_in_part_at_the_deadline(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bounded parallel statements; whose vectors are there is answered, the others have their
    reason."""
    space = Space(model="test", dimensions=64)
    await known(database, {}, space)
    for number in range(100):
        await remember(database, ["fish"], agent=f"agent {number}")
    await known(database, {"fish": hash_embed("fish", 64)}, space)
    statements = Statements(monkeypatch)
    settings = retriever_settings(
        database_settings, provider.base_url, embedding_max_inputs=100, database_pool_size=4
    )
    provider.faults.add(Hang(), Containing(substring="slow"))
    pool = Database(settings, application="retriever-under-test")
    async with retrieving(pool, settings) as retriever:
        seen = [(f"agent {n}", f"market {n}") for n in range(60)]
        await retriever.recall(*seen, deadline_ms=60_000)
        slow = [(f"agent {n}", f"slow {n}") for n in range(60, 100)]
        # 60 agents are 8 statements, in 3 places.
        reply = await retriever.recall(*seen, *slow, deadline_ms=5000)
        provider.faults.clear()
        provider.faults.release()
    await pool.dispose()
    told = [(answer.status, answer.reason) for answer in reply.replies]
    assert told == [("ok", None)] * 60 + [("empty", "deadline")] * 40
    assert statements.most <= 3


async def test_running_statement_is_gone_after_the_deadline(
    database: Database, database_settings: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that computes, not one that waits for a lock: PostgreSQL itself ends it."""
    await embedded(database, ["fish"])
    busy = "SELECT count(*) FROM generate_series(1, 3000000000) AS n WHERE n % 7 = 8"
    Statements(monkeypatch, before=busy)
    settings = retriever_settings(database_settings, database_pool_size=3)
    pool = Database(settings, application="retriever-under-test")
    under_way = text(
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'active'"
        " AND application_name = 'retriever-under-test' AND query LIKE '%generate_series%'"
    )

    async def running() -> int:
        async with database.reading() as session:
            return int((await session.execute(under_way)).scalar_one())

    async with retrieving(pool, settings) as retriever:
        seen = 0
        while not seen:  # a busy machine may come to it only when its time is over
            asking = asyncio.create_task(retriever.recall(("alice", "rain"), deadline_ms=2000))
            while not seen and not asking.done():
                seen = await running()
            reply = await asking
            assert reply.replies[0].reason == "deadline"
        await eventually(running, lambda count: count == 0, what="its end")
    await pool.dispose()


async def test_request_that_waited_is_refused_at_once_where_answers_take_longer(
    database: Database, database_settings: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that did not wait is begun, however little time it has."""
    await embedded(database, ["fish", "rain"])
    Statements(monkeypatch, before="SELECT pg_sleep(0.3)")
    async with retrieving(database, retriever_settings(database_settings)) as retriever:

        def shed() -> float | None:
            return retriever.registry.get_sample_value("tickmind_recalls_shed_total")

        for _ in range(10):
            await retriever.recall(("alice", "fish"))
        under_way = asyncio.create_task(retriever.recall(("alice", "fish")))
        await asyncio.sleep(0)
        asked = body(("alice", "fish"), deadline_ms=800)
        late = await retriever.handler.recall(asked, age_s=0.7)
        assert late is not None
        assert late.replies[0].reason == "deadline"
        assert shed() == 1
        assert not under_way.done()
        await retriever.recall(("alice", "fish"), deadline_ms=50)
        assert shed() == 1
        assert (await under_way).replies[0].status == "ok"


@pytest.mark.parametrize("late", ["vectors", "tick"])
async def test_what_came_late_from_elsewhere_is_ranked_in_the_time_that_is_left(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    monkeypatch: pytest.MonkeyPatch,
    late: str,
) -> None:
    """An embedding API that takes most of the time, or a tick that is waited for, is no overload:
    agents that have to wait for a place at the database meanwhile are answered, too."""
    space = Space(model="test", dimensions=64)
    await known(database, {}, space)
    for number in range(40):
        await remember(database, ["fish"], agent=f"agent {number}")
    await known(database, {"fish": hash_embed("fish", 64)}, space)
    settings = retriever_settings(
        database_settings, provider.base_url, embedding_max_inputs=100, database_pool_size=3
    )
    monkeypatch.setattr(handler_module, "_SPARE_SHARE", 0.5)  # of 12 s: whoever is late is past it
    options: dict[str, Any] = {"deadline_ms": 12_000}
    if late == "tick":
        options |= {"wait_for_tick": 42, "wait_ms": 6300}
    Statements(monkeypatch, before="SELECT pg_sleep(0.02)")
    pool = Database(settings, application="retriever-under-test")
    async with retrieving(pool, settings) as retriever:
        await retriever.recall(*[(f"agent {n}", f"rain {n}") for n in range(40)])
        if late == "vectors":
            provider.faults.add(Hang(), Always())
            asyncio.get_running_loop().call_later(6.3, provider.faults.release)
        reply = await retriever.recall(
            *[(f"agent {n}", f"rain {n}" if late == "tick" else f"fish {n}") for n in range(40)],
            **options,
        )
    await pool.dispose()
    told = [(answer.status, answer.reason, answer.detail) for answer in reply.replies]
    assert told == [("ok", None, None)] * 40


async def test_small_request_is_not_kept_waiting_by_the_words_of_a_large_one(
    database: Database, database_settings: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words have a fourth of the places, and an observation is ranked once its words are known."""
    await embedded(database, ["fish", "rain"])
    looked = 0
    original = lexical.find

    async def watched(session: Any, questions: Any, **options: Any) -> Any:
        nonlocal looked
        looked += 1
        await session.execute(text("SELECT pg_sleep(0.02)"))
        return await original(session, questions, **options)

    async def looks() -> int:
        return looked

    monkeypatch.setattr(words_module, "find", watched)
    settings = retriever_settings(database_settings, database_pool_size=3)
    pool = Database(settings, application="retriever-under-test")
    async with retrieving(pool, settings) as retriever:
        seen = [("alice", f"fish {n}") for n in range(1000)]
        large = asyncio.create_task(retriever.recall(*seen, deadline_ms=60_000))
        await eventually(looks, lambda count: count > 3, what="words")
        before = looked
        reply = await retriever.recall(("alice", "rain"), deadline_ms=60_000)
        assert reply.replies[0].status == "ok"
        # Of 125.
        assert looked - before < 50
        assert not large.done()
        assert {answer.status for answer in (await large).replies} == {"ok"}
    await pool.dispose()
