"""Recalls that words answer, by the retriever's handler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy.exc import ProgrammingError

from tests.remembering import known, remember
from tests.retrieving import contents, retriever_settings, retrieving
from tickmind.database import Database
from tickmind.hashed import hash_embed
from tickmind.settings import DatabaseSettings
from tickmind.store.spaces import Space
from tickmind_retriever import words as words_module

_SPACE = Space(model="hash", dimensions=64)


async def _embedded(database: Database, texts: Sequence[str], **options: Any) -> None:
    await remember(database, texts, **options)
    await known(database, {told: hash_embed(told, 64) for told in texts}, _SPACE)


async def test_what_was_just_said_is_recalled_before_its_vector(
    database: Database, database_settings: DatabaseSettings
) -> None:
    """Cases 20, 21: an embedded town, a talk of this moment."""
    await known(database, {}, _SPACE)
    await _embedded(database, [f"I moved to ({n}, 4)" for n in range(8)], tick=90, importance=4)
    await remember(database, ["bob told me: 鱼市场 sells mackerel"], tick=90, importance=4)
    await remember(database, ["bob told me: nobody sells mackerel"], agent="eve", tick=99)
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        reply = await retriever.recall(
            ("alice", "Alice would like mackerels"), ("alice", "爱丽丝走过鱼市场"), k=1
        )
        assert contents(reply) == [["bob told me: 鱼市场 sells mackerel"]] * 2
        assert [answer.status for answer in reply.replies] == ["ok", "ok"]
        reply = await retriever.recall(
            ("alice", "Alice would like mackerels"), k=20, ranking="relevance"
        )
        # The cosine alone compares what has a vector.
        assert len(reply.replies[0].memories) == 8


async def test_words_tip_the_balance_between_vectors(
    database: Database, database_settings: DatabaseSettings
) -> None:
    texts = [f"carol told me: tale {n}" for n in range(30)] + ["carol told me: the mackerel"]
    await known(database, {}, _SPACE)
    await _embedded(database, texts, tick=50)
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        reply = await retriever.recall(("alice", "any mackerel here?"), k=1)
    (best,) = reply.replies[0].memories
    assert best.content == texts[-1]


async def test_words_find_as_much_for_who_was_asked_while_small(
    database: Database, database_settings: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A size that is remembered tells which words are too frequent: of an agent that has grown
    since, it would be all of them."""
    monkeypatch.setattr(words_module, "_KEPT_LEAST_S", 0.0)
    await known(database, {}, _SPACE)
    await _embedded(database, ["rain"], tick=1)
    asked = {"k": 30, "tick": 100}
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        await retriever.recall(("alice", "any mackerel here?"), **asked)
        texts = [f"bob told me: {n} mackerels" for n in range(22)]
        await _embedded(database, [*texts, *(f"carol told me: tale {n}" for n in range(80))])
        before = await retriever.recall(("alice", "any mackerel here?"), **asked)
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        afresh = await retriever.recall(("alice", "any mackerel here?"), **asked)
    assert before.replies == afresh.replies
    assert set(texts) <= set(contents(before)[0])


async def test_vectors_do_where_words_fail(
    database: Database, database_settings: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await known(database, {}, _SPACE)
    await _embedded(database, ["the market sells fish", "rain"])

    async def refused(*_: object, **__: object) -> None:
        raise ProgrammingError("statement", {}, Exception("no such index"))

    monkeypatch.setattr(words_module, "find", refused)
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        reply = await retriever.recall(("alice", "fish"))
    assert reply.replies[0].status == "ok"
    assert len(reply.replies[0].memories) == 2


async def test_a_hundred_agents_each_find_their_own_words(
    database: Database, database_settings: DatabaseSettings
) -> None:
    await known(database, {}, _SPACE)
    for n in range(100):
        await remember(database, [f"secret of number{n}", "rain"], agent=f"agent-{n}")
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        reply = await retriever.recall(
            *((f"agent-{n}", f"what is it about number{n}?") for n in range(100)), k=1
        )
    assert contents(reply) == [[f"secret of number{n}"] for n in range(100)]
