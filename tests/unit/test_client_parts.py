"""How a tick becomes messages, and what the client refuses before it sends anything."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tickmind import MemoryClient
from tickmind.decoding import decode_recall, decode_tick
from tickmind.encoding import recall_body, recall_request, rejections, tick_bodies
from tickmind.errors import ConfigurationError, InvalidMessage
from tickmind.messages import MAX_BODY_BYTES, RecallRequest


def _talk(agent: str, size: int, **fields: Any) -> dict[str, Any]:
    return {"agent": agent, "action": "talk", "speech": "x" * size} | fields


def _bodies(*decisions: Any, world: str | int = "w", tick: int = 1) -> list[bytes]:
    return tick_bodies(world, tick, decisions, None)


def _agents(bodies: list[bytes]) -> list[list[str]]:
    return [[decision.agent for decision in decode_tick(body).decisions] for body in bodies]


def test_a_small_tick_is_one_message_as_given() -> None:
    decisions = [_talk("bob", 5), {"agent": 17, "action": "move", "target": [1, 2.5]}]

    (body,) = tick_bodies("w", 2**53 + 1, decisions, "2026-08-02T09:00:00Z")

    assert json.loads(body) == {
        "world": "w",
        "tick": 2**53 + 1,
        "time": "2026-08-02T09:00:00Z",
        "decisions": decisions,
    }


def test_a_lone_surrogate_in_a_kind_is_asked_for_as_it_is_recorded() -> None:
    """No UTF-8 can hold one; whoever reads it puts a mark in its place, and nobody raises."""
    asked = {"agent": "a", "observation": "x"}
    request = RecallRequest.model_validate(
        {"world": "w", "tick": 1, "queries": [asked], "kinds": ["a\ud800"]}
    )

    assert decode_recall(recall_body(request)).options.kinds == ["a\ufffd"]


def test_an_empty_tick_is_a_message_too() -> None:
    assert _agents(_bodies()) == [[]]


def test_a_large_tick_is_split_without_losing_a_decision() -> None:
    decisions = [_talk(f"agent-{number}", 10_000 + number) for number in range(300)]

    bodies = _bodies(*decisions)

    assert len(bodies) == 3
    assert all(len(body) <= MAX_BODY_BYTES for body in bodies)
    assert sorted(agent for part in _agents(bodies) for agent in part) == sorted(
        decision["agent"] for decision in decisions
    )


def test_a_part_may_be_as_large_as_the_recorder_takes() -> None:
    room = MAX_BODY_BYTES - len(_bodies(_talk("a", 0))[0])

    assert [len(body) for body in _bodies(_talk("a", room))] == [MAX_BODY_BYTES]
    assert _agents(_bodies(_talk("a", room), _talk("b", 0))) == [["a"], ["b"]]


def test_those_of_one_place_stay_together_where_they_fit() -> None:
    """Who hears a talk may be told by place, from the decisions of one message."""
    decisions = [
        _talk(f"{place}-{number}", 30_000, place=f"place-{place}")
        for number in range(10)
        for place in range(9)
    ]

    bodies = _bodies(*decisions)

    assert len(bodies) > 1
    where = [{agent.split("-")[0] for agent in part} for part in _agents(bodies)]
    assert sum(map(len, where)) == 9  # each place in one part only


def test_identical_decisions_stay_together_where_their_place_does_not_fit() -> None:
    """They are told apart by their order in one message: torn apart, they would be one event."""
    twins = [_talk(f"agent-{number}", 40_000, place="hall") for number in range(30)]

    bodies = _bodies(*twins, *twins)

    assert len(bodies) > 2
    for part in _agents(bodies):
        assert set(Counter(part).values()) == {2}
    assert all(len(body) <= MAX_BODY_BYTES for body in bodies)


def test_identical_decisions_too_large_for_one_message_are_each_sent() -> None:
    bodies = _bodies(*[_talk("bob", 600_000)] * 2)

    assert [len(part) for part in _agents(bodies)] == [1, 1]


def test_a_decision_too_large_for_any_message_goes_alone() -> None:
    """The recorder rejects it, and keeps it; its neighbours are stored."""
    bodies = _bodies(_talk("a", 10), _talk("bob", MAX_BODY_BYTES), _talk("c", 10))

    assert sorted(len(body) > MAX_BODY_BYTES for body in bodies) == [False, False, True]


def test_the_same_tick_is_split_the_same_way() -> None:
    decisions = [_talk(f"agent-{number % 40}", 40_000, place="hall") for number in range(80)]

    assert _bodies(*decisions) == _bodies(*decisions)


def test_a_lone_surrogate_is_sent_as_its_escape() -> None:
    (body,) = _bodies({"agent": "a", "action": "talk", "speech": "cut \ud83d"})

    assert decode_tick(body).decisions[0].speech == "cut \ufffd"


def test_nan_is_sent_for_the_recorder_to_reject() -> None:
    """case 7: the rest of the tick is stored, so the client must not refuse all of it."""
    (body,) = _bodies({"agent": "a", "action": "move", "target": [float("nan"), 1]}, _talk("b", 1))

    tick = decode_tick(body)
    assert (len(tick.decisions), len(tick.rejected)) == (1, 1)


@pytest.mark.parametrize("world", ["", "x" * 201, None, 1.5, True, "\ud800"])
def test_refuses_a_world_that_no_message_can_hold(world: Any) -> None:
    with pytest.raises(InvalidMessage, match=r"^world: "):
        tick_bodies(world, 1, [], None)


@pytest.mark.parametrize("tick", [-1, 2**63, 1.0, "1", None, True])
def test_refuses_a_tick_that_no_message_can_hold(tick: Any) -> None:
    with pytest.raises(InvalidMessage, match=r"^tick: "):
        tick_bodies("w", tick, [], None)


def test_refuses_a_time_that_is_none() -> None:
    with pytest.raises(InvalidMessage, match=r"^time: must be an ISO 8601 time"):
        tick_bodies("w", 1, [], "noon")


def _circle() -> dict[str, Any]:
    circle: dict[str, Any] = {"agent": "a"}
    circle["self"] = circle
    return circle


def _tower() -> dict[str, Any]:
    tower: dict[str, Any] = {}
    for _ in range(100_000):
        tower = {"in": tower}
    return tower


@pytest.mark.parametrize(
    "decision",
    [{"agent": 1j}, {"agent": b"bob"}, {"agent": {1, 2}}, "bob", 5, None, [1]],
    ids=str,
)
def test_refuses_a_decision_that_json_cannot_say(decision: Any) -> None:
    with pytest.raises(InvalidMessage, match="not a mapping that JSON can say"):
        tick_bodies("w", 1, [decision], None)


@pytest.mark.parametrize("decisions", [{"agent": "bob"}, "bob", b"bob", None, 5], ids=str)
async def test_refuses_decisions_that_are_no_list(decisions: Any) -> None:
    with pytest.raises(InvalidMessage, match=r"^decisions: a list"):
        tick_bodies("w", 1, decisions, None)
    with pytest.raises(InvalidMessage, match=r"^decisions: a list"):
        await MemoryClient("amqp://localhost").publish_tick("w", 1, decisions)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"agnet": "bob", "action": "talk"}, "agent: Field required"),
        ({"agent": "bob", "action": "talk", "speech": 5}, "speech: Input should be"),
        ({"agent": "bob", "action": "move", "target": [float("nan"), 1]}, "holds NaN"),
        (_talk("bob", MAX_BODY_BYTES), "at most 1048576 are taken"),
    ],
    ids=["agent", "speech", "nan", "size"],
)
def test_says_of_a_decision_what_the_recorder_will_say(bad: dict[str, Any], why: str) -> None:
    decisions = [_talk("alice", 5), bad]

    (told,) = rejections(decisions, _bodies(*decisions))

    assert why in told


@pytest.mark.parametrize("odd", [{"speech": "cut \ud83d"}, {"mood": "sad"}, {"target": (1, 2)}])
def test_says_nothing_of_what_the_recorder_takes(odd: dict[str, Any]) -> None:
    sound = _talk("bob", 5) | odd

    assert rejections([sound], _bodies(sound)) == []


def _asked(queries: Any = (("alice", "x"),), **options: Any) -> bytes:
    return recall_body(recall_request("w", queries, 1, 0.8, options))


@pytest.mark.parametrize("name", ["kk", "from_tik", "queries", "world", "mood"])
def test_refuses_an_option_that_there_is_not(name: str) -> None:
    """It would be ignored by whoever reads the request, and nobody would see why."""
    with pytest.raises(InvalidMessage, match=f"^{name}: unknown; a recall has as_of_tick, "):
        recall_request("w", [("alice", "x")], 1, 0.8, {name: 1})


def test_refuses_a_weight_that_there_is_not() -> None:
    with pytest.raises(InvalidMessage, match=r"^likeness: unknown; weights has importance, "):
        _asked(weights={"likeness": 1.0})


def test_takes_every_option_there_is() -> None:
    options = set(RecallRequest.model_fields) - {"world", "tick", "queries"}

    assert decode_recall(_asked(**dict.fromkeys(options - set(_DEFAULTED)))).options.k == 5
    assert decode_recall(_asked(**_DEFAULTED)).options.deadline_ms == 7


#: Options for which null means nothing.
_DEFAULTED: dict[str, Any] = {
    name: field.default
    for name, field in RecallRequest.model_fields.items()
    if field.default is not None and not field.is_required()
} | {"deadline_ms": 7}


@pytest.mark.parametrize("queries", [["alice"], [("alice", "x", "y")], [5], "alice"], ids=str)
def test_refuses_queries_that_are_no_pairs(queries: Any) -> None:
    with pytest.raises(InvalidMessage, match=r"^queries: a list of pairs"):
        _asked(queries)


def test_refuses_a_request_too_large_for_any_message() -> None:
    with pytest.raises(InvalidMessage, match=r"^queries: the request has .* ask for fewer"):
        _asked([("alice", "x" * 100_000)] * 11)


@pytest.mark.parametrize("make", [_circle, _tower])
def test_refuses_a_decision_without_end(make: Any) -> None:
    with pytest.raises(InvalidMessage, match="not a mapping that JSON can say"):
        tick_bodies("w", 1, [make()], None)


@pytest.mark.parametrize(
    "url",
    ["", "localhost", "http://h/", "amqp://", "amqp://h:port/", "amqp://h:99999/", "amqp:///v"],
)
async def test_a_wrong_url_is_told_at_once_without_its_password(url: str) -> None:
    url = url.replace("//h", "//user:geheim@h")

    with pytest.raises(ConfigurationError, match="TICKMIND_AMQP_URL") as caught:
        MemoryClient(url)
    assert "geheim" not in str(caught.value)


async def test_a_wrong_ca_file_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("not a certificate")

    for name in ("ca.pem", "absent.pem"):
        with pytest.raises(ConfigurationError, match="TICKMIND_AMQP_CA_FILE"):
            MemoryClient("amqps://h/", ca_file=tmp_path / name)


async def test_a_wrong_setting_is_told_as_every_setting_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TICKMIND_AMQP_PORT", "tcp://10.0.0.1:5672")

    with pytest.raises(ConfigurationError, match=r"^TICKMIND_AMQP_PORT: Input should be"):
        MemoryClient()
