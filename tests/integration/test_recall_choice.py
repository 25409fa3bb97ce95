"""Which memories come back of those that rank: ranges of ticks, near-duplicates, core ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import text

from tests.remembering import known, remember
from tests.retrieving import Retriever, contents, retriever_settings, retrieving
from tickmind.database import Database
from tickmind.hashed import hash_embed
from tickmind.settings import DatabaseSettings
from tickmind.store.spaces import Space

_SPACE = Space(model="hash", dimensions=64)


async def embedded(database: Database, texts: Sequence[str], **options: Any) -> None:
    await known(database, {}, _SPACE)
    await remember(database, texts, **options)
    await known(database, {told: hash_embed(told, 64) for told in texts}, _SPACE)


async def _ask(retriever: Retriever, observation: str, **options: Any) -> list[str]:
    return contents(await retriever.recall(("alice", observation), **options))[0]


async def test_ticks_are_bounded_on_either_side(
    database: Database, database_settings: DatabaseSettings
) -> None:
    ticks = [0, 10, 50, 98, 99, 100, 101]
    await embedded(database, [f"fish of {tick}" for tick in ticks], tick=ticks)
    async with retrieving(database, retriever_settings(database_settings)) as retriever:

        async def ask(**options: Any) -> list[int]:
            found = await _ask(retriever, "fish", k=100, **options)
            return sorted(int(told.split()[-1]) for told in found)

        assert await ask() == ticks
        assert await ask(from_tick=10, to_tick=98) == [10, 50, 98]
        assert await ask(from_tick=99) == [99, 100, 101]
        assert await ask(to_tick=0) == [0]
        assert await ask(to_tick=50, as_of_tick=10) == [0, 10]
        assert await ask(from_tick=11, as_of_tick=10) == []
        assert await ask(exclude_last_ticks=0) == ticks
        assert await ask(exclude_last_ticks=1) == [0, 10, 50, 98, 99]
        assert await ask(exclude_last_ticks=2, from_tick=1) == [10, 50, 98]
        assert await ask(exclude_last_ticks=101) == []
        assert await ask(exclude_last_ticks=2**63 - 1, tick=0) == []
        assert await ask(exclude_last_ticks=1, fallback="text") == [0, 10, 50, 98, 99]


async def test_thirty_moves_and_four_others_are_five_that_differ(
    database: Database, database_settings: DatabaseSettings
) -> None:
    """The move matches best, thirty times."""
    others = ["Bob told me of fish", "I saw rain", "Carol is ill", "the mill is old"]
    await embedded(database, ["I went to (3, 4)"] * 30, tick=list(range(30)))
    await embedded(database, others)
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        found = await _ask(retriever, "I went to (3, 4)")
        assert sorted(found) == sorted(["I went to (3, 4)", *others])
        assert await _ask(retriever, "I went to (3, 4)", distinct="off") == ["I went to (3, 4)"] * 5
        exact = await _ask(retriever, "I went to (3, 4)", ranking="relevance")
        assert exact == ["I went to (3, 4)"] * 5
        reply = await retriever.recall(("alice", "I went to (3, 4)"))
        assert reply.replies[0].memories[0].tick == 29  # the best of them


async def test_walks_are_one_where_the_world_says_that_numbers_do_not_count(
    database: Database, database_settings: DatabaseSettings, tmp_path: Path
) -> None:
    await embedded(database, [f"I went to ({n}, 4)" for n in range(30)])
    await embedded(database, ["Bob told me of fish", "I saw rain"])
    file = tmp_path / "ranking.yaml"
    file.write_text("version: 1\nworlds:\n  town: {distinct: numbers}\n")
    settings = retriever_settings(database_settings, retriever_ranking_file=file)
    async with retrieving(database, settings) as retriever:
        found = await _ask(retriever, "I went to (3, 4)")
        assert len(found) == 3
        assert set(found) == {"I went to (3, 4)", "Bob told me of fish", "I saw rain"}
        assert len(await _ask(retriever, "I went to (3, 4)", distinct="text")) == 5


async def test_half_life_and_weights_are_the_worlds_where_a_request_says_nothing(
    database: Database, database_settings: DatabaseSettings, tmp_path: Path
) -> None:
    await embedded(database, ["fish at the market", "a stone"], tick=[10, 90], importance=[1, 10])
    file = tmp_path / "ranking.yaml"
    file.write_text(
        "version: 1\nworlds:\n  town:\n    half_life_ticks: 10\n"
        "    weights: {relevance: 0, recency: 1, importance: 0}\n"
    )
    settings = retriever_settings(database_settings, retriever_ranking_file=file)
    async with retrieving(database, settings) as retriever:
        (answer,) = (await retriever.recall(("alice", "fish at the market"))).replies
        assert [m.content for m in answer.memories] == ["a stone", "fish at the market"]
        assert [m.score for m in answer.memories] == [0.5, 2**-9]
        asked = {"relevance": 1, "recency": 0}
        assert (await _ask(retriever, "fish at the market", weights=asked))[0].startswith("fish")


async def test_core_memories_come_first_and_only_so_many(
    database: Database, database_settings: DatabaseSettings
) -> None:
    names = [f"I am Alice of house {n}" for n in range(5)]
    await embedded(database, names, core=True, tick=[1, 2, 3, 4, 5])
    await embedded(database, [f"fish {n}" for n in range(10)], tick=90, importance=10)
    await embedded(database, ["Bob is here"], agent="bob")
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        reply = await retriever.recall(("alice", "fish 3"), ("bob", "fish"), ("alice", "rain"))
        for answer in (reply.replies[0], reply.replies[2]):
            assert [memory.core for memory in answer.memories] == [True] * 3 + [False] * 2
            scores = [memory.score for memory in answer.memories]
            assert scores[:3] == sorted(scores[:3], reverse=True)
            assert scores[3:] == sorted(scores[3:], reverse=True)
        assert contents(reply)[1] == ["Bob is here"]
        assert reply.replies[0].fragment.splitlines()[1] == f"- {contents(reply)[0][0]}"

        assert not set(await _ask(retriever, "fish 3", max_core=0)) & set(names)
        assert set(await _ask(retriever, "fish 3", max_core=100)) == set(names)
        assert await _ask(retriever, "fish 3", k=1) != ["fish 3"]
        assert (await _ask(retriever, "fish 3", ranking="relevance"))[0] == "fish 3"
        assert (await _ask(retriever, "fish", as_of_tick=1)) == names[:1]
        assert not set(await _ask(retriever, "fish", min_importance=10)) & set(names)


async def test_who_has_core_memories_is_told_by_their_index_alone(database: Database) -> None:
    """A world of many memories with a few core ones: no other memory is read for it."""
    await embedded(database, [f"fish {n}" for n in range(2000)])
    await embedded(database, ["I am Bob"], agent="bob", core=True)
    async with database.writing() as session:
        await session.execute(text("ANALYZE memory"))
        await session.execute(text("SET LOCAL enable_seqscan = off"))
        plan = (
            await session.execute(
                text(
                    "EXPLAIN SELECT a.id FROM agent a WHERE EXISTS"
                    " (SELECT FROM memory m WHERE m.agent_id = a.id AND m.is_core)"
                )
            )
        ).scalars()
        assert any("ix_memory_agent_id_core" in line for line in plan)
