"""What a recall request is answered, whatever it asks and whatever fails meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import text

from tests.clock import SLACK_S, Clock
from tests.proxy import door
from tests.remembering import known, remember
from tests.retrieving import Retriever, body, contents, retriever_settings, retrieving
from tests.running import eventually
from tickmind.database import Database
from tickmind.hashed import hash_embed
from tickmind.local.postgres import LocalPostgres
from tickmind.local.provider.faults import Hang, Outage, Status
from tickmind.local.provider.running import Provider
from tickmind.local.provider.triggers import Always, Containing, Next
from tickmind.memory import Scored
from tickmind.settings import DatabaseSettings
from tickmind.store import recall as recall_module
from tickmind.store.spaces import Space
from tickmind_retriever import handler as handler_module
from tickmind_retriever import query_vectors as query_vectors_module
from tickmind_retriever import ranker as ranker_module
from tickmind_retriever.answers import FILTERED, NO_AGENT, NO_WORLD

#: Until this deadline some agents are ranked, and it comes to pass: two statements of a busy
#: machine, and a test as long.
_RANKED_MS = 2000
TOLD = [
    "Bob told me: the market sells fresh fish",
    "I moved to (15, 8), the market",
    "I saw rain over the old mill",
    "Carol told me: the baker is ill",
]


async def _embedded(
    database: Database, texts: Sequence[str], *, model: str = "hash", **options: Any
) -> None:
    """Store memories of these texts and their vectors."""
    await known(database, {}, Space(model=model, dimensions=64))
    await remember(database, texts, **options)
    vectors = {told: hash_embed(told, 64) for told in texts}
    await known(database, vectors, Space(model=model, dimensions=64))


async def test_agent_remembers_what_it_was_told_about_what_it_sees(
    database: Database, database_settings: DatabaseSettings
) -> None:
    await _embedded(database, TOLD, tick=[42, 50, 60, 99])
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        reply = await retriever.recall(("alice", "Alice walks past the market"), k=2)

    assert (reply.world, reply.tick, reply.reason) == ("town", 100, None)
    (answer,) = reply.replies
    assert (answer.agent, answer.status, answer.reason) == ("alice", "ok", None)
    assert {memory.content for memory in answer.memories} == set(TOLD[:2])
    assert answer.fragment.startswith("You remember:\n- ")
    assert all(memory.content in answer.fragment for memory in answer.memories)
    assert (reply.watermarks.recorded, reply.watermarks.embedded) == (99, 99)
    assert retriever.counted("ok") == 1


async def test_one_bad_query_costs_only_itself(
    database: Database, database_settings: DatabaseSettings
) -> None:
    await _embedded(database, TOLD)
    await _embedded(database, TOLD[:1], agent="17")
    queries: list[tuple[Any, Any]] = [
        ("alice", "rain"),
        ("alice", 5),
        (None, "rain"),
        (17, "fish"),
        ("alice", " \u200b\n"),
        ("nobody", "rain"),
        ("x" * 201, "rain"),
    ]
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        reply = await retriever.recall(*queries)

    told = [(answer.status, answer.reason) for answer in reply.replies]
    assert told == [
        ("ok", None),
        ("empty", "invalid"),
        ("empty", "invalid"),
        ("ok", None),
        ("empty", "invalid"),
        ("empty", None),
        ("empty", "invalid"),
    ]
    assert [answer.agent for answer in reply.replies][:6] == [
        "alice",
        "alice",
        "",
        "17",
        "alice",
        "nobody",
    ]
    assert all(answer.detail for answer in reply.replies if answer.reason)
    assert "observation" in (reply.replies[1].detail or "")
    assert reply.watermarks.recorded == 1


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b'{"world": "town", "tick": -1, "queries": [{"agent": "a", "observation": "b"}]}',
        b'{"world": "town", "tick": 1, "queries": []}',
        b'{"world": "town", "tick": NaN, "queries": [{"agent": "a", "observation": "b"}]}',
        body(("a", "b"), k=0),
        body(("a", "b"), k=101),
        body(("a", "b"), deadline_ms=0),
        body(("a", "b"), language="fr"),
        body(("a", "b"), ranking="best"),
        body(("a", "b"), weights={"relevance": -1}),
        body(("a", "b"), weights={"relevance": float("nan")}),
        body(("a", "b"), as_of_tick=2**63),
        body(("a", "b"), weights={"recency": "1"}),
        body(("a", "b"), weights={"recency": True}),
        body(("a", "b"), weights={"importance": 1e999}),
        body(("a", "b"), from_tick=-1),
        body(("a", "b"), from_tick=1.5),
        body(("a", "b"), to_tick="7"),
        body(("a", "b"), from_tick=8, to_tick=7),
        body(("a", "b"), exclude_last_ticks=2**63),
        body(("a", "b"), exclude_last_ticks=True),
        body(("a", "b"), distinct="on"),
        body(("a", "b"), distinct=True),
        body(("a", "b"), max_core=101),
        body(("a", "b"), max_core=-1),
        body(("a", "b"), fallback="words"),
        body(("a", "b"), fallback=None),
        body(("a", "b"), wait_for_tick=10**30),
        body(("a", "b"), wait_until="forever"),
        body(("a", "b"), wait_ms=60_001),
        b"[" * 100_000,
        b'{"world": "town", "tick": ' + b"9" * 5000 + b"}",
        body(*[("a", "b")] * 1001),
    ],
    ids=lambda request_: repr(request_[:40]),
)
async def test_invalid_request_is_told_so_with_what_is_wrong(
    database: Database, database_settings: DatabaseSettings, request_: bytes
) -> None:
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        reply = await retriever.handler.recall(request_)
    assert reply is not None
    assert (reply.reason, reply.replies) == ("invalid", [])
    assert reply.detail
    assert retriever.counted("empty", "invalid") == 1


@pytest.mark.parametrize("fallback", ["none", "text"])
async def test_who_remembers_nothing_is_empty_without_a_fault_and_told_why(
    database: Database, database_settings: DatabaseSettings, fallback: str
) -> None:
    """Nothing went wrong, so `reason` is none; who expected more learns where to look."""
    await _embedded(database, TOLD)
    asked: list[tuple[str, str, dict[str, Any], str]] = [
        ("town", "nobody", {}, NO_AGENT),
        ("nowhere", "alice", {}, NO_WORLD),
        ("town", "alice", {"kinds": ["dream"]}, FILTERED),
        ("town", "alice", {"from_tick": 10**9}, FILTERED),
    ]
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        for world, agent, options, why in asked:
            (answer,) = (
                await retriever.recall((agent, "rain"), world=world, fallback=fallback, **options)
            ).replies
            assert (answer.status, answer.reason, answer.fragment) == ("empty", None, "")
            assert answer.detail == why


async def test_database_that_no_embedder_has_seen_is_a_reason(
    database: Database, database_settings: DatabaseSettings
) -> None:
    await remember(database, TOLD)
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        (answer,) = (await retriever.recall(("alice", "rain"))).replies
    assert (answer.status, answer.reason) == ("empty", "embedding")
    assert "no embedder" in (answer.detail or "")


async def test_space_of_other_settings_is_a_reason(
    database: Database, database_settings: DatabaseSettings
) -> None:
    await _embedded(database, TOLD, model="another")
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        (answer,) = (await retriever.recall(("alice", "rain"))).replies
        assert (answer.status, answer.reason) == ("empty", "embedding")
        assert "TICKMIND_EMBEDDING_" in (answer.detail or "")


async def test_options_of_a_request_are_followed(
    database: Database, database_settings: DatabaseSettings
) -> None:
    await _embedded(
        database,
        ["fish at the market", "fish in the river", "fish and chips", "a stone"],
        tick=[10, 90, 95, 100],
        importance=[9, 2, 3, 10],
        kind=["conversation", "observation", "observation", "observation"],
    )
    async with retrieving(database, retriever_settings(database_settings)) as retriever:

        async def ask(**options: Any) -> list[str]:
            return contents(await retriever.recall(("alice", "fish at the market"), **options))[0]

        assert (await ask(ranking="relevance"))[0] == "fish at the market"
        assert (await ask(weights={"relevance": 0, "recency": 1, "importance": 0}))[0] == "a stone"
        assert await ask(as_of_tick=50) == ["fish at the market"]
        assert await ask(kinds=["conversation"]) == ["fish at the market"]
        assert await ask(kinds=[]) == []
        assert await ask(min_importance=10) == ["a stone"]
        assert len(await ask(k=3)) == 3


@pytest.mark.parametrize("term", ["relevance", "recency", "importance"])
@pytest.mark.parametrize("weight", [5e-324, 1e-308, 1e-30, 2.0**-53, 2.0**-52])
async def test_weight_near_nothing_is_no_fault_of_the_database(
    database: Database, database_settings: DatabaseSettings, term: str, weight: float
) -> None:
    """However small what it weighs: what float64 does not hold is an error to PostgreSQL."""
    await _embedded(database, TOLD, tick=[1, 2, 3, 2**62])
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        for observation in ("fish", "rain over the old mill"):
            (answer,) = (
                await retriever.recall(
                    ("alice", observation), tick=2**62, weights={term: weight}, explain=True
                )
            ).replies
            assert (answer.status, answer.detail) == ("ok", None)
            assert len(answer.memories) == len(TOLD)


@pytest.mark.parametrize(
    ("language", "heading"),
    [("en", "You remember:"), ("zh", "你记得："), ("ja", "あなたが覚えていること：")],
)
async def test_fragment_speaks_the_language_asked_for_and_quotes_verbatim(
    database: Database, database_settings: DatabaseSettings, language: str, heading: str
) -> None:
    """case 25."""
    texts = ["老王告诉我：集市上有鲜鱼", "ボブ：市場で魚を売っている", "Bob: 鱼 and fish"]
    await _embedded(database, texts)
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        (answer,) = (await retriever.recall(("alice", "鱼"), language=language)).replies
    lines = answer.fragment.splitlines()
    assert lines[0] == heading
    assert sorted(lines[1:]) == sorted(f"- {told}" for told in texts)


@pytest.mark.parametrize("max_chars", [0, 1, 20, 60, 100, 200, 5000])
async def test_fragment_is_never_longer_than_asked(
    database: Database, database_settings: DatabaseSettings, max_chars: int
) -> None:
    texts = [f"{i} said: " + "the market sells fresh fish, " * 20 for i in range(6)]
    await _embedded(database, texts)
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        reply = await retriever.recall(("alice", "fish"), max_chars=max_chars)
    (answer,) = reply.replies
    assert answer.status == "ok"
    assert len(answer.memories) == 5
    assert len(answer.fragment) <= max_chars
    if answer.fragment and max_chars < 2000:
        assert "[…]" in answer.fragment or "left out" in answer.fragment


async def test_same_request_has_the_same_answer(
    database: Database, database_settings: DatabaseSettings
) -> None:
    texts = [f"word{i % 7} told" for i in range(60)]
    await _embedded(database, texts, tick=[i // 3 for i in range(60)])
    settings = retriever_settings(database_settings)
    queries = [("alice", f"word{i}") for i in range(20)]
    async with retrieving(database, settings) as one, retrieving(database, settings) as other:
        first = await one.recall(*queries)
        again, elsewhere = await asyncio.gather(one.recall(*queries), other.recall(*queries))
    assert first == again == elsewhere


async def test_hundred_agents_in_one_request_cost_one_call(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    settings = retriever_settings(database_settings, provider.base_url, embedding_max_inputs=100)
    for number in range(0, 100, 10):
        await _embedded(database, TOLD, model="test", agent=f"agent {number}")
    async with retrieving(database, settings) as retriever:
        queries = [(f"agent {i}", f"agent {i} sees the market") for i in range(100)]
        reply = await retriever.recall(*queries)
    assert provider.ledger.totals().calls == 1
    assert [answer.agent for answer in reply.replies] == [agent for agent, _ in queries]
    told = [answer.status == "ok" for answer in reply.replies]
    assert told == [number % 10 == 0 for number in range(100)]
    assert all(answer.reason is None for answer in reply.replies)


async def test_recalls_that_find_nothing_use_up_no_connection(
    database_settings: DatabaseSettings, database: Database
) -> None:
    """case 22: a pool of five, fifty recalls that find nothing, the 51st succeeds."""
    await _embedded(database, TOLD)
    await remember(database, ["never embedded"], agent="bob")
    settings = retriever_settings(database_settings, database_pool_size=5)
    pool = Database(settings, application="retriever-under-test")
    async with retrieving(pool, settings) as retriever:
        for turn in range(50):
            reply = await retriever.recall((("bob", "nobody")[turn % 2], "x"))
            assert reply.replies[0].reason is None
        reply = await retriever.recall(("alice", "fish"))
        assert reply.replies[0].status == "ok"
        assert pool.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    await pool.dispose()


async def test_many_requests_at_once_share_a_small_pool(
    database: Database, database_settings: DatabaseSettings
) -> None:
    await _embedded(database, TOLD)
    settings = retriever_settings(database_settings, database_pool_size=2)
    pool = Database(settings, application="retriever-under-test")
    async with retrieving(pool, settings) as retriever:
        replies = await asyncio.gather(
            *(
                retriever.recall(
                    *(("alice", f"fish {i} {j}") for j in range(9)), deadline_ms=60_000
                )
                for i in range(60)
            )
        )
    await pool.dispose()
    assert {answer.status for reply in replies for answer in reply.replies} == {"ok"}


async def _took(retriever: Retriever, *queries: tuple[str, str], **options: Any) -> Any:
    """The reply, and the seconds it took of what this process had."""
    clock = Clock()
    reply = await retriever.recall(*queries, **options)
    return reply, clock.s


async def test_hanging_embedding_server_is_answered_for_in_time(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """case 35: the server hangs, the deadline is kept; the reason is in reply and metrics."""
    await _embedded(database, TOLD, model="test")
    settings = retriever_settings(database_settings, provider.base_url)
    async with retrieving(database, settings, reserve_s=0.015) as retriever:
        await retriever.recall(("alice", "connected"))
        provider.faults.add(Hang(seconds=30), Always())
        reply, took_s = await _took(retriever, ("alice", "market"), deadline_ms=1000)
        assert took_s < 1 + SLACK_S
        (answer,) = reply.replies
        assert (answer.status, answer.reason, answer.fragment) == ("empty", "deadline", "")
        assert answer.detail == "the embedding API took too long"
        assert retriever.counted("empty", "deadline") == 1
        assert reply.watermarks.recorded == 1
        provider.faults.clear()
        provider.faults.release()


async def test_hanging_calls_do_not_keep_out_later_ones(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that hung a while and works again: what nobody waits for gives way."""
    # On a busy machine 50 ms are long enough to tell of an outage: that is another test's.
    monkeypatch.setattr(query_vectors_module, "_UNANSWERED_S", float("inf"))
    await _embedded(database, TOLD, model="test")
    settings = retriever_settings(database_settings, provider.base_url)
    provider.faults.add(Hang(), Always())
    async with retrieving(database, settings) as retriever:
        turns = 0
        while provider.ledger.totals().calls < 8:  # on a busy machine not each gets so far
            turns += 1
            reply = await retriever.recall(("alice", f"market {turns}"), deadline_ms=50)
            assert reply.replies[0].reason == "deadline"
        provider.faults.clear()  # what hangs goes on hanging
        reply = await retriever.recall(("alice", "market"), deadline_ms=30_000)
        assert reply.replies[0].status == "ok"
        await provider.ledger.wait_until(
            lambda ledger: sum(call.delivered is False for call in ledger.calls) >= 5
        )
    provider.faults.release()


async def test_agents_whose_vectors_are_there_are_answered_by_the_deadline(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    await _embedded(database, TOLD, model="test")
    settings = retriever_settings(database_settings, provider.base_url)
    provider.faults.add(Hang(), Containing(substring="slow"))
    async with retrieving(database, settings) as retriever:
        await retriever.recall(("alice", "market"))
        reply = await retriever.recall(
            *(("alice", "slow one"), ("alice", "market"), ("alice", "slow two")),
            deadline_ms=_RANKED_MS,
        )
        provider.faults.release()
    assert [(answer.status, answer.reason) for answer in reply.replies] == [
        ("empty", "deadline"),
        ("ok", None),
        ("empty", "deadline"),
    ]


async def test_agents_ranked_by_the_deadline_are_answered(
    database: Database,
    database_settings: DatabaseSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of three statements does not come to an end."""
    await _embedded(database, TOLD)
    original = recall_module.rank

    async def rank(session: Any, questions: Any, **options: Any) -> list[list[Scored]]:
        if len(questions) < 8:
            await session.execute(text("SELECT pg_sleep(30)"))
        return await original(session, questions, **options)

    monkeypatch.setattr(ranker_module, "rank", rank)
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        queries = [("alice", f"market {i}") for i in range(20)]
        reply = await retriever.recall(*queries, deadline_ms=_RANKED_MS)
    told = [(answer.status, answer.reason) for answer in reply.replies]
    assert told == [("ok", None)] * 16 + [("empty", "deadline")] * 4
    assert "not ranked in time" in (reply.replies[-1].detail or "")


async def test_embedding_server_that_is_down_is_a_reason(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    await _embedded(database, TOLD, model="test")
    settings = retriever_settings(database_settings, provider.base_url)
    async with retrieving(database, settings) as retriever:
        await retriever.recall(("alice", "seen before"))
        provider.faults.add(Outage(), Always())
        reply = await retriever.recall(("alice", "seen before"), ("alice", "never seen"))
        assert [(answer.status, answer.reason) for answer in reply.replies] == [
            ("ok", None),
            ("empty", "embedding"),
        ]
        assert "503" in (reply.replies[1].detail or "")
        provider.faults.clear()
        reply = await retriever.recall(("alice", "never seen"))
        assert reply.replies[0].status == "ok"


async def test_observation_that_the_server_refuses_costs_only_its_agent(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    await _embedded(database, TOLD, model="test")
    settings = retriever_settings(database_settings, provider.base_url)
    provider.faults.add(Status(code=400), Containing(substring="unspeakable"))
    async with retrieving(database, settings) as retriever:
        queries = [("alice", f"market {i}") for i in range(30)]
        queries[13] = ("alice", "unspeakable")
        reply = await retriever.recall(*queries)
    wrong = [place for place, answer in enumerate(reply.replies) if answer.status != "ok"]
    assert wrong == [13]
    assert reply.replies[13].reason == "embedding"
    assert provider.ledger.totals().calls <= 16


@asynccontextmanager
async def _locked(database: Database, table: str) -> AsyncIterator[None]:
    async with database.writing() as session:
        await session.execute(text(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"))
        yield


@pytest.mark.parametrize("table", ["world", "recall_index", "index_generation"])
async def test_slow_database_is_answered_for_in_time_and_its_statement_cancelled(
    database: Database, database_settings: DatabaseSettings, table: str
) -> None:
    await _embedded(database, TOLD)
    settings = retriever_settings(database_settings, database_pool_size=2)
    pool = Database(settings, application="retriever-under-test")
    async with retrieving(pool, settings) as retriever:
        async with _locked(database, table):
            for turn in range(5):
                reply, took_s = await _took(retriever, ("alice", f"{turn}"), deadline_ms=150)
                assert took_s < 0.15 + SLACK_S
                assert reply.replies[0].reason == "deadline"

            async def waiting() -> int:
                async with database.reading() as session:
                    found = await session.execute(
                        text(
                            "SELECT count(*) FROM pg_stat_activity WHERE state = 'active'"
                            " AND application_name = 'retriever-under-test'"
                        )
                    )
                    return int(found.scalar_one())

            await eventually(waiting, lambda n: n == 0, what="statements under way")
        replies = await asyncio.gather(
            *(retriever.recall(("alice", f"after {i}")) for i in range(10))
        )
        assert {reply.replies[0].status for reply in replies} == {"ok"}
    await pool.dispose()


async def test_database_that_is_gone_is_a_reason_and_comes_back(
    postgres: LocalPostgres, database: Database, database_settings: DatabaseSettings
) -> None:
    await _embedded(database, TOLD)
    async with door(postgres.socket_dir / ".s.PGSQL.5432") as opened:
        url = f"postgresql://postgres@127.0.0.1:{opened.port}/{database.engine.url.database}"
        settings = retriever_settings(database_settings, database_url=SecretStr(url))
        pool = Database(settings, application="retriever-under-test")
        async with retrieving(pool, settings) as retriever:
            assert (await retriever.recall(("alice", "fish"))).replies[0].status == "ok"
            await opened.shut()
            for _ in range(3):
                (answer,) = (await retriever.recall(("alice", "fish"))).replies
                assert (answer.status, answer.reason) == ("empty", "database")
                assert "PostgreSQL" in (answer.detail or "")
            await opened.unlock()
            assert (await retriever.recall(("alice", "fish"))).replies[0].status == "ok"
        await pool.dispose()


async def test_database_that_died_in_silence_is_left_behind(
    postgres: LocalPostgres, database: Database, database_settings: DatabaseSettings
) -> None:
    """No answer, no reset: each reply is in time, and another connection is taken."""
    await _embedded(database, TOLD)
    async with door(postgres.socket_dir / ".s.PGSQL.5432") as opened:
        url = f"postgresql://postgres@127.0.0.1:{opened.port}/{database.engine.url.database}"
        settings = retriever_settings(
            database_settings, database_url=SecretStr(url), database_pool_size=2
        )
        pool = Database(settings, application="retriever-under-test")
        async with retrieving(pool, settings) as retriever:
            await asyncio.gather(*(retriever.recall(("alice", "fish")) for _ in range(4)))
            opened.hold(newcomers=False)

            async def status() -> str:
                # On a busy machine a connection takes 0.3 s and more: its types are looked up.
                reply, took_s = await _took(retriever, ("alice", "fish"), deadline_ms=1000)
                assert took_s < 1 + SLACK_S
                return str(reply.replies[0].status)

            await eventually(status, lambda found: found == "ok", what="recall")
        await pool.dispose()


async def test_request_whose_time_is_over_is_dropped(
    database: Database, database_settings: DatabaseSettings
) -> None:
    await _embedded(database, TOLD)
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        request = body(("alice", "fish"), deadline_ms=5000)
        assert await retriever.handler.recall(request, age_s=5) is None
        assert await retriever.handler.recall(request, age_s=30) is None
        reply = await retriever.handler.recall(request, age_s=0.3)
        assert reply is not None
        assert reply.replies[0].status == "ok"


async def test_deadline_shorter_than_the_way_back_is_answered_at_once(
    database: Database, database_settings: DatabaseSettings
) -> None:
    await _embedded(database, TOLD)
    settings = retriever_settings(database_settings)
    async with retrieving(database, settings, reserve_s=0.015) as retriever:
        reply, took_s = await _took(retriever, ("alice", "fish"), deadline_ms=1)
    assert reply.replies[0].reason == "deadline"
    assert took_s < SLACK_S


async def test_mean_that_was_learned_meanwhile_is_used(
    database: Database, database_settings: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_module, "_GENERATION_S", 0.0)
    await _embedded(database, TOLD)
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        before = await retriever.recall(("alice", "fish"))
        async with database.writing() as session:
            await session.execute(
                text("UPDATE index_generation SET mean = :mean, mean_over = 32"),
                {"mean": hash_embed("the", 64).astype("<f4").tobytes()},
            )
        after = await retriever.recall(("alice", "fish"))
    assert before != after


async def test_provider_fault_once_does_not_stay(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    await _embedded(database, TOLD, model="test")
    settings = retriever_settings(database_settings, provider.base_url)
    provider.faults.add(Status(code=500), Next())
    async with retrieving(database, settings) as retriever:
        assert (await retriever.recall(("alice", "fish"))).replies[0].reason == "embedding"
        assert (await retriever.recall(("alice", "fish"))).replies[0].status == "ok"
