"""What of a message's bytes is taken, what is rejected, and with which words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tickmind.decoding import DecodedTick, alone, decode_recall, decode_tick, parse_json
from tickmind.errors import InvalidMessage
from tickmind.messages import MAX_BODY_BYTES, RecallQuery

_MOVE = {"agent": "bob", "action": "move", "target": [15, 8]}


def _tick(*decisions: Any, **fields: Any) -> bytes:
    message = {"world": "town-7", "tick": 42, "decisions": list(decisions)} | fields
    return json.dumps(message).encode()


def _raw(decision: str) -> bytes:
    return b'{"world": "town-7", "tick": 42, "decisions": [%s]}' % decision.encode()


def test_takes_a_tick_in_the_contracts_form() -> None:
    tick = decode_tick(
        _tick(
            {"agent": "bob", "action": "talk", "speech": "Fresh fish", "heard_by": ["alice", 17]},
            {"agent": 17, "action": "move", "target": [15, 8.5], "place": "market"},
            {"agent": "dan", "action": "observe", "text": "Fire", "importance": 9, "core": True},
            time="2026-08-02T09:00:00Z",
        )
    )

    assert (tick.world, tick.tick, tick.rejected) == ("town-7", 42, ())
    assert [decision.agent for decision in tick.decisions] == ["bob", "17", "dan"]
    assert tick.decisions[0].heard_by == ["alice", "17"]
    assert tick.decisions[1].target == [15, 8.5]
    assert (tick.decisions[2].importance, tick.decisions[2].core) == (9, True)


def test_ignores_unknown_fields_so_that_either_side_may_grow() -> None:
    tick = decode_tick(_tick(_MOVE | {"mood": "glad", "more": {"a": [1]}}, engine="7.1"))

    assert len(tick.decisions) == 1
    assert tick.rejected == ()


@pytest.mark.parametrize("number", [2**31, 2**53, 2**53 + 1, 2**63 - 1])
def test_keeps_a_tick_exactly(number: int) -> None:
    """case 8: beyond 32 bits, and beyond what a float can hold."""
    assert decode_tick(_tick(_MOVE, tick=number)).tick == number


@pytest.mark.parametrize("number", [-1, -(2**63), 2**63, 10**30])
def test_refuses_a_tick_out_of_range(number: int) -> None:
    """case 8: tick -1 has one documented outcome."""
    with pytest.raises(InvalidMessage, match=r"^tick: Input should be"):
        decode_tick(_tick(_MOVE, tick=number))


def test_keeps_an_integer_agent_as_its_digits() -> None:
    """case 8: an id beyond 2^53 given as a JSON number."""
    tick = decode_tick(_raw('{"agent": 435075722181083147, "action": "x", "text": "hi"}'))

    assert tick.decisions[0].agent == "435075722181083147"


def test_keeps_an_integer_world_of_any_length() -> None:
    digits = "9" * 200

    assert decode_tick(_tick(_MOVE, world=int(digits))).world == digits


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "not JSON"),
        (b"garbage", "not JSON"),
        (b'{"world": "w", "tick": 1, "decisions": [', "not JSON"),
        (b'{"world": "w"} {}', "not JSON"),
        (b"\xff\xfe{\x00}\x00", "not UTF-8 .byte 0."),
        ('{"world": "w\u00e9"}'.encode("latin-1"), "not UTF-8"),
        (b"null", "Input should be a valid dictionary"),
        (b"[]", "Input should be a valid dictionary"),
        (b"5", "Input should be a valid dictionary"),
        (b"{}", "world: Field required; tick: Field required; decisions: Field required"),
        (b'{"world": "w", "tick": 1}', "decisions: Field required"),
        (b'{"world": "w", "tick": "1", "decisions": []}', "tick: Input should be a valid integer"),
        (b'{"world": "w", "tick": 1.0, "decisions": []}', "tick: Input should be a valid integer"),
        (b'{"world": "w", "tick": true, "decisions": []}', "tick: Input should be a valid int"),
        (b'{"world": "w", "tick": NaN, "decisions": []}', "tick: Input should be a valid integer"),
        (b'{"world": "", "tick": 1, "decisions": []}', "world: String should have at least 1"),
        (b'{"world": null, "tick": 1, "decisions": []}', "world: must be a string or an integer"),
        (b'{"world": 1.5, "tick": 1, "decisions": []}', "world: must be a string or an integer"),
        (b'{"world": true, "tick": 1, "decisions": []}', "world: must be a string or an integer"),
        (b'{"world": NaN, "tick": 1, "decisions": []}', "world: must be a string or an integer"),
        (b'{"world": "w", "tick": 1, "decisions": {}}', "decisions: Input should be a valid list"),
        (b'{"world": "w", "tick": 1, "decisions": "x"}', "decisions: Input should be a valid list"),
        (b'{"world": "w", "tick": 1, "time": 5, "decisions": []}', "time: must be an ISO 8601"),
        (b'{"world": "w", "tick": 1, "time": "noon", "decisions": []}', "time: must be an ISO 860"),
        (
            b'{"world": "w", "tick": 1, "time": "0001-01-01T00:00+14:00", "decisions": []}',
            "time: lies outside the years",
        ),
        (b'{"world": "w", "tick": %s, "decisions": []}' % (b"9" * 5000), "more than 4300 digits"),
        (b'{"world": %s, "tick": 1, "decisions": []}' % (b"9" * 201), "world: must have at most"),
    ],
)
def test_refuses_a_message_that_is_no_tick(body: bytes, told: str) -> None:
    """case 9: non-JSON, not UTF-8, missing fields and wrong types, each told in words."""
    with pytest.raises(InvalidMessage, match=told) as caught:
        decode_tick(body)
    assert caught.value.reason == "invalid"


@pytest.mark.parametrize(
    ("decision", "told"),
    [
        ('{"action": "move"}', "agent: Field required"),
        ('{"agent": "a"}', "action: Field required"),
        ('{"agent": null, "action": "x"}', "agent: must be a string or an integer"),
        ('{"agent": 1.5, "action": "x"}', "agent: must be a string or an integer"),
        ('{"agent": "", "action": "x"}', "agent: String should have at least 1"),
        ('{"agent": "a", "action": 5}', "action: Input should be a valid string"),
        ('{"agent": "a", "action": ""}', "action: String should have at least 1"),
        ('{"agent": "a", "action": "x", "speech": 5}', "speech: Input should be a valid string"),
        ('{"agent": "a", "action": "x", "target": [1]}', "target: List should have at least 2"),
        ('{"agent": "a", "action": "x", "target": ["1", "2"]}', "target.0"),
        ('{"agent": "a", "action": "x", "target": [1e400, 2]}', "should be a finite number"),
        (
            '{"agent": "a", "action": "x", "heard_by": "bob"}',
            "heard_by: Input should be a",
        ),
        ('{"agent": "a", "action": "x", "heard_by": [null]}', "heard_by.0: must be a string"),
        ('{"agent": "a", "action": "x", "importance": 0}', "importance: Input should be greater"),
        ('{"agent": "a", "action": "x", "importance": 11}', "importance: Input should be less"),
        ('{"agent": "a", "action": "x", "importance": "9"}', "importance: Input should be a valid"),
        ('{"agent": "a", "action": "x", "core": 1}', "core: Input should be a valid boolean"),
        ('{"agent": "a", "action": "x", "event_id": ""}', "event_id: String should have at least"),
        ('{"agent": "a", "action": "x", "n": NaN}', "holds NaN or Infinity"),
        ('{"agent": "a", "action": "x", "n": {"m": [-Infinity]}}', "holds NaN or Infinity"),
        ("5", "message: Input should be a valid dictionary"),
        ("null", "message: Input should be a valid dictionary"),
        ('"move"', "message: Input should be a valid dictionary"),
    ],
)
def test_rejects_a_bad_decision_and_keeps_its_neighbours(decision: str, told: str) -> None:
    """case 9: a bad decision costs only itself, and is kept as a message that may be mended."""
    neighbour = json.dumps(_MOVE)

    tick = decode_tick(_raw(f"{neighbour}, {decision}, {neighbour}"))

    assert len(tick.decisions) == 2
    (rejected,) = tick.rejected
    assert rejected.reason == "invalid"
    assert told in rejected.detail
    again = json.loads(rejected.body, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))
    assert (again["world"], again["tick"], len(again["decisions"])) == ("town-7", 42, 1)


def test_rejects_nan_and_infinity_and_keeps_the_rest_of_the_tick() -> None:
    """case 7: JSON has neither; the bodies kept are JSON and say what stood there."""
    tick = decode_tick(
        _raw(
            '{"agent": "a", "action": "move", "target": [NaN, 1]}, '
            '{"agent": "b", "action": "move", "target": [1, Infinity]}, '
            '{"agent": "c", "action": "move", "target": [1, 2]}'
        )
    )

    assert [decision.agent for decision in tick.decisions] == ["c"]
    assert [json.loads(r.body)["decisions"][0]["target"] for r in tick.rejected] == [
        [{"not_a_number": "NaN"}, 1],
        [1, {"not_a_number": "NaN"}],
    ]


def test_takes_the_word_nan_in_a_text() -> None:
    tick = decode_tick(_tick({"agent": "a", "action": "talk", "speech": "NaN, Infinity"}))

    assert tick.rejected == ()


def test_removes_nul_and_replaces_lone_surrogates_and_counts_them() -> None:
    """case 1: only the NUL goes, wherever it stands."""
    tick = decode_tick(
        _raw(
            '{"agent": "a\\u0000", "action": "talk",'
            ' "speech": "fi\\u0000sh \\ud83d \\ud83d\\ude00"}'
        )
    )

    (decision,) = tick.decisions
    assert (decision.agent, decision.speech) == ("a", "fish \ufffd \U0001f600")
    assert (tick.nul_removed, tick.surrogates_replaced) == (2, 1)


def test_takes_raw_control_characters_in_a_text() -> None:
    tick = decode_tick(_raw('{"agent": "a", "action": "talk", "speech": "one\ntwo\x00\t"}'))

    assert tick.decisions[0].speech == "one\ntwo\t"


def test_takes_a_byte_order_mark() -> None:
    assert decode_tick(b"\xef\xbb\xbf" + _tick(_MOVE)).tick == 42


@pytest.mark.parametrize(
    ("given", "instant"),
    [
        ("2026-08-02T09:00:00Z", "2026-08-02T09:00:00+00:00"),
        ("2026-08-02T18:00:00+09:00", "2026-08-02T09:00:00+00:00"),
        ("2026-08-02T09:00:00", "2026-08-02T09:00:00+00:00"),
        ("2026-08-02", "2026-08-02T00:00:00+00:00"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+00:00"),
        (None, None),
    ],
)
def test_reads_a_time_as_utc(given: str | None, instant: str | None) -> None:
    """case 24: Z, an offset and a naive time under one rule: naive is UTC."""
    time = decode_tick(_tick(_MOVE, time=given)).time

    assert (time.isoformat() if time else None) == instant


_DEEP = [
    '{"agent": "a", "action": "x", "deep": @}',
    '{"agent": "a", "action": "x", "deep": @, "speech": "\\u0041"}',
    '{"agent": "a", "action": "x", "deep": @, "n": NaN}',
    '{"action": "x", "deep": @}',
]


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e400", "-1e400"])
@pytest.mark.parametrize("field", ["agent", "speech", "text", "place", "event_id", "action"])
def test_what_is_no_number_is_no_text_when_it_is_published_again(field: str, number: str) -> None:
    """case 7: the body that is kept is refused like the one that came."""
    fields = {"agent": '"a"', "action": '"talk"', "speech": '"hi"', field: number}
    decision = ", ".join(f'"{name}": {value}' for name, value in fields.items())

    (rejected,) = decode_tick(_raw(f"{{{decision}}}")).rejected

    assert len(decode_tick(rejected.body).rejected) == 1


@pytest.mark.parametrize("depth", [2_000, 100_000])
@pytest.mark.parametrize("decision", _DEEP, ids=["sound", "escaped", "nan", "bad"])
def test_tells_what_is_nested_too_deeply(decision: str, depth: int) -> None:
    """case 9: what Python's reader gives up on ends in no exception of another kind."""
    body = _raw(decision.replace("@", "[" * depth + "]" * depth))

    with pytest.raises(InvalidMessage, match="nested too deeply"):
        decode_tick(body)


@pytest.mark.parametrize("depth", [100, 600])
@pytest.mark.parametrize(
    ("decision", "sound"),
    [*zip(_DEEP, (True, True, False, False), strict=True)],
    ids=["sound", "escaped", "nan", "bad"],
)
def test_a_deeply_nested_decision_costs_only_itself(decision: str, depth: int, sound: bool) -> None:
    """case 9: what can be read is judged by what the contract knows, however deep the rest is:
    cleaning, searching and repeating it do not give up where reading did not."""
    told = json.dumps({"agent": "b", "action": "talk", "speech": "hi"})
    deep = decision.replace("@", "[" * depth + "]" * depth)

    tick = decode_tick(_raw(f"{told}, {deep}, {told}"))

    assert [one.agent for one in tick.decisions] == (["b", "a", "b"] if sound else ["b", "b"])
    assert len(tick.rejected) == (not sound)
    for rejected in tick.rejected:
        again = decode_tick(rejected.body)
        # Said again, what is no number is JSON; where nothing is known of its field, that will do.
        assert len(again.rejected) == ("NaN" not in rejected.detail)


def test_takes_a_body_of_a_mebibyte_and_refuses_one_byte_more() -> None:
    """case 9: too large."""
    empty = len(_tick({"agent": "a", "action": "talk", "speech": ""}))
    fits = _tick({"agent": "a", "action": "talk", "speech": "x" * (MAX_BODY_BYTES - empty)})
    assert len(fits) == MAX_BODY_BYTES

    assert len(decode_tick(fits).decisions) == 1
    with pytest.raises(InvalidMessage, match="1048577 bytes; at most 1048576 are taken"):
        decode_tick(fits + b" ")


def test_says_only_the_first_faults_and_how_many_more() -> None:
    with pytest.raises(InvalidMessage, match="and 2 more"):
        decode_recall(b'{"queries": [], "k": 0, "max_chars": -1}')


def test_repeats_a_sound_decision_as_a_message_that_decodes_the_same() -> None:
    tick = decode_tick(
        _tick({"agent": 17, "action": "talk", "speech": "你好"}, time="2026-08-02T09:00:00+02:00")
    )

    again = decode_tick(alone(tick, tick.decisions[0]))

    assert again == tick


def test_decodes_each_recall_query_by_itself() -> None:
    request = decode_recall(
        json.dumps(
            {
                "world": 7,
                "tick": 2**53 + 1,
                "queries": [
                    {"agent": 435075722181083147, "observation": "a\x00b"},
                    {"agent": "bob"},
                    5,
                ],
            }
        ).encode()
    )

    assert (request.options.world, request.options.tick) == ("7", 2**53 + 1)
    first, *bad = request.queries
    assert first == RecallQuery(agent="435075722181083147", observation="ab")
    assert [str(fault) for fault in bad] == [
        "observation: Field required",
        "message: Input should be a valid dictionary or instance of RecallQuery",
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"k": 0},
        {"k": 101},
        {"deadline_ms": 0},
        {"deadline_ms": 60_001},
        {"tick": -1},
        {"ranking": "best"},
        {"language": "fr"},
        {"weights": {"recency": -1}},
        {"weights": {"recency": float("inf")}},
        {"min_importance": 11},
        {"as_of_tick": -1},
        {"queries": []},
        {"queries": [1] * 1001},
        {"kinds": "conversation"},
    ],
    ids=str,
)
def test_refuses_a_recall_with_a_wrong_option(fields: dict[str, Any]) -> None:
    request = {"world": "w", "tick": 1, "queries": [{"agent": "a", "observation": "b"}]} | fields

    with pytest.raises(InvalidMessage):
        decode_recall(json.dumps(request).encode())


def test_parses_json_alone_without_counting() -> None:
    assert parse_json(b'["a\\u0000b"]') == ["ab"]


def test_an_empty_tick_is_a_tick() -> None:
    assert decode_tick(_tick()) == DecodedTick(world="town-7", tick=42, time=None, decisions=())
