"""Recalls while the embedding API is away: told at once, or answered without vectors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.clock import Clock
from tests.remembering import known, remember
from tests.retrieving import Retriever, contents, retriever_settings, retrieving
from tests.running import eventually
from tickmind.database import Database
from tickmind.hashed import hash_embed
from tickmind.local.provider.faults import Fault, Hang, Outage
from tickmind.local.provider.running import Provider
from tickmind.local.provider.triggers import Always, Containing
from tickmind.settings import DatabaseSettings
from tickmind.store import lexical
from tickmind.store import recall as recall_module
from tickmind.store.spaces import Space
from tickmind_retriever import breaker as breaker_module
from tickmind_retriever import fallback as fallback_module
from tickmind_retriever import handler as handler_module
from tickmind_retriever import words as words_module

_SPACE = Space(model="test", dimensions=64)
TOLD = ["Bob sells fish", "I saw rain", "Carol is ill"]


async def _embedded(database: Database, texts: Sequence[str], **options: Any) -> None:
    await known(database, {}, _SPACE)
    await remember(database, texts, **options)
    await known(database, {told: hash_embed(told, 64) for told in texts}, _SPACE)


async def _took(retriever: Retriever, observation: str, **options: Any) -> tuple[Any, float]:
    """The answer, and the seconds it took of what this process had."""
    clock = Clock()
    reply = await retriever.recall(("alice", observation), **options)
    return reply.replies[0], clock.s


@pytest.mark.parametrize("fault", [Hang(), Outage(), Outage(how="reset")], ids=str)
async def test_dead_api_is_waited_for_a_few_times_and_then_no_more(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    fault: Fault,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """case 35: whatever it dies of, its reason is told at once, in the reply and in the metrics;
    recalls of what is known go on; it is found again by itself."""
    monkeypatch.setattr(breaker_module, "_PROBE_FIRST_S", 0.2)
    monkeypatch.setattr(breaker_module, "_PROBE_MOST_S", 0.2)
    monkeypatch.setattr(breaker_module, "_PROBE_S", 0.5)
    await _embedded(database, TOLD)
    settings = retriever_settings(database_settings, provider.base_url)
    async with retrieving(database, settings) as retriever:
        assert (await _took(retriever, "seen before"))[0].status == "ok"
        provider.faults.add(fault, Always())
        for turn in range(3):
            answer, _ = await _took(retriever, f"market {turn}", deadline_ms=600)
            assert (answer.status, answer.reason) in [
                ("empty", "deadline"),
                ("empty", "embedding"),
            ]

        async def refusing() -> bool:
            return retriever.spaces.refusing

        await eventually(refusing, lambda found: found, what="the breaker")
        calls = provider.ledger.totals().texts_sent
        answers = await asyncio.gather(
            *(_took(retriever, f"street {n}", deadline_ms=30_000) for n in range(50))
        )
        assert {answer.reason for answer, _ in answers} == {"embedding"}
        assert all("is tried again by itself" in answer.detail for answer, _ in answers)
        assert max(took_s for _, took_s in answers) < 5
        assert provider.ledger.totals().texts_sent - calls < 50
        assert retriever.counted("empty", "embedding") >= 50
        assert (await _took(retriever, "seen before"))[0].status == "ok"

        provider.faults.clear()
        provider.faults.release()
        await eventually(refusing, lambda found: not found, what="the breaker")
        assert (await _took(retriever, "market 0", deadline_ms=30_000))[0].status == "ok"


async def test_fallback_ranks_what_is_known_without_vectors(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """case 21: pending memories among them, by what is known of them; nothing counts as a match."""
    await _embedded(database, TOLD, tick=[10, 50, 90], importance=[10, 4, 4])
    await remember(database, ["Dan is new"], tick=95, importance=8, kind="conversation")
    await _embedded(database, ["I am Alice"], core=True)
    provider.faults.add(Outage(), Containing(substring="unseen"))
    settings = retriever_settings(database_settings, provider.base_url)
    async with retrieving(database, settings) as retriever:
        (ranked,) = (await retriever.recall(("alice", "market"), fallback="text")).replies
        reply = await retriever.recall(
            ("alice", "unseen"), ("nobody", "unseen"), ("alice", "market"), fallback="text"
        )
        first, nobody, seen_before = reply.replies
        assert seen_before == ranked
        assert (first.status, first.reason) == ("degraded", "embedding")
        assert "503" in (first.detail or "")
        assert [m.content for m in first.memories] == [
            "I am Alice",
            "Bob sells fish",
            "Dan is new",
            "Carol is ill",
            "I saw rain",
        ]
        assert {memory.relevance for memory in first.memories} == {0}
        assert [m.score for m in first.memories[1:]] == pytest.approx(
            [0.1 * 2 ** (-(100 - m.tick) / 500) + 0.02 * m.importance for m in first.memories[1:]]
        )
        assert first.fragment.startswith("You remember:\n- I am Alice\n- Bob sells fish")
        assert (nobody.status, nobody.reason, nobody.fragment) == ("empty", None, "")
        assert (ranked.status, ranked.reason) == ("ok", None)
        assert "Dan is new" in [memory.content for memory in ranked.memories]
        assert retriever.counted("degraded", "embedding") == 1

        options = {"fallback": "text", "kinds": ["conversation"], "as_of_tick": 95}
        assert contents(await retriever.recall(("alice", "unseen"), **options)) == [["Dan is new"]]
        (answer,) = (await retriever.recall(("alice", "unseen"))).replies
        assert (answer.status, answer.reason, answer.memories) == ("empty", "embedding", [])


async def test_words_are_looked_for_once_and_where_they_are_of_use(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the API is known to be away, who asks for no fallback is refused at once: nothing is
    asked of the database for them."""
    await _embedded(database, TOLD)
    looked_for: list[str] = []
    original = lexical.find

    async def watched(session: Any, questions: Any, **options: Any) -> Any:
        looked_for.extend(question.observation for question in questions)
        return await original(session, questions, **options)

    monkeypatch.setattr(words_module, "find", watched)
    settings = retriever_settings(database_settings, provider.base_url)
    async with retrieving(database, settings) as retriever:
        provider.faults.add(Outage(), Always())
        while not retriever.spaces.refusing:
            await retriever.recall(("alice", "unseen"), deadline_ms=60_000)
        looked_for.clear()
        (refused,) = (await retriever.recall(("alice", "fish"), deadline_ms=60_000)).replies
        assert (refused.status, refused.reason) == ("empty", "embedding")
        assert looked_for == []
        for ranking in ("blended", "relevance"):
            options = {"fallback": "text", "ranking": ranking, "deadline_ms": 60_000, "k": 1}
            (answer,) = (await retriever.recall(("alice", "fish"), **options)).replies
            assert (answer.status, answer.reason) == ("degraded", "embedding")
            assert [memory.content for memory in answer.memories] == ["Bob sells fish"]
            assert looked_for == ["fish"]
            looked_for.clear()


async def test_fallback_answers_before_the_deadline_where_the_api_hangs(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Most of the time is kept for ranking: a busy machine may take as long.
    monkeypatch.setattr(handler_module, "_RANKING_SHARE", 0.75)
    monkeypatch.setattr(handler_module, "_RANKING_MOST_S", 1.5)
    await _embedded(database, TOLD)
    provider.faults.add(Hang(), Containing(substring="slow"))
    settings = retriever_settings(database_settings, provider.base_url)
    async with retrieving(database, settings) as retriever:
        reply = await retriever.recall(
            ("alice", "slow"), ("alice", "market"), fallback="text", deadline_ms=2000
        )
        provider.faults.clear()
        provider.faults.release()
    slow, quick = reply.replies
    assert (slow.status, slow.reason) == ("degraded", "deadline")
    assert len(slow.memories) == 3
    assert quick.status in ("ok", "degraded")  # its text shared the call


async def test_fallback_needs_no_embedder_to_have_run(
    database: Database, database_settings: DatabaseSettings
) -> None:
    await remember(database, TOLD)
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        reply = await retriever.recall(("alice", "rain"), ("nobody", "rain"), fallback="text")
    assert [(answer.status, answer.reason) for answer in reply.replies] == [
        ("degraded", "embedding"),
        ("empty", None),
    ]
    assert sorted(contents(reply)[0]) == sorted(TOLD)
    assert (reply.watermarks.recorded, reply.watermarks.embedded) == (1, None)


async def test_fallback_of_a_large_request_is_ranked_in_parts(
    database: Database, database_settings: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done at the deadline is answered then, and others come in between."""
    for number in range(10):
        await remember(database, TOLD, agent=f"agent {number}")
    at_once: list[int] = []
    original = recall_module.rank

    async def watched(session: Any, questions: Any, **options: Any) -> Any:
        at_once.append(len(questions))
        return await original(session, questions, **options)

    monkeypatch.setattr(fallback_module, "rank", watched)
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        reply = await retriever.recall(
            *((f"agent {n % 12}", f"rain {n}") for n in range(100)),
            fallback="text",
            deadline_ms=60_000,
        )
    assert {answer.agent for answer in reply.replies if answer.status == "empty"} == {
        "agent 10",
        "agent 11",
    }
    assert sum(at_once) == sum(answer.status == "degraded" for answer in reply.replies)
    assert max(at_once) <= 16


async def test_fallback_answers_a_thousand_at_once(
    database: Database, database_settings: DatabaseSettings
) -> None:
    for number in range(10):
        await remember(database, TOLD, agent=f"agent {number}")
    settings = retriever_settings(database_settings, database_pool_size=3)
    pool = Database(settings, application="retriever-under-test")
    async with retrieving(pool, settings) as retriever:
        replies = await asyncio.gather(
            *(
                retriever.recall((f"agent {n % 10}", "rain"), fallback="text", deadline_ms=60_000)
                for n in range(1000)
            )
        )
    await pool.dispose()
    assert {reply.replies[0].status for reply in replies} == {"degraded"}
    assert all(len(found) == 3 for reply in replies for found in contents(reply))
