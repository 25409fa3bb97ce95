"""Every input is bounded, with an error that says so: taken at its bound, refused one above.

Beside these: bodies (`test_decoding`), the provider's answer (`test_provider_garbage`), replies
(`test_retriever_handler`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.commands import run_here
from tickmind.cli import trace
from tickmind.decoding import decode_recall, decode_tick
from tickmind.errors import ConfigurationError, InvalidMessage
from tickmind.files import MAX_FILE_BYTES
from tickmind.memory import MAX_TICK
from tickmind.messages import MAX_BODY_BYTES, MAX_NAME_CHARS, MAX_QUERIES
from tickmind.policy import load_policy
from tickmind.settings import BrokerSettings, load
from tickmind.telemetry import read_headers
from tickmind_retriever.answers import MAX_REPLY_BYTES
from tickmind_retriever.ranking import load_ranking

_NAME, _LONG = "x" * MAX_NAME_CHARS, "x" * (MAX_NAME_CHARS + 1)


def _tick(change: dict[str, Any], **envelope: Any) -> bytes:
    decision = {"agent": "a", "action": "talk", "speech": "hello", **change}
    return json.dumps({"world": "w", "tick": 1, "decisions": [decision], **envelope}).encode()


def _recall(**change: Any) -> bytes:
    query = {"agent": "a", "observation": "o"}
    return json.dumps({"world": "w", "tick": 1, "queries": [query], **change}).encode()


@pytest.mark.parametrize(
    ("field", "at", "above"),
    [
        ("agent", _NAME, _LONG),
        ("agent", 10**MAX_NAME_CHARS - 1, 10**MAX_NAME_CHARS),
        ("agent", -(10**MAX_NAME_CHARS) + 1, -(10**MAX_NAME_CHARS)),
        ("event_id", _NAME, _LONG),
        ("action", "x" * 100, "x" * 101),
        ("place", "x" * 500, "x" * 501),
        ("target", [1, 2, 3], [1, 2, 3, 4]),
        ("heard_by", ["b"] * 10_000, ["b"] * 10_001),
        ("heard_by", [_NAME], [_LONG]),
        ("importance", 10, 11),
    ],
)
def test_a_decision_is_bounded(field: str, at: object, above: object) -> None:
    if isinstance(at, int) and at < 0:  # its sign counts
        at = int(str(at)[:-1])
    taken = decode_tick(_tick({field: at}))
    assert (len(taken.decisions), taken.rejected) == (1, ())
    refused = decode_tick(_tick({field: above}))
    assert refused.decisions == ()
    assert field in refused.rejected[0].detail


@pytest.mark.parametrize(
    ("field", "at", "above"),
    [
        ("world", _NAME, _LONG),
        ("tick", MAX_TICK, MAX_TICK + 1),
        ("time", "9999-12-31", "10000-01-01"),
    ],
)
def test_a_tick_is_bounded(field: str, at: object, above: object) -> None:
    assert decode_tick(_tick({}, **{field: at})).decisions
    with pytest.raises(InvalidMessage, match=field):
        decode_tick(_tick({}, **{field: above}))


@pytest.mark.parametrize(
    ("field", "at", "above"),
    [
        ("world", _NAME, _LONG),
        ("tick", MAX_TICK, MAX_TICK + 1),
        ("queries", [{}] * MAX_QUERIES, [{}] * (MAX_QUERIES + 1)),
        ("k", 100, 101),
        ("deadline_ms", 60_000, 60_001),
        ("wait_ms", 60_000, 60_001),
        ("max_chars", 1_000_000, 1_000_001),
        ("max_core", 100, 101),
        ("kinds", ["x"] * 100, ["x"] * 101),
        ("min_importance", 10, 11),
        ("weights", {"recency": 1000.0}, {"recency": 1000.0001}),
        *((name, MAX_TICK, MAX_TICK + 1) for name in ("as_of_tick", "from_tick", "to_tick")),
        *((name, MAX_TICK, MAX_TICK + 1) for name in ("exclude_last_ticks", "wait_for_tick")),
    ],
)
def test_a_recall_is_bounded(field: str, at: object, above: object) -> None:
    assert decode_recall(_recall(**{field: at})).queries
    with pytest.raises(InvalidMessage, match=field):
        decode_recall(_recall(**{field: above}))


@pytest.mark.parametrize(
    ("field", "at", "above"),
    [("agent", _NAME, _LONG), ("observation", "o" * 100_000, "o" * 100_001)],
)
def test_a_query_is_bounded_and_costs_only_itself(field: str, at: str, above: str) -> None:
    sound = {"agent": "a", "observation": "o"}
    asked = decode_recall(_recall(queries=[{**sound, field: at}, {**sound, field: above}, sound]))
    first, second, third = asked.queries
    assert not isinstance(first, InvalidMessage)
    assert isinstance(second, InvalidMessage)
    assert field in str(second)
    assert not isinstance(third, InvalidMessage)


def test_texts_are_bounded_by_the_message_that_holds_them() -> None:
    """A speech may be as long as a message; so may all other texts together."""
    room = MAX_BODY_BYTES - len(_tick({"speech": ""}))
    [said] = decode_tick(_tick({"speech": "x" * room})).decisions
    assert said.speech == "x" * room
    with pytest.raises(InvalidMessage, match=f"at most {MAX_BODY_BYTES}"):
        decode_tick(_tick({"speech": "x" * (room + 1)}))


def test_a_largest_request_cannot_ask_for_more_than_a_reply_may_hold() -> None:
    """What its fragments may hold is far beyond: `encoded` bounds the reply itself."""
    asked = decode_recall(_recall(queries=[{}] * MAX_QUERIES, max_chars=1_000_000)).options
    assert len(asked.queries) * asked.max_chars > MAX_REPLY_BYTES


_LOADERS: dict[str, Callable[[Path], object]] = {
    "policy": load_policy,
    "ranking": lambda path: load_ranking(path, half_life_ticks=500),
}


@pytest.mark.parametrize("kind", sorted(_LOADERS))
def test_a_file_that_a_setting_names_is_bounded(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text("#" + "x" * (MAX_FILE_BYTES - 1))
    with pytest.raises(ConfigurationError, match=f"a {kind} is a mapping"):  # it was read
        _LOADERS[kind](path)
    path.write_text("#" + "x" * MAX_FILE_BYTES)
    with pytest.raises(ConfigurationError, match=f"more than {MAX_FILE_BYTES} bytes"):
        _LOADERS[kind](path)
    with pytest.raises(ConfigurationError, match=f"more than {MAX_FILE_BYTES} bytes"):
        _LOADERS[kind](Path("/dev/zero"))


@pytest.mark.parametrize("kind", sorted(_LOADERS))
def test_a_file_cannot_grow_by_its_aliases(kind: str, tmp_path: Path) -> None:
    """Ten anchors, each ten of the one before, would be 10^10 values."""
    bomb = ["version: 1", "defaults:", "  a: &a [x, x, x, x, x, x, x, x, x, x]"]
    bomb += [f"  {b}: &{b} [{', '.join([f'*{a}'] * 10)}]" for a, b in pairwise("abcdefghij")]
    path = tmp_path / "file.yaml"
    path.write_text("\n".join(bomb))
    with pytest.raises(ConfigurationError, match="line"):
        _LOADERS[kind](path)


def test_a_secret_file_is_bounded_and_not_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    monkeypatch.setenv("TICKMIND_AMQP_PASSWORD_FILE", str(path))
    path.write_text("x" * MAX_FILE_BYTES)
    assert len(load(BrokerSettings).amqp_password.get_secret_value()) == MAX_FILE_BYTES
    for body in (b"x" * (MAX_FILE_BYTES + 1), b"s3cret\xff"):
        path.write_bytes(body)
        with pytest.raises(ConfigurationError, match="cannot be read") as refused:
            load(BrokerSettings)
        assert "s3cret" not in str(refused.value)
        assert refused.value.__cause__ is None


def test_a_line_of_a_trace_is_bounded(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In each command that reads traces; what has no line breaks is not read to its end."""
    monkeypatch.setattr(trace, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "town.jsonl"
    line = _tick({"speech": ""}).decode()
    for length, code in ((1000, 0), (1001, 2)):
        padded = line.replace('"speech": ""', '"speech": "' + "x" * (length - len(line)) + '"')
        assert len(padded) == length
        path.write_text(f"\n{padded}\n")
        for command in (["policy", "test"], ["estimate"]):
            done = run_here(capsys, monkeypatch, *command, str(path))
            assert done.code == code, (command, length, done)
            assert ("line 2 has more than 1000 bytes" in done.err) is (code == 2)


async def test_lines_are_read_as_they_come_and_no_further_than_their_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines"
    lines = [b"", b"a", b"b" * 600_000, b"", b"c" * 300_000, b"d"]
    path.write_bytes(b"\n".join(lines))
    with trace.opened(path) as descriptor:
        assert [line async for line in trace.read(descriptor)] == lines
    monkeypatch.setattr(trace, "MAX_LINE_BYTES", 599_999)
    with trace.opened(path) as descriptor:
        reading = trace.read(descriptor)
        assert [await anext(reading), await anext(reading)] == lines[:2]
        with pytest.raises(ConfigurationError, match="line 3 has more than"):
            await anext(reading)
    monkeypatch.setattr(trace, "MAX_LINE_BYTES", 1_000_000)
    with (
        trace.opened(Path("/dev/zero")) as descriptor,
        pytest.raises(ConfigurationError, match="line 1 "),
    ):
        _ = [line async for line in trace.read(descriptor)]


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": "0" * 100_000},
        {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01" + "-x" * 50_000},
        {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "tracestate": "a=b," * 30_000},
        {"baggage": "a=b," * 30_000},
        {"traceparent": 1, "tracestate": None, "baggage": {"a": "b"}, "x": [1] * 10_000},
        {str(number): "x" for number in range(10_000)},
    ],
    ids=["long", "long-version", "tracestate", "baggage", "types", "many"],
)
def test_headers_of_any_size_are_read_as_far_as_they_make_sense(headers: dict[str, Any]) -> None:
    """The broker bounds them by its frame, 128 KiB; none of it is carried on beyond a context's
    own bounds."""
    from opentelemetry import propagate

    carried: dict[str, str] = {}
    propagate.inject(carried, read_headers(headers))
    assert sum(map(len, carried.values())) <= 64 * 1024
