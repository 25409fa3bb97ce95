"""The wire contracts as models: what they take, and that their schemas say the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError

from tickmind.messages import (
    MAX_NAME_CHARS,
    AgentReply,
    Decision,
    RecallReply,
    RecallRequest,
    TickEnded,
)


def _takes(model: type[BaseModel], value: Any) -> bool:
    try:
        model.model_validate(value)
    except ValidationError:
        return False
    return True


def _schema_takes(model: type[BaseModel], value: Any) -> bool:
    return bool(Draft202012Validator(model.model_json_schema()).is_valid(value))


@pytest.mark.parametrize("agent", ["bob", "张三", "o'x", "a%", "john-doe", " ", 0, -5, 2**80])
def test_a_name_is_a_text_or_an_integer(agent: str | int) -> None:
    """case 19: no character of a name means anything to us."""
    assert Decision.model_validate({"agent": agent, "action": "x"}).agent == str(agent)


@pytest.mark.parametrize("agent", ["", None, True, 1.0, [], {}, b"bob", "x" * 201, 10**200])
def test_nothing_else_is_a_name(agent: object) -> None:
    assert not _takes(Decision, {"agent": agent, "action": "x"})


def test_a_name_is_counted_in_characters_not_bytes() -> None:
    assert _takes(Decision, {"agent": "\U0001f41f" * MAX_NAME_CHARS, "action": "x"})


@pytest.mark.parametrize(
    "value",
    [
        {"world": "w", "tick": 0, "decisions": []},
        {"world": 7, "tick": 2**63 - 1, "time": None, "decisions": []},
        {"world": "w", "tick": 1, "decisions": [{"agent": 1, "action": "x", "target": [1, 2.5]}]},
        {"world": "w", "tick": 2**63, "decisions": []},
        {"world": "w", "tick": -1, "decisions": []},
        {"world": "", "tick": 1, "decisions": []},
        {"world": "w", "tick": 1},
        {"world": "w", "tick": 1, "decisions": [{"agent": "a"}]},
        {"world": "w", "tick": 1, "decisions": [{"agent": "a", "action": "x", "importance": 11}]},
        {"world": "w", "tick": 1, "decisions": [{"agent": "a", "action": "x", "target": [1]}]},
        {"world": "w", "tick": 1, "decisions": [{"agent": None, "action": "x"}]},
    ],
    ids=str,
)
def test_the_published_schema_takes_what_the_model_takes(value: Any) -> None:
    """Who checks against the published schema is told the same as by the recorder."""
    assert _schema_takes(TickEnded, value) == _takes(TickEnded, value)


@pytest.mark.parametrize(
    "change",
    [{}, {"k": 0}, {"k": 100}, {"tick": -1}, {"ranking": "x"}, {"max_chars": -1}, {"queries": []}],
    ids=str,
)
def test_the_published_recall_schema_takes_what_the_model_takes(change: dict[str, Any]) -> None:
    value = {"world": "w", "tick": 1, "queries": [{"agent": 1, "observation": "x"}]} | change

    assert _schema_takes(RecallRequest, value) == _takes(RecallRequest, value)


def test_a_reply_reads_what_it_writes() -> None:
    reply = RecallReply(world="w", tick=1, replies=[AgentReply(agent="17", status="empty")])

    assert RecallReply.model_validate(json.loads(reply.model_dump_json())) == reply


def test_a_reply_of_a_newer_release_is_read() -> None:
    newer = {"world": "w", "tick": 1, "replies": [], "version": 3}

    assert RecallReply.model_validate(newer).world == "w"
