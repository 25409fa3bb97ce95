"""Which deliveries are one event, and which are two."""

from __future__ import annotations

import json

import pytest

from tickmind.decoding import decode_tick
from tickmind.grading import grade
from tickmind.identity import (
    KEY_BYTES,
    canonical,
    content_hash,
    event_key,
    hearer_key,
    reject_key,
)
from tickmind.memory import Memory
from tickmind.policy import default_policy

_POLICY = default_policy()


def _memories(*decisions: object, world: str = "town-7", tick: int = 42) -> tuple[Memory, ...]:
    body = json.dumps({"world": world, "tick": tick, "decisions": decisions}).encode()
    return grade(decode_tick(body), _POLICY).memories


def _key(*decisions: object, world: str = "town-7", tick: int = 42) -> bytes:
    return _memories(*decisions, world=world, tick=tick)[0].event_key


def _talk(**fields: object) -> dict[str, object]:
    return {"agent": "bob", "action": "talk", "speech": "Fish"} | fields


def test_the_same_decision_has_the_same_key_in_any_message() -> None:
    other = {"agent": "eve", "action": "move", "target": [1, 2]}

    assert _key(_talk()) == _memories(other, _talk(), other)[1].event_key


def test_the_same_decision_has_the_same_key_however_it_is_written() -> None:
    """The order of fields, nulls, unknown fields and a number for its digits say nothing."""
    written = [
        {"agent": 7, "action": "talk", "speech": "Fish"},
        {"speech": "Fish", "action": "talk", "agent": "7"},
        {"agent": "7", "action": "talk", "speech": "Fish", "place": None, "mood": "glad"},
    ]

    assert len({_key(decision) for decision in written}) == 1


@pytest.mark.parametrize(
    "other",
    [
        _talk(speech="Fish!"),
        _talk(agent="eve"),
        _talk(action="observe"),
        _talk(place="market"),
        _talk(importance=9),
        _talk(heard_by=[]),
        _talk(event_id="1"),
    ],
    ids=str,
)
def test_another_decision_has_another_key(other: dict[str, object]) -> None:
    assert _key(_talk()) != _key(other)


def test_another_world_or_tick_has_another_key() -> None:
    """cases 10 and 11: the same sentence in another tick, or in another run, is another event."""
    keys = {_key(_talk()), _key(_talk(), tick=9), _key(_talk(), world="town-8")}

    assert len(keys) == 3


def test_identical_decisions_of_one_message_are_told_apart_by_their_order() -> None:
    """The second of them is the second one in every redelivery."""
    once = [memory.event_key for memory in _memories(_talk(), _talk(), _talk())]
    again = [memory.event_key for memory in _memories(_talk(), _talk(), _talk())]

    assert len(set(once)) == 3
    assert once == again


def test_an_event_id_counts_alone() -> None:
    """Within world, tick and agent; whatever else the decision says."""
    assert _key(_talk(event_id="e1")) == _key(_talk(event_id="e1", speech="Meat"))
    assert _key(_talk(event_id="e1")) != _key(_talk(event_id="e2"))
    assert _key(_talk(event_id="e1")) != _key(_talk(event_id="e1"), tick=43)
    assert _key(_talk(event_id="e1")) != _key(_talk(event_id="e1", agent="eve"))
    assert _key(_talk(event_id=17)) == _key(_talk(event_id="17"))


def test_an_event_id_is_one_event_twice_in_a_message_too() -> None:
    first, second = _memories(_talk(event_id="e1"), _talk(event_id="e1"))

    assert first.event_key == second.event_key


def test_each_hearer_has_a_key_of_their_own() -> None:
    said, alice, carol = _memories(_talk(heard_by=["alice", "carol"]))

    assert len({said.event_key, alice.event_key, carol.event_key}) == 3
    assert alice.event_key == hearer_key(said.event_key, "alice")


def test_keys_stay_what_they_are_from_release_to_release() -> None:
    """An event that is stored already is known again, whoever stored it."""
    said = {"speech": 'Fish "fresh" \u9b5a \u2028', "heard_by": ["alice"], "place": "market"}
    memories = _memories(
        {"agent": "bob", "action": "talk", **said},
        {"agent": 17, "action": "move", "target": [15.5, -8, 1e-5], "importance": 9, "core": True},
        {"agent": "dan", "action": "observe", "text": "fire", "event_id": "fire-1"},
    )

    assert [memory.event_key.hex() for memory in memories] == [
        "bba1326e3290d22562675094ad9451dd",
        "5f09dc25c0095bd823b13c8e26ddbc99",
        "acd784847e81eef385dd1b32ae39eb9e",
        "829764a26f5368b7c0a3ba69c4aeb7c9",
    ]


def test_fields_do_not_run_together() -> None:
    keys = {
        event_key(world, tick, agent, event_id=id_, decision=b"", ordinal=0)
        for world, tick, agent, id_ in [
            ("a", 1, "1b", "c"),
            ("a1", 1, "b", "c"),
            ("a", 11, "b", "c"),
            ("a", 1, "1", "bc"),
        ]
    }

    assert len(keys) == 4


def test_an_id_is_no_hash() -> None:
    decision = canonical({"agent": "bob"})
    by_hash = event_key("w", 1, "bob", event_id=None, decision=decision, ordinal=0)
    by_id = event_key("w", 1, "bob", event_id=decision.decode(), decision=b"", ordinal=0)

    assert by_hash != by_id
    assert len(by_hash) == KEY_BYTES


def test_a_reject_is_told_by_reason_world_and_body() -> None:
    keys = {
        reject_key("invalid", "w", b"x"),
        reject_key("invalid", None, b"x"),
        reject_key("database", "w", b"x"),
        reject_key("invalid", "v", b"x"),
        reject_key("invalid", "w", b"y"),
    }

    assert len(keys) == 5


def test_a_text_has_one_hash_whoever_remembers_it() -> None:
    assert content_hash("I moved to (3, 4)") == content_hash("I moved to (3, 4)")
    assert content_hash("a") != content_hash("b")


def test_keys_do_not_change_from_release_to_release() -> None:
    """A changed key would store every redelivered event a second time."""
    said, heard = _memories(_talk(heard_by=["alice"]))

    assert said.event_key.hex() == "37bdba176167840c5f2bcbd8fbc6acf5"
    assert heard.event_key.hex() == "b3227c219b8c2c0100fb004d5548e5dd"
    assert _key(_talk(event_id="e1")).hex() == "c7aef56500439a9b229544f39fe22503"
    assert content_hash("Fish").hex() == "039c35670bd942c669cd8cb6f74e6b77"
