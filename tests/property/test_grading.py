"""Grading: the same message gives the same memories, and every decision is accounted for."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tickmind.clean import is_blank
from tickmind.decoding import DecodedTick, decode_tick
from tickmind.grading import grade
from tickmind.identity import KEY_BYTES, canonical
from tickmind.policy import Policy, WorldPolicy, default_policy

_DEFAULT = default_policy()

_WORDS = (
    st.sampled_from(["", " ", "\u200b", "Fish", "你好", "魚を", "a\nb", "{speaker}"]) | st.text()
)
_AGENTS = st.sampled_from(["alice", "bob", "john_doe", "john-doe", "a%", "o'x", 17])
_DECISIONS = st.fixed_dictionaries(
    {
        "agent": _AGENTS,
        "action": st.sampled_from(["talk", "move", "observe", "stay", "sing", "Action", "drop"]),
    },
    optional={
        "speech": _WORDS,
        "text": _WORDS,
        "target": st.lists(
            st.integers() | st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=3
        ),
        "place": st.sampled_from(["", " ", "market", "home"]),
        "heard_by": st.lists(_AGENTS, max_size=4),
        "importance": st.integers(1, 10),
        "core": st.booleans(),
        "event_id": st.sampled_from(["e1", "e2", 3]),
    },
)
_TICKS = st.lists(_DECISIONS, max_size=8).map(
    lambda decisions: decode_tick(
        json.dumps({"world": "w", "tick": 42, "decisions": decisions}).encode()
    )
)


@st.composite
def _policies(draw: st.DrawFn) -> Policy:
    rules = _DEFAULT.defaults
    changed: dict[str, Any] = {
        "language": draw(st.sampled_from(["auto", "en", "zh", "ja"])),
        "audience": draw(st.sampled_from(["same_place", "message", "none"])),
        "max_hearers": draw(st.integers(0, 3)),
        "actions": {
            name: draw(st.sampled_from([rule, "drop"])) for name, rule in rules.actions.items()
        },
        "other": draw(st.sampled_from([rules.other, "drop"])),
    }
    return Policy(version=1, defaults=WorldPolicy(**changed))


@given(_TICKS, _policies())
def test_grading_again_gives_the_same(tick: DecodedTick, policy: Policy) -> None:
    assert grade(tick, policy) == grade(tick, policy)


@given(_TICKS, _policies())
def test_every_decision_is_kept_dropped_or_rejected(tick: DecodedTick, policy: Policy) -> None:
    graded = grade(tick, policy)

    kept = sum(1 for memory in graded.memories if memory.speaker is None)
    assert kept + graded.dropped.total() + len(graded.rejected) == len(tick.decisions)


@given(_TICKS, _policies())
def test_a_memory_is_fit_to_be_stored(tick: DecodedTick, policy: Policy) -> None:
    for memory in grade(tick, policy).memories:
        assert not is_blank(memory.content)
        assert 1 <= memory.importance <= 10
        assert len(memory.event_key) == KEY_BYTES
        assert memory.speaker != memory.agent


@given(_TICKS, _policies())
def test_keys_differ_but_for_events_of_one_id(tick: DecodedTick, policy: Policy) -> None:
    memories = grade(tick, policy).memories
    named = any(decision.event_id is not None for decision in tick.decisions)

    keys = Counter((memory.agent, memory.event_key) for memory in memories)

    assert named or not keys or max(keys.values()) == 1


@given(_TICKS, _policies(), st.randoms())
def test_keys_do_not_depend_on_the_neighbours(
    tick: DecodedTick, policy: Policy, random: Any
) -> None:
    """Redelivered in another company, an event is the same event."""
    shuffled = list(tick.decisions)
    random.shuffle(shuffled)
    other = DecodedTick(world="w", tick=42, time=None, decisions=tuple(shuffled))

    def own(graded_tick: DecodedTick) -> Counter[tuple[str, bytes]]:
        return Counter(
            (memory.agent, memory.event_key)
            for memory in grade(graded_tick, policy).memories
            if memory.speaker is None
        )

    assert own(tick) == own(other)


@given(_TICKS, _policies())
def test_nobody_hears_more_often_or_in_larger_numbers_than_allowed(
    tick: DecodedTick, policy: Policy
) -> None:
    graded = grade(tick, policy)

    talks = sum(1 for decision in tick.decisions if decision.action == "talk")
    heard = sum(1 for memory in graded.memories if memory.speaker is not None)
    assert heard <= talks * policy.defaults.max_hearers
    assert graded.hearers_cut >= 0


@given(_TICKS)
def test_a_decision_in_canonical_form_is_json_as_python_writes_it(tick: DecodedTick) -> None:
    """Keys of what is stored hang on each byte of it."""
    for decision in tick.decisions:
        told = decision.model_dump(exclude_none=True)
        written = json.dumps(told, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        assert canonical(vars(decision)) == written.encode()
