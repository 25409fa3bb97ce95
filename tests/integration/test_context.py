"""What a talk answers, however its ticks arrive."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import text

from tests.recording import tick_body
from tests.remembering import embedder_settings, handling
from tickmind.conversation import MAX_CONTEXT_TICKS
from tickmind.database import Database
from tickmind.identity import content_hash, in_context
from tickmind.policy import Policy, default_policy, parse_policy
from tickmind.settings import DatabaseSettings
from tickmind.store.lexical import Asked, find
from tickmind.store.recall import Filters
from tickmind_recorder.handler import Handler, Metrics

_KEY = "tick.ended.v1.town-7"


def _recorder(database: Database, policy: Policy | None = None) -> Handler:
    return Handler(database, policy or default_policy(), Metrics(CollectorRegistry()))


def _talk(agent: str, speech: str, *heard_by: str) -> dict[str, Any]:
    return {"agent": agent, "action": "talk", "speech": speech, "heard_by": list(heard_by)}


async def _store(handler: Handler, *bodies: bytes) -> None:
    await handler.store([handler.read(body, _KEY) for body in bodies])


async def _kept(database: Database) -> dict[tuple[str, int, str], str | None]:
    async with database.reading() as session:
        rows = await session.execute(
            text(
                "SELECT a.name, m.tick, m.content, m.context FROM memory m"
                " JOIN agent a ON a.id = m.agent_id"
            )
        )
        found = [(row.name, row.tick, row.content, row.context) for row in rows]
    assert len({row[:3] for row in found}) == len(found)
    return {(name, tick, content): context for name, tick, content, context in found}


def _conversation() -> list[bytes]:
    """Two conversations at once, moves in between, one tick in two messages, a long silence."""
    ticks: list[list[dict[str, Any]]] = [
        [_talk("bob", "Who sells fish?", "alice")],
        [_talk("alice", "Carol does", "bob"), _talk("dan", "Rain again", "erin")],
        [{"agent": "bob", "action": "move", "target": [1, 2]}, _talk("erin", "Indeed", "dan")],
        [_talk("bob", "Where is she?", "alice", "erin")],
        [_talk("alice", "At the market", "bob", "erin")],
    ]
    bodies = [tick_body(*decisions, tick=number) for number, decisions in enumerate(ticks, 1)]
    bodies.append(tick_body(_talk("dan", "At home", "erin"), tick=4))
    bodies.append(tick_body(_talk("bob", "Hello", "alice"), tick=6 + MAX_CONTEXT_TICKS))
    return bodies


_EXPECTED: dict[tuple[str, int, str], str | None] = {
    ("bob", 1, "I said: Who sells fish?"): None,
    ("alice", 1, "bob told me: Who sells fish?"): None,
    ("alice", 2, "I said: Carol does"): "bob told me: Who sells fish?",
    ("bob", 2, "alice told me: Carol does"): "I said: Who sells fish?",
    ("dan", 2, "I said: Rain again"): None,
    ("erin", 2, "dan told me: Rain again"): None,
    ("bob", 3, "I moved to (1, 2)"): None,
    ("erin", 3, "I said: Indeed"): "dan told me: Rain again",
    ("dan", 3, "erin told me: Indeed"): "I said: Rain again",
    ("bob", 4, "I said: Where is she?"): "alice told me: Carol does",
    ("alice", 4, "bob told me: Where is she?"): "I said: Carol does",
    # Erin's own words before went to someone else: what she said is not looked into.
    ("erin", 4, "bob told me: Where is she?"): "I said: Indeed",
    ("erin", 4, "dan told me: At home"): "I said: Indeed",
    ("dan", 4, "I said: At home"): "erin told me: Indeed",
    ("alice", 5, "I said: At the market"): "bob told me: Where is she?",
    ("bob", 5, "alice told me: At the market"): "I said: Where is she?",
    ("bob", 6 + MAX_CONTEXT_TICKS, "I said: Hello"): None,
    ("alice", 6 + MAX_CONTEXT_TICKS, "bob told me: Hello"): None,
}
#: Erin hears two things in tick 4; which of them came last, only their keys say.
_EITHER = ("erin", 5, "alice told me: At the market")


@pytest.mark.parametrize("a_batch", [1, 2, 3, 7])
async def test_a_talk_keeps_what_it_answers_however_ticks_fall_into_batches(
    database: Database, a_batch: int
) -> None:
    bodies = _conversation()
    in_order = sorted(bodies, key=lambda body: int(body.split(b'"tick": ')[1].split(b",")[0]))
    handler = _recorder(database)
    for first in range(0, len(bodies), a_batch):
        await _store(handler, *in_order[first : first + a_batch])
    kept = await _kept(database)
    assert kept.pop(_EITHER) in ("bob told me: Where is she?", None)
    assert kept == _EXPECTED


@pytest.mark.parametrize("swapped", [False, True])
async def test_a_tick_in_two_messages_is_answered_the_same_in_any_batch_and_order(
    database: Database, swapped: bool
) -> None:
    """Of two things heard in one tick, the same is answered in the next, wherever each was when it
    was looked for: in the same batch, or stored."""
    handler = _recorder(database)
    found = set()
    for cuts in ([3], [1, 2], [2, 1], [1, 1, 1]):
        heard = [
            tick_body(_talk(who, f"said by {who}", "erin"), tick=4, world="w") for who in ("a", "b")
        ]
        bodies = heard[::-1] if swapped else heard
        bodies.append(tick_body(_talk("erin", "so?", "a", "b"), tick=5, world="w"))
        async with database.writing() as session:
            await session.execute(text("DELETE FROM world"))
        first = 0
        for cut in cuts:
            await _store(handler, *bodies[first : first + cut])
            first += cut
        found.add((await _kept(database))["erin", 5, "I said: so?"])
    assert len(found) == 1
    assert found != {None}


async def test_order_within_a_batch_changes_nothing(database: Database) -> None:
    handler = _recorder(database)
    await _store(handler, *reversed(_conversation()))
    kept = await _kept(database)
    kept.pop(_EITHER)
    assert kept == _EXPECTED


async def test_redelivered_and_late_ticks_change_no_memory_that_is_stored(
    database: Database,
) -> None:
    """Every order gives the same memories; a context is what was said before, or nothing."""
    random = np.random.default_rng(3)
    bodies = _conversation()
    handler = _recorder(database)
    before: dict[tuple[str, int, str], str | None] = {}
    for body in itertools.chain(
        random.permutation(np.array(bodies, dtype=object)),
        random.permutation(np.array(bodies * 2, dtype=object)),
    ):
        await _store(handler, body)
        kept = await _kept(database)
        assert before.items() <= kept.items()
        before = kept
    said = {(agent, content): tick for agent, tick, content in before}
    assert before.keys() == {*_EXPECTED, _EITHER}
    for (agent, tick, _), context in before.items():
        assert context is None or 0 < tick - said[agent, context] <= MAX_CONTEXT_TICKS


async def test_a_late_tick_finds_what_it_answers(database: Database) -> None:
    first, second, third = (
        tick_body(_talk("bob", speech, "alice"), tick=tick)
        for tick, speech in ((1, "one"), (2, "two"), (3, "three"))
    )
    handler = _recorder(database)
    await _store(handler, first)
    await _store(handler, third)
    await _store(handler, second)
    kept = await _kept(database)
    assert kept["bob", 2, "I said: two"] == "I said: one"
    assert kept["bob", 3, "I said: three"] == "I said: one"


async def test_a_dialogue_in_one_message_goes_by_its_order(database: Database) -> None:
    handler = _recorder(database)
    await _store(handler, tick_body(_talk("bob", "a?", "al"), _talk("al", "b!", "bob")))
    kept = await _kept(database)
    assert kept["al", 42, "I said: b!"] == "bob told me: a?"
    assert kept["bob", 42, "al told me: b!"] == "I said: a?"


async def test_an_answer_is_found_by_the_words_of_what_it_answers(database: Database) -> None:
    handler = _recorder(database)
    await _store(handler, *_conversation())
    async with database.reading() as session:
        agent_id = (
            await session.execute(text("SELECT id FROM agent WHERE name = 'alice'"))
        ).scalar_one()
        asked = Asked(agent_id=agent_id, observation="fish", size=10)
        (found,) = await find(session, [asked], filters=Filters())
        rows = await session.execute(
            text("SELECT content FROM memory WHERE id = ANY(:ids)"), {"ids": list(found)}
        )
        contents: Sequence[str] = rows.scalars().all()
    assert set(contents) == {"bob told me: Who sells fish?", "I said: Carol does"}


def _policy(use: str) -> Policy:
    return parse_policy(
        f"""
version: 1
defaults:
  actions:
    talk:
      importance: 8
      kind: conversation
      context: {use}
      wording: {{en: "I said: {{speech}}", zh: "{{speech}}", ja: "{{speech}}"}}
  other: drop
""",
        source="test",
    )


@pytest.mark.parametrize("a_batch", [1, 3])
async def test_an_utterance_that_wants_no_context_is_answered_in_any_batch(
    database: Database, a_batch: int
) -> None:
    policy = parse_policy(
        """
version: 1
defaults:
  actions:
    talk:
      importance: 8
      kind: conversation
      context: words
      wording: {en: "I said: {speech}", zh: "{speech}", ja: "{speech}"}
    shout:
      importance: 8
      kind: conversation
      wording: {en: "I shouted: {speech}", zh: "{speech}", ja: "{speech}"}
    mumble:
      importance: 1
      wording: {en: "I mumbled: {speech}", zh: "{speech}", ja: "{speech}"}
  other: drop
""",
        source="test",
    )
    handler = _recorder(database, policy)
    bodies = [
        tick_body({"agent": "bob", "action": action, "speech": action}, tick=tick)
        for tick, action in enumerate(("shout", "mumble", "talk"), start=1)
    ]
    for first in range(0, len(bodies), a_batch):
        await _store(handler, *bodies[first : first + a_batch])
    assert await _kept(database) == {
        ("bob", 1, "I shouted: shout"): None,
        ("bob", 2, "I mumbled: mumble"): None,
        ("bob", 3, "I said: talk"): "I shouted: shout",
    }


async def test_no_context_is_kept_where_the_policy_wants_none(database: Database) -> None:
    handler = _recorder(database, _policy("none"))
    await _store(handler, *_conversation())
    assert set((await _kept(database)).values()) == {None}


async def test_embedded_context_is_part_of_the_text_that_is_embedded_and_of_no_other(
    database: Database, database_settings: DatabaseSettings
) -> None:
    """The hash that a memory carries is of the text that was sent; what is shown is the content."""
    handler = _recorder(database, _policy("embedded"))
    await _store(handler, *_conversation())
    kept = await _kept(database)
    texts = {
        content if context is None else in_context(content, context)
        for (_, _, content), context in kept.items()
    }
    assert any("\n" in told for told in texts)
    async with handling(database, embedder_settings(database_settings)) as embedder:
        await embedder.sweep(full=True)
        jobs = await embedder.claim()
        assert {job.content for job in jobs} == texts
        assert all(content_hash(job.content) == job.content_hash for job in jobs)
        await embedder.embed(jobs)
    async with database.reading() as session:
        hashes = set((await session.execute(text("SELECT content_hash FROM embedding"))).scalars())
    assert hashes == {content_hash(told) for told in texts}
