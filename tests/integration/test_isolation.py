"""A recall sees one world and the agents it names: fuzzed over names and every way of ranking."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from sqlalchemy import text

from tests.names import NAMES, other_names, same_name
from tests.remembering import known
from tests.retrieving import Retriever, retriever_settings, retrieving
from tickmind.database import Database
from tickmind.hashed import hash_embed
from tickmind.local.ports import LOOPBACK, free_port, release_port
from tickmind.local.postgres import LocalPostgres
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.running import running_provider
from tickmind.messages import RecallReply
from tickmind.policy import default_policy
from tickmind.reindexing import Reindexing
from tickmind.settings import DatabaseSettings
from tickmind.store.spaces import Space
from tickmind_recorder.handler import Handler, Metrics

_SPACE = Space(model="test", dimensions=64)
#: Worlds whose names are as much alike as their agents'.
_WORLDS: tuple[str | int, ...] = (
    *("alice", "Alice", "alice ", "a%", "a_", "o'x", "' OR 1=1 --", 17, "017", "Zoë", "Zoe\u0308"),
)
_AGENTS = [name for name in NAMES if same_name(name)]
#: Ticks each agent remembers; the last of them waits for its vectors.
_TICKS = 4
#: Everyone sees and says the same, and so is a match for everyone's question.
_SEEN = "The market sells fresh fish"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Towns:
    """All worlds, and retrievers that rank each in its own way."""

    retrievers: Mapping[str, Retriever]
    #: Whose each memory is, by its id: (world, agent).
    owners: Mapping[int, tuple[str, str]]


def _body(world: str | int, tick: int) -> bytes:
    """Everyone sees something of the same words, says it to a neighbour, and keeps one thing as
    core. Each text ends with whose it is: there is one owner of a text and a vector."""
    decisions: list[dict[str, Any]] = []
    for place, agent in enumerate(_AGENTS):
        mark = f"{_SEEN} {tick} of {json.dumps([world, agent])}"
        decisions.append(
            {"agent": agent, "action": "observe", "text": mark, "core": tick == 1, "importance": 9}
        )
        if place % 5 == 0:
            heard_by = [_AGENTS[(place + 1) % len(_AGENTS)]]
            decisions.append(
                {"agent": agent, "action": "talk", "speech": mark, "heard_by": heard_by}
            )
    return json.dumps({"world": world, "tick": tick, "decisions": decisions}).encode()


async def _record(database: Database, ticks: Sequence[int]) -> None:
    handler = Handler(database, default_policy(), Metrics(CollectorRegistry()))
    for world in _WORLDS:
        for tick in ticks:
            delivery = handler.read(_body(world, tick), "tick.ended.v1.x")
            assert not delivery.rejects
            await handler.store([delivery])


async def _contents(database: Database) -> list[str]:
    async with database.reading() as session:
        return list((await session.execute(text("SELECT DISTINCT content FROM memory"))).scalars())


@pytest.fixture(scope="module")
async def towns(postgres: LocalPostgres) -> AsyncIterator[_Towns]:
    await postgres.create_database("isolation", template="template")
    given_ = DatabaseSettings.model_validate({"database_url": postgres.database_url("isolation")})
    nobody = free_port()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(postgres.drop_database, "isolation")
        stack.callback(release_port, nobody)
        database = Database(given_, application="test")
        stack.push_async_callback(database.dispose)
        await known(database, {}, _SPACE)
        await _record(database, range(1, _TICKS))
        said = await _contents(database)
        await known(database, {one: hash_embed(one, 64) for one in said}, _SPACE)
        assert await Reindexing(database.writing).build() is not None
        await _record(database, [_TICKS])
        provider = await stack.enter_async_context(
            running_provider(ProviderOptions(native_width=64))
        )
        ways = {
            "exact": retriever_settings(given_, provider.base_url, retriever_signatures_from=0),
            "signatures": retriever_settings(
                given_, provider.base_url, retriever_signatures_from=1, retriever_audit_one_in=1
            ),
            # An embedding API that nobody answers for: words, recency and importance must do.
            "without": retriever_settings(given_, f"http://{LOOPBACK}:{nobody}/v1"),
        }
        retrievers = {
            name: await stack.enter_async_context(retrieving(database, way))
            for name, way in ways.items()
        }
        async with database.reading() as session:
            rows = await session.execute(
                text(
                    "SELECT m.id, w.name AS world, a.name AS agent FROM memory m"
                    " JOIN agent a ON a.id = m.agent_id JOIN world w ON w.id = a.world_id"
                )
            )
            owners = {row.id: (row.world, row.agent) for row in rows}
        yield _Towns(retrievers=retrievers, owners=owners)


_OBSERVATIONS = st.sampled_from(
    [_SEEN, "fish", "%", "' OR 1=1 --", "鱼", "\x00fish", f"{_SEEN} 1 of", "of alice", "x" * 5000]
) | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "k": st.integers(1, 100),
        "ranking": st.sampled_from(["relevance", "blended"]),
        "max_core": st.integers(0, 10),
        "distinct": st.sampled_from(["off", "text", "numbers"]),
        "as_of_tick": st.integers(0, _TICKS + 1),
        "exclude_last_ticks": st.integers(0, 3),
        "kinds": st.lists(st.sampled_from(["observation", "conversation", "' OR 1=1 --"])),
        "min_importance": st.integers(1, 10),
        "weights": st.fixed_dictionaries(
            {}, optional={"relevance": st.floats(0, 1000), "recency": st.floats(0, 1000)}
        ),
        "wait_for_tick": st.integers(0, _TICKS + 1),
        "wait_until": st.sampled_from(["recorded", "embedded"]),
        "explain": st.booleans(),
    },
)
_ASKED = st.fixed_dictionaries(
    {
        "world": st.sampled_from(_WORLDS) | other_names(),
        "queries": st.lists(
            st.tuples(st.sampled_from(_AGENTS) | other_names(), _OBSERVATIONS),
            min_size=1,
            max_size=12,
        ),
        "options": _OPTIONS,
    }
)


async def _ask(retriever: Retriever, asked: Mapping[str, Any]) -> RecallReply:
    return await retriever.recall(
        *asked["queries"],
        world=asked["world"],
        tick=_TICKS + 1,
        fallback="text",
        wait_ms=1,
        deadline_ms=60_000,
        **{name: value for name, value in asked["options"].items() if name != "wait_ms"},
    )


@given(
    requests=st.lists(_ASKED, min_size=1, max_size=6),
    way=st.sampled_from(["exact", "signatures", "without"]),
)
@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_no_recall_finds_a_strangers_memory(
    towns: _Towns, requests: list[dict[str, Any]], way: str
) -> None:
    """case 19: whatever the names, the options and who asks at the same time, and so shares
    statements: exactly, by signatures, by words, core memories, without vectors."""
    retriever = towns.retrievers[way]
    replies = await asyncio.gather(*(_ask(retriever, asked) for asked in requests))
    known_worlds = {same_name(world) for world in _WORLDS}
    for asked, reply in zip(requests, replies, strict=True):
        if reply.reason == "invalid":  # a name that is empty once NUL is removed, or too long
            assert not reply.replies
            continue
        world = same_name(asked["world"])
        assert reply.watermarks.recorded == (_TICKS if world in known_worlds else None)
        for (agent, _), answer in zip(asked["queries"], reply.replies, strict=True):
            assert answer.reason in (None, "invalid", "embedding", "deadline"), answer
            for memory in answer.memories:
                assert towns.owners[memory.id] == (world, same_name(agent)), (asked, memory)
            assert answer.fragment == "" or answer.memories


@pytest.mark.parametrize("way", ["exact", "signatures", "without"])
@pytest.mark.parametrize("world", _WORLDS)
async def test_everyone_finds_their_own_in_every_way(
    towns: _Towns, world: str | int, way: str
) -> None:
    """case 19: so that finding nothing is not what keeps them apart. By words, too, what waits
    for its vector, and what is core."""
    reply = await _ask(
        towns.retrievers[way],
        {
            "world": world,
            "queries": [(agent, f"{_SEEN} {_TICKS}") for agent in _AGENTS],
            "options": {"k": 50, "distinct": "off", "explain": True},
        },
    )
    plans = {answer.explain.plan for answer in reply.replies if answer.explain is not None}
    assert plans == ({way} if way != "without" else set())
    for agent, answer in zip(_AGENTS, reply.replies, strict=True):
        found = {towns.owners[memory.id] for memory in answer.memories}
        assert found == {(same_name(world), same_name(agent))}, (agent, answer)
        assert {memory.tick for memory in answer.memories} == set(range(1, _TICKS + 1))
        assert any(memory.core for memory in answer.memories)


async def test_what_a_talk_answers_is_of_the_same_agent(postgres: LocalPostgres) -> None:
    """case 19: nobody's memory keeps what a stranger heard, by which it would be found."""
    name = "isolation_context"
    await postgres.create_database(name, template="template")
    given_ = DatabaseSettings.model_validate({"database_url": postgres.database_url(name)})
    database = Database(given_, application="test")
    try:
        await _record(database, range(1, _TICKS))
        async with database.reading() as session:
            with_context, strangers = (
                await session.execute(
                    text("""
                        SELECT count(*), count(*) FILTER (WHERE NOT EXISTS (
                            SELECT FROM memory b
                            WHERE b.agent_id = m.agent_id AND b.tick <= m.tick AND b.id <> m.id
                              AND strpos(b.content, m.context) > 0))
                        FROM memory m WHERE m.context IS NOT NULL
                    """)
                )
            ).one()
    finally:
        await database.dispose()
        await postgres.drop_database(name)
    assert with_context > len(_WORLDS)
    assert strangers == 0
