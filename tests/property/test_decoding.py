"""Whatever arrives is decoded or refused in words, and every decision of it is accounted for."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tickmind.decoding import DecodedTick, alone, decode_recall, decode_tick
from tickmind.errors import InvalidMessage

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.just("\ud800")
    | st.just("a\x00b")
)
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
_NAMES = st.text(min_size=1, max_size=20) | st.integers() | _SCALARS
_DECISIONS = st.fixed_dictionaries(
    {"agent": _NAMES, "action": st.sampled_from(["talk", "move", "stay", "x", ""]) | _SCALARS},
    optional={
        "speech": st.text() | _SCALARS,
        "text": st.text() | _SCALARS,
        "target": st.lists(st.integers() | st.floats(), max_size=4) | _JSON,
        "place": st.text() | _SCALARS,
        "heard_by": st.lists(_NAMES, max_size=3) | _JSON,
        "importance": st.integers(-1, 12) | _SCALARS,
        "core": st.booleans() | _SCALARS,
        "event_id": _NAMES,
        "unknown": _JSON,
    },
)
_SOUND = st.fixed_dictionaries(
    {"agent": st.text(min_size=1, max_size=9) | st.integers(), "action": st.sampled_from("xyz")},
    optional={
        "speech": st.text(),
        "target": st.lists(st.integers() | st.floats(-1e9, 1e9), min_size=2, max_size=3),
        "heard_by": st.lists(st.text(min_size=1, max_size=9) | st.integers(), max_size=3),
        "importance": st.integers(1, 10),
        "unknown": _JSON,
    },
)
_TICKS = st.fixed_dictionaries(
    {
        "world": st.sampled_from(["w", "张三镇", 17, "a\x00b"]) | _NAMES,
        "tick": st.integers(0, 2**63 - 1) | st.integers(-2, 2**64),
        "decisions": st.lists(_SOUND | _DECISIONS | _JSON, max_size=5),
    },
    optional={"time": st.datetimes().map(str) | st.none() | st.text(max_size=25)},
)


def _decode(body: bytes) -> DecodedTick | None:
    """None: refused as a whole. Anything but InvalidMessage is a failure of the test."""
    try:
        return decode_tick(body)
    except InvalidMessage as exc:
        return None if str(exc) else pytest.fail("refused without a word")


@given(st.binary())
@example(b'{"world": "w", "tick": 1, "decisions": [[[[[' + b"[" * 5000)
@example(b"\xef\xbb\xbf")
def test_any_bytes_are_a_tick_or_refused_in_words(body: bytes) -> None:
    _decode(body)


@given(_JSON)
def test_any_json_is_a_tick_or_refused_in_words(value: Any) -> None:
    _decode(json.dumps(value).encode())


@given(_TICKS)
def test_every_decision_is_sound_or_rejected_and_nothing_else(value: dict[str, Any]) -> None:
    tick = _decode(json.dumps(value).encode())

    if tick is None:
        return
    assert len(tick.decisions) + len(tick.rejected) == len(value["decisions"])
    for rejected in tick.rejected:
        # Kept as JSON in UTF-8 that PostgreSQL can hold, and refused again if it is retried.
        again = json.loads(rejected.body.decode(), parse_constant=lambda _: 1 / 0)
        assert again["world"] == tick.world
        assert "\x00" not in rejected.detail
        second = _decode(rejected.body)
        assert second is not None
        assert (len(second.decisions), len(second.rejected)) == (0, 1)


@given(_TICKS)
def test_what_is_taken_can_be_stored(value: dict[str, Any]) -> None:
    """case 1: no NUL and no lone surrogate is left in anything that goes to the database."""
    tick = _decode(json.dumps(value).encode())

    if tick is None:
        return
    texts = [tick.world]
    for decision in tick.decisions:
        texts += [decision.agent, decision.action, decision.event_id or ""]
        texts += [decision.speech or "", decision.text or "", decision.place or ""]
        texts += decision.heard_by or []
    for text in texts:
        assert "\x00" not in text
        text.encode()


@given(_TICKS)
def test_decoding_again_gives_the_same(value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()

    assert _decode(body) == _decode(body)


@given(_TICKS)
def test_a_sound_decision_alone_decodes_to_itself(value: dict[str, Any]) -> None:
    tick = _decode(json.dumps(value).encode())

    if tick is None:
        return
    for decision in tick.decisions:
        again = _decode(alone(tick, decision))
        assert again is not None
        assert again.decisions == (decision,)
        assert (again.world, again.tick, again.time) == (tick.world, tick.tick, tick.time)


@given(st.binary() | _JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_recall_or_refused_in_words(body: bytes) -> None:
    with contextlib.suppress(InvalidMessage):
        decode_recall(body)


@given(
    st.lists(
        st.fixed_dictionaries({"agent": _NAMES, "observation": st.text() | _SCALARS}) | _JSON,
        min_size=1,
        max_size=5,
    )
)
def test_every_query_of_a_recall_has_its_place(queries: list[Any]) -> None:
    body = json.dumps({"world": "w", "tick": 1, "queries": queries}).encode()

    assert len(decode_recall(body).queries) == len(queries)


_OPTIONS = st.dictionaries(
    st.sampled_from(
        [
            *("k", "weights", "as_of_tick", "from_tick", "to_tick", "exclude_last_ticks"),
            *("kinds", "min_importance", "distinct", "max_core", "fallback"),
            *("wait_for_tick", "wait_until", "wait_ms", "deadline_ms", "max_chars"),
        ]
    ),
    _JSON
    | st.sampled_from(["off", "text", "numbers", "none", "recorded", "embedded"])
    | st.integers(-1, 101)
    | st.sampled_from([2**63 - 1, 2**63, 10**400, -(2**63)]),
    max_size=4,
)


@given(_OPTIONS)
def test_any_options_are_in_their_range_or_refused_in_words(options: dict[str, Any]) -> None:
    asked = {"world": "w", "tick": 1, "queries": [{"agent": "a", "observation": "b"}]} | options
    try:
        taken = decode_recall(json.dumps(asked).encode()).options
    except InvalidMessage as exc:
        if not str(exc):
            pytest.fail("refused without a word")
        return
    for name in ("as_of_tick", "from_tick", "to_tick", "exclude_last_ticks", "wait_for_tick"):
        value = getattr(taken, name)
        assert value is None or 0 <= value < 2**63
    assert 1 <= taken.k <= 100
    assert 0 <= taken.wait_ms <= 60_000
    assert taken.max_core is None or 0 <= taken.max_core <= 100
    if taken.from_tick is not None and taken.to_tick is not None:
        assert taken.from_tick <= taken.to_tick
    if taken.weights is not None:
        for weight in taken.weights.model_dump(exclude_none=True).values():
            assert 0 <= weight <= 1000
