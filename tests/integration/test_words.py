"""Memories found by their words: before they have a vector, in every script, by their own agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tests.remembering import insert, known, remember
from tickmind import scoring
from tickmind.database import Database
from tickmind.identity import content_hash
from tickmind.memory import Scored, Weights
from tickmind.settings import DatabaseSettings
from tickmind.store.embedding import store_vectors
from tickmind.store.lexical import MOST_FOUND, Asked, agent_sizes, find
from tickmind.store.recall import Filters, Question, rank
from tickmind.store.spaces import Generation, Space
from tickmind.store.whom import whom
from tickmind.words import digests, query_digests
from tickmind_migrations import MEMORIES_A_TRANSACTION, upgrade

_SPACE = Space(model="test", dimensions=24)
_NO_FILTERS = Filters()


async def _agent(database: Database, name: str = "alice", world: str = "town") -> int:
    async with database.reading() as session:
        return (await whom(session, world, [name], space_id=1)).agents[name]


async def _found(
    database: Database, agent_id: int, observation: str, filters: Filters = _NO_FILTERS
) -> dict[int, float]:
    async with database.reading() as session:
        sizes = await agent_sizes(session, [agent_id])
        asked = Asked(agent_id=agent_id, observation=observation, size=sizes[agent_id])
        (found,) = await find(session, [asked], filters=filters)
    return found


async def _ranked(
    database: Database, generation: Generation | None, question: Question, **options: Any
) -> list[Scored]:
    given: dict[str, Any] = {
        "tick": 100,
        "k": 5,
        "filters": _NO_FILTERS,
        "weights": Weights(),
        "half_life_ticks": 500.0,
    }
    async with database.reading() as session:
        (found,) = await rank(session, [question], generation=generation, **(given | options))
    return found


@pytest.mark.parametrize(
    ("content", "others", "observation"),
    [
        (
            "bob told me: The market sells fresh fish",
            ["I said: Good morning", "I moved to (3, 4)", "It rains on the harbour"],
            "Alice wonders where fishes are sold",
        ),
        (
            "小明对我说：市场上卖新鲜的鱼",
            ["我说：早上好", "我走到了(3, 4)，公园", "今天下雨了"],
            "爱丽丝走过市场",
        ),
        (
            "ボブが私に言った：市場で新鮮な魚を売っている",
            ["私はこう言った：おはよう", "私は(3, 4)へ移動した", "今日は雨だ"],
            "アリスは市場の前を通りかかる",
        ),
        (
            "我说：iPhone15 在Market Street有卖",
            ["我说：早上好", "我走到了(3, 4)，公园", "今天下雨了"],
            "Where is the ｍａｒｋｅｔ for an IPHONE15?",
        ),
    ],
)
async def test_a_memory_is_found_by_its_words_as_soon_as_it_is_stored(
    database: Database, content: str, others: Sequence[str], observation: str
) -> None:
    """Cases 20, 25: no vector, no embedder, no space; texts come back verbatim."""
    await remember(database, [*others, content])
    agent_id = await _agent(database)
    words = await _found(database, agent_id, observation)
    first, *_ = await _ranked(database, None, Question(agent_id=agent_id, vector=None, words=words))
    assert first.content == content
    assert 0 < first.relevance <= scoring.WORDS_WEIGHT


async def test_a_text_of_symbols_alone_is_stored_and_found_by_no_word(database: Database) -> None:
    await remember(database, ["😀🎉", "…", "the fish"])
    agent_id = await _agent(database)
    assert await _found(database, agent_id, "😀🎉") == {}
    assert await _found(database, agent_id, "is this it?") == {}
    found = await _ranked(database, None, Question(agent_id=agent_id, vector=None))
    assert {memory.content for memory in found} == {"😀🎉", "…", "the fish"}


async def test_agents_with_names_alike_find_their_own_words_only(database: Database) -> None:
    """Case 19."""
    names = ["john_doe", "john-doe", "a%", "o'x"]
    for name in names:
        await remember(database, [f"the fish of {name}", "rain"], agent=name)
    await remember(database, ["the fish of another world"], agent="a%", world="elsewhere")
    for name in names:
        agent_id = await _agent(database, name)
        (only,) = await _found(database, agent_id, "fish")
        (first, _) = await _ranked(
            database, None, Question(agent_id=agent_id, vector=None, words={only: 1.0})
        )
        assert first.content == f"the fish of {name}"


async def test_words_of_another_agent_count_for_nothing_when_given(database: Database) -> None:
    await remember(database, ["the fish"], agent="bob")
    await remember(database, ["rain"])
    (foreign,) = await _found(database, await _agent(database, "bob"), "fish")
    question = Question(agent_id=await _agent(database), vector=None, words={foreign: 1.0})
    assert [m.content for m in await _ranked(database, None, question)] == ["rain"]


async def test_scores_by_words_are_those_of_the_definition(database: Database) -> None:
    random = np.random.default_rng(5)
    vocabulary = [f"w{n}" for n in range(60)]
    weights = 1 / np.arange(1, 61)
    texts = [
        f"n{n} " + " ".join(random.choice(vocabulary, n % 25, p=weights / weights.sum()))
        for n in range(90)
    ]
    await remember(database, texts)
    agent_id = await _agent(database)
    documents = [frozenset(digests(told)) for told in texts]
    async with database.reading() as session:
        ids = await _ids(session, texts)
    for observation in (
        *("w3 w20 w59", "w0 w1 w2", "w7", "w40 w41 w42 w43 unheard of", "nothing"),
        "w31 " + " ".join(f"unheard{n}" for n in range(80)),
        " ".join(vocabulary),
    ):
        expected = scoring.by_words(documents, frozenset(query_digests(observation)))
        found = await _found(database, agent_id, observation)
        assert found == {
            ids[place]: pytest.approx(score, abs=2e-6)
            for place, score in enumerate(expected)
            if score > 1e-6
        }
        assert list(found.values()) == sorted(found.values(), reverse=True)


async def _ids(session: AsyncSession, contents: Sequence[str]) -> list[int]:
    rows = (await session.execute(text("SELECT content, id FROM memory"))).all()
    by_content = {row.content: row.id for row in rows}
    return [by_content[content] for content in contents]


async def test_fused_ranking_is_that_of_the_definition(database: Database) -> None:
    """Case 21 too: some memories have no vector yet; relevance of those is what words give."""
    random = np.random.default_rng(6)
    texts = [f"text {n}" for n in range(40)]
    vectors = {told: _unit(random.normal(size=24)) for told in texts[:30]}
    mean = (0.3 * random.normal(size=24)).astype(np.float16).astype(np.float32)
    await known(database, {}, _SPACE)
    importances = [int(n) for n in random.integers(1, 11, size=40)]
    ticks = [int(n) for n in random.integers(0, 300, size=40)]
    await remember(database, texts, tick=ticks, importance=importances)
    generation = replace(await known(database, vectors, _SPACE), mean=mean)
    agent_id = await _agent(database)
    async with database.reading() as session:
        ids = await _ids(session, texts)
    words = {ids[n]: float(random.uniform(0.1, 1)) for n in (0, 3, 7, 12, 29, 31, 38)}
    query = _unit(random.normal(size=24))
    cosine = np.zeros(40)
    cosine[:30] = scoring.relevance(np.stack(list(vectors.values())), query, mean)
    relevance = scoring.fused(cosine, np.array([words.get(id_, 0.0) for id_ in ids]))
    recency = scoring.recency(ticks, 100, 500.0)
    for weights in (Weights(), Weights(relevance=1, recency=0, importance=0)):
        score = scoring.blended(relevance, recency, np.array(importances), weights)
        expected = [ids[place] for place in scoring.rank(score, ticks, ids, 12)]
        found = await _ranked(
            database,
            generation,
            Question(agent_id=agent_id, vector=query, words=words),
            weights=weights,
            k=12,
        )
        assert [memory.id for memory in found] == expected
        at = {id_: place for place, id_ in enumerate(ids)}
        for memory in found:
            assert memory.score == pytest.approx(score[at[memory.id]], abs=2e-3)
            assert memory.relevance == pytest.approx(relevance[at[memory.id]], abs=2e-3)


def _unit(vector: Any) -> Any:
    return (vector / np.linalg.norm(vector)).astype(np.float32)


async def test_three_embedded_and_four_pending_are_ranked_by_what_is_known(
    database: Database,
) -> None:
    """Case 21: a missing vector is never a match, and nothing is missing from the answer."""
    await known(database, {}, _SPACE)
    axes = np.eye(24, dtype=np.float32)
    embedded = {"near": axes[0], "far": axes[1], "opposite": -axes[0]}
    pending = ["pending fish", "pending rain", "pending and important", "pending and old"]
    await remember(database, [*embedded, pending[0]], tick=90, importance=1)
    await remember(database, [pending[1]], tick=90, importance=2)
    await remember(database, pending[2:3], tick=90, importance=10)
    await remember(database, pending[3:], tick=1, importance=1)
    generation = await known(database, embedded, _SPACE)
    agent_id = await _agent(database)
    words = await _found(database, agent_id, "fish?")
    question = Question(agent_id=agent_id, vector=axes[0], words=words)
    found = await _ranked(database, generation, question, k=10)
    assert [memory.content for memory in found] == [
        "near",
        "pending fish",
        "pending and important",
        # Nothing is known against the pending ones: as far as what means something else.
        "pending rain",
        "far",
        "pending and old",
        "opposite",
    ]
    relevance = {memory.content: memory.relevance for memory in found}
    assert relevance["pending rain"] == 0
    assert relevance["pending fish"] == pytest.approx(scoring.WORDS_WEIGHT)
    # By relevance alone only what has a vector is compared.
    found = await _ranked(database, generation, question, k=10, weights=None)
    assert [memory.content for memory in found] == ["near", "far", "opposite"]


async def test_filters_hold_for_what_words_find(database: Database) -> None:
    await remember(
        database,
        ["fish a", "fish b", "fish c", "fish d"],
        tick=[1, 50, 90, 99],
        importance=[9, 2, 9, 9],
        kind=["conversation", "conversation", "observation", "conversation"],
    )
    agent_id = await _agent(database)
    filters = Filters(as_of_tick=95, kinds=("conversation",), min_importance=3)
    words = await _found(database, agent_id, "fish", filters)
    assert len(words) == 1
    every = await _found(database, agent_id, "fish")
    assert len(every) == 4
    question = Question(agent_id=agent_id, vector=None, words=every)
    found = await _ranked(database, None, question, filters=filters)
    assert [memory.content for memory in found] == ["fish a"]


async def test_a_very_long_text_keeps_a_bounded_number_of_terms(database: Database) -> None:
    long = "beginning " + " ".join(f"word{n}" for n in range(50_000))
    async with database.writing() as session:
        await insert(session, [long, "short"])
    agent_id = await _agent(database)
    assert len(await _found(database, agent_id, "the beginning")) == 1
    assert await _found(database, agent_id, "word49999") == {}


async def test_a_term_that_too_many_memories_have_is_let_go(database: Database) -> None:
    """However large the agent: a question looks through a bounded number of memories."""
    many, few = scoring.MAX_DOCUMENTS + 1, scoring.MAX_DOCUMENTS
    texts = [
        *(f"frequent {n}x" for n in range(many)),
        *(f"seldom {n}x" for n in range(few)),
        *(f"else {n}x" for n in range(4 * many)),
    ]
    await remember(database, texts)
    agent_id = await _agent(database)
    assert await _found(database, agent_id, "frequent") == {}
    assert len(await _found(database, agent_id, "seldom")) == MOST_FOUND
    assert len(await _found(database, agent_id, "frequent 7x")) == 3


async def test_linking_moves_a_memory_from_words_alone_to_both(database: Database) -> None:
    await known(database, {}, _SPACE)
    await remember(database, ["fish"])
    generation = await known(database, {}, _SPACE)
    agent_id = await _agent(database)
    words = await _found(database, agent_id, "fish")
    axis = np.eye(24, dtype=np.float32)[0]
    question = Question(agent_id=agent_id, vector=axis, words=words)
    (before,) = await _ranked(database, generation, question)
    async with database.writing() as session:
        await store_vectors(session, generation.space_id, {content_hash("fish"): axis})
    (after,) = await _ranked(database, generation, question)
    assert before.id == after.id
    assert before.relevance == pytest.approx(scoring.WORDS_WEIGHT)
    assert after.relevance == pytest.approx(1 + scoring.WORDS_WEIGHT, abs=1e-3)


async def test_migrating_gives_older_memories_their_words(
    database: Database, database_settings: DatabaseSettings
) -> None:
    contents = [f"the fish number {n}" for n in range(MEMORIES_A_TRANSACTION + 5)]
    await remember(database, contents)
    agent_id = await _agent(database)
    async with database.writing() as session:
        before = (await session.execute(text("SELECT id, terms FROM memory ORDER BY id"))).all()
        await session.execute(text("UPDATE memory SET terms = NULL"))
    assert await _found(database, agent_id, "number 2004") == {}
    told: list[str] = []
    await upgrade(database_settings, told.append)
    await upgrade(database_settings, told.append)
    assert [line for line in told if "older" in line] == [
        f"{len(contents)} older memories can be found by their words now"
    ]
    async with database.reading() as session:
        after = (await session.execute(text("SELECT id, terms FROM memory ORDER BY id"))).all()
    assert after == before
    assert len(await _found(database, agent_id, "number 2004")) == 1
