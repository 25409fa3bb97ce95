"""The published contracts: whole, true to the models and the topology, their examples valid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tickmind.asyncapi import document
from tickmind.decoding import decode_recall, decode_tick
from tickmind.memory import MAX_TICK
from tickmind.messages import RecallReply, RecallRequest, TickEnded
from tickmind.topology import EVENTS, RECALL_QUEUE, RECORDER_QUEUE, tick_ended_key

DOCUMENT = document()
MESSAGES: dict[str, Any] = DOCUMENT["components"]["messages"]


def _validator(reference: Mapping[str, str]) -> Draft202012Validator:
    """A validator of one schema of the document; the others are reachable from it."""
    return Draft202012Validator({**reference, "components": DOCUMENT["components"]})


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:
            yield from _references(item)


def _at(pointer: str) -> Any:
    found: Any = DOCUMENT
    for step in pointer.removeprefix("#/").split("/"):
        found = found[step]
    return found


def test_every_reference_leads_somewhere() -> None:
    references = set(_references(DOCUMENT))
    assert len(references) > 10
    for reference in references:
        assert _at(reference)


def test_every_schema_is_a_schema() -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("name", MESSAGES)
def test_examples_hold_to_their_own_schemas(name: str) -> None:
    message = MESSAGES[name]
    assert message["examples"]
    for example in message["examples"]:
        _validator(message["payload"]).validate(example["payload"])
        _validator(message["headers"]).validate(example["headers"])


def test_examples_are_what_our_models_take_and_give() -> None:
    import json

    (tick,) = MESSAGES["tickEnded"]["examples"]
    decoded = decode_tick(json.dumps(tick["payload"]).encode())
    assert len(decoded.decisions) == 4
    assert decoded.rejected == ()
    (request,) = MESSAGES["recallRequest"]["examples"]
    asked = decode_recall(json.dumps(request["payload"]).encode())
    assert [query.agent for query in asked.queries if not isinstance(query, Exception)] == ["alice"]
    for reply in MESSAGES["recallReply"]["examples"]:
        payload = reply["payload"]
        assert RecallReply.model_validate(payload).model_dump() == payload


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("tickEnded", {"tick": 1, "decisions": []}),
        ("tickEnded", {"world": "w", "tick": -1, "decisions": []}),
        ("tickEnded", {"world": "w", "tick": MAX_TICK + 1, "decisions": []}),
        ("tickEnded", {"world": "w", "tick": 1, "decisions": [{"action": "stay"}]}),
        ("tickEnded", {"world": "", "tick": 1, "decisions": []}),
        ("recallRequest", {"world": "w", "tick": 1, "queries": []}),
        ("recallRequest", {"world": "w", "tick": 1, "queries": [{"agent": "a"}]}),
        ("recallReply", {"world": "w", "tick": 1, "replies": []}),
    ],
)
def test_schemas_refuse_what_the_contract_refuses(name: str, payload: dict[str, Any]) -> None:
    assert not _validator(MESSAGES[name]["payload"]).is_valid(payload)


def test_schemas_take_every_reply_and_request_of_our_models() -> None:
    request = RecallRequest.model_validate(
        {"world": 7, "tick": 0, "queries": [{"agent": 17, "observation": ""}]}
    )
    _validator(MESSAGES["recallRequest"]["payload"]).validate(request.model_dump(mode="json"))
    _validator(MESSAGES["recallReply"]["payload"]).validate(
        RecallReply(reason="invalid", detail="no world").model_dump(mode="json")
    )
    tick = {"world": 7, "tick": 1, "decisions": [], "unknown": [1]}
    TickEnded.model_validate(tick)
    _validator(MESSAGES["tickEnded"]["payload"]).validate(tick)


def test_channels_are_those_of_the_topology() -> None:
    channels = DOCUMENT["channels"]
    tick, recall = channels["tickEnded"], channels["recall"]
    assert tick["address"].format(world="town-7") == tick_ended_key("town-7")
    exchange = tick["bindings"]["amqp"]["exchange"]
    assert (exchange["name"], exchange["type"]) == (EVENTS.name, EVENTS.type)
    assert tick["x-bound-queue"]["name"] == RECORDER_QUEUE.name
    assert tick["x-bound-queue"]["arguments"] == RECORDER_QUEUE.arguments
    assert recall["address"] == RECALL_QUEUE.name
    assert recall["bindings"]["amqp"]["queue"]["name"] == RECALL_QUEUE.name
    assert recall["x-queue-arguments"] == RECALL_QUEUE.arguments


def test_a_recall_is_a_request_with_its_reply() -> None:
    operation = DOCUMENT["operations"]["answerRecall"]
    assert operation["action"] == "receive"
    assert _at(operation["channel"]["$ref"]) is DOCUMENT["channels"]["recall"]
    assert _at(operation["reply"]["channel"]["$ref"])["address"] is None
    for name in ("recallRequest", "recallReply"):
        assert "correlation_id" in _at(MESSAGES[name]["correlationId"]["$ref"])["location"]


def test_headers_tell_of_trace_and_clock() -> None:
    for message in MESSAGES.values():
        assert set(message["headers"]["properties"]) == {"traceparent", "sent_at"}
