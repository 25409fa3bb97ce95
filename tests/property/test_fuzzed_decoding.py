"""Every decoder of messages, fed with real and difficult ones bent in every way."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.corpus import RECALLS, REPLIES, TICKS, recorded_ticks
from tests.mutating import Fuzzing, bend, blamed
from tests.nasty import dumps, parsed
from tickmind.asyncapi import document
from tickmind.cli.trace import check
from tickmind.decoding import DecodedTick, alone, decode_recall, decode_tick
from tickmind.errors import InvalidMessage
from tickmind.grading import grade
from tickmind.messages import MAX_BODY_BYTES, RecallQuery, RecallReply
from tickmind.policy import default_policy
from tickmind_retriever.answers import Answers, encoded

_POLICY = default_policy()
#: A body of 1 MiB takes 60 ms; this is time of the processor, on any machine.
_MOST_S = 2.0


@contextmanager
def _quick() -> Iterator[None]:
    begun = time.thread_time()
    yield
    took_s = time.thread_time() - begun
    assert took_s < _MOST_S, f"took {took_s:.1f} s"


def _sound(tick: DecodedTick) -> None:
    """All of it is accounted for, and what is kept can be stored and said again."""
    graded = grade(tick, _POLICY)
    decided = sum(graded.kept.values()) + sum(graded.dropped.values()) + len(graded.rejected)
    assert decided == len(tick.decisions)
    for memory in graded.memories:
        for text in (memory.world, memory.agent, memory.content, memory.speaker or "x"):
            assert text
            assert "\x00" not in text
            text.encode()
        assert 1 <= memory.importance <= 10
        assert 0 <= memory.tick < 2**63
    keys = [(memory.agent, memory.event_key) for memory in graded.memories]
    assert len(set(keys)) == len(keys) or any(one.event_id for one in tick.decisions)
    for rejected in (*tick.rejected, *graded.rejected):
        assert rejected.detail
        assert rejected.reason == "invalid"
        again = decode_tick(rejected.body)
        # Refused again for what it is, if nobody mends it; what is no number is JSON by then,
        # which will do in a field of which nothing is known.
        assert again.rejected or grade(again, _POLICY).rejected or "NaN" in rejected.detail


def test_bent_ticks_are_taken_or_refused_in_words(data: Path, fuzzing: Fuzzing) -> None:
    """cases 7 and 9: whatever it is, each decision of it becomes memories, is dropped, or is
    rejected with its reason."""
    taken = refused = tried = 0
    for mutated in fuzzing.inputs([*TICKS, *recorded_ticks(data, 120)], 4000):
        tried += 1
        with blamed(mutated), _quick():
            try:
                tick = decode_tick(mutated.body)
            except InvalidMessage as exc:
                refused += bool(str(exc))
                continue
            taken += 1
            given = json.loads(mutated.body.decode().removeprefix("\ufeff"), strict=False)
            assert len(tick.decisions) + len(tick.rejected) == len(given["decisions"])
            _sound(tick)
    assert taken + refused == tried  # none without a word
    assert min(taken, refused) > 500  # neither kind alone would say anything


def test_a_bent_decision_costs_its_neighbours_nothing(fuzzing: Fuzzing) -> None:
    """case 9: whatever one decision is, the others of its message are taken as they are alone."""
    good = [
        {"agent": "ann", "action": "talk", "speech": "Fish is fresh", "heard_by": ["ben", "eve"]},
        {"agent": "ben", "action": "move", "target": [15, 8], "place": "market"},
        {"agent": "eve", "action": "observe", "text": "鱼市 is open", "importance": 9},
        {"agent": "ann", "action": "stay"},
    ]
    others = [parsed(body) for body in TICKS]
    rng = random.Random(f"neighbours:{fuzzing.seed}")
    bad = 0
    for _ in range(3000 * fuzzing.factor):
        bent: Any = parsed(dumps([rng.choice(others)]))[0]
        bent = parsed(json.dumps(rng.choice(good)).encode()) if rng.random() < 0.7 else bent
        for _change in range(rng.choice((1, 2, 3))):
            bent, _how = bend(rng, bent, others)
        among = [json.dumps(one).encode() for one in good]
        among.insert(rng.randint(0, len(among)), dumps(bent))
        body = b'{"world": "w", "tick": 5, "decisions": [' + b", ".join(among) + b"]}"
        try:
            json.loads(body, strict=False)
        except (ValueError, RecursionError):
            continue  # no JSON as a whole: nobody can tell where a decision begins
        if len(body) > MAX_BODY_BYTES:
            continue
        tick = decode_tick(body)
        contents = [(memory.agent, memory.content) for memory in grade(tick, _POLICY).memories]
        for one in (
            ("ann", "I said: Fish is fresh"),
            ("ben", "ann told me: Fish is fresh"),
            ("eve", "ann told me: Fish is fresh"),
            ("ben", "I moved to (15, 8), market"),
            ("eve", "鱼市 is open"),
        ):
            assert one in contents, body[:2000]
        assert len(tick.decisions) + len(tick.rejected) == len(among), body[:2000]
        bad += len(tick.rejected)
    assert bad > 500 * fuzzing.factor


def test_bent_recalls_are_taken_or_refused_in_words(fuzzing: Fuzzing) -> None:
    """case 9: and each query has its place in the reply, which the client can read."""
    taken = refused = tried = 0
    for mutated in fuzzing.inputs(RECALLS, 4000):
        tried += 1
        with blamed(mutated), _quick():
            try:
                request = decode_recall(mutated.body)
            except InvalidMessage as exc:
                refused += bool(str(exc))
                continue
            taken += 1
            answers = Answers(request)
            answers.fill("deadline")
            reply = RecallReply.model_validate_json(encoded(answers.reply()))
            assert len(reply.replies) == len(request.queries)
            for query, answer in zip(request.queries, reply.replies, strict=True):
                if isinstance(query, RecallQuery):
                    assert (answer.agent, answer.reason) == (query.agent, "deadline")
                else:
                    assert answer.reason == "invalid"
                    assert answer.detail
    assert taken + refused == tried
    assert min(taken, refused) > 500


def test_bent_replies_are_read_or_refused(fuzzing: Fuzzing) -> None:
    read = 0
    for mutated in fuzzing.inputs(REPLIES, 2000):
        with blamed(mutated), _quick():
            try:
                reply = RecallReply.model_validate_json(mutated.body)
            except ValueError:  # what the client takes for no reply
                continue
            read += 1
            assert all(answer.status in ("ok", "empty", "degraded") for answer in reply.replies)
            reply.model_dump()
    assert read > 300


def test_bent_lines_of_a_trace_are_judged_as_the_recorder_will(
    data: Path, fuzzing: Fuzzing
) -> None:
    """What `publish` says of a line is what becomes of it."""
    agreed = 0
    for mutated in fuzzing.inputs([*TICKS, *recorded_ticks(data, 60)], 2000):
        with blamed(mutated):
            line = check(1, mutated.body)
            assert (line.message is None) == (line.fault is not None)
            if line.message is None:
                assert line.fault
                continue
            try:
                tick = decode_tick(mutated.body)
            except InvalidMessage:
                assert len(mutated.body) > MAX_BODY_BYTES  # which the client splits
                continue
            assert len(line.refused) == len(tick.rejected)
            agreed += 1
    assert agreed > 300


def test_what_is_taken_keeps_to_the_published_schema(fuzzing: Fuzzing) -> None:
    """The contract that engines build against is no stricter than we are."""
    schemas = document()["components"]["schemas"]
    validator = Draft202012Validator({"$ref": "#/$defs/TickEnded", "$defs": _local(schemas)})
    validated = 0
    for mutated in fuzzing.inputs(TICKS, 1500):
        try:
            tick = decode_tick(mutated.body)
        except InvalidMessage:
            continue
        for decision in tick.decisions[:3]:
            with blamed(mutated):
                validator.validate(json.loads(alone(tick, decision)))
            validated += 1
    assert validated > 300


def _local(schemas: Any) -> Any:
    return json.loads(json.dumps(schemas).replace("#/components/schemas/", "#/$defs/"))


@pytest.mark.parametrize("name", ["tickEnded", "recallRequest", "recallReply"])
def test_the_published_examples_are_what_the_decoders_take(name: str) -> None:
    examples = document()["components"]["messages"][name]["examples"]
    assert examples
    for example in examples:
        body = json.dumps(example["payload"]).encode()
        if name == "tickEnded":
            assert not decode_tick(body).rejected
        elif name == "recallRequest":
            assert all(isinstance(one, RecallQuery) for one in decode_recall(body).queries)
        else:
            RecallReply.model_validate_json(body)
