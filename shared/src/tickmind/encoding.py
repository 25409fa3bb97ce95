"""From what the agents did, or what is asked, to the messages that carry it. Pure."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from tickmind.clean import clean_text
from tickmind.decoding import decode_tick, explain
from tickmind.errors import InvalidMessage
from tickmind.messages import (
    MAX_BODY_BYTES,
    Decision,
    RecallEnvelope,
    RecallRequest,
    TickEnded,
    WeightsIn,
)

__all__ = ["listed", "recall_body", "recall_request", "rejections", "tick_bodies"]

#: What a caller may say of a recall besides whom it asks about.
_OPTIONS = frozenset(RecallEnvelope.model_fields) - {"world", "tick", "queries"}
_WEIGHTS = frozenset(WeightsIn.model_fields)
_DECISIONS: Final = TypeAdapter(list[Decision])


def tick_bodies(
    world: str | int, tick: int, decisions: Iterable[Mapping[str, Any]], time: str | None
) -> list[bytes]:
    """The tick.ended messages of one tick, each at most MAX_BODY_BYTES where its decisions allow.

    The same tick gives the same messages. Raises InvalidMessage for a world, tick or value that no
    message can hold.
    """
    try:
        TickEnded.model_validate({"world": world, "tick": tick, "time": time, "decisions": []})
    except ValidationError as exc:
        raise InvalidMessage(explain(exc)) from exc
    head = {"world": world, "tick": tick, "time": time}
    try:
        encoded = [(each.get("place"), _json(each)) for each in listed(decisions)]
    except (AttributeError, TypeError, ValueError, RecursionError) as exc:
        msg = f"a decision is not a mapping that JSON can say: {exc}"
        raise InvalidMessage(msg) from exc
    start = _json(head)[:-1] + b', "decisions": ['
    room = MAX_BODY_BYTES - len(start) - 2
    return [start + b",".join(part) + b"]}" for part in _parts(encoded, room)]


def listed(decisions: Iterable[Any]) -> list[Any]:
    """The decisions of a tick. Raises InvalidMessage where there is no list of them."""
    msg = "decisions: a list of them is wanted, of one decision, too"
    if isinstance(decisions, Mapping | str | bytes):
        raise InvalidMessage(msg)
    try:
        return list(decisions)
    except TypeError as exc:
        raise InvalidMessage(msg) from exc


def rejections(decisions: Sequence[Any], bodies: Sequence[bytes]) -> list[str]:
    """Why the recorder will reject decisions of a tick, as far as the contract alone tells."""
    if all(len(body) <= MAX_BODY_BYTES for body in bodies):
        # Nearly always all are sound; read again as the recorder would only where one is not.
        with contextlib.suppress(ValidationError):
            _DECISIONS.validate_python(decisions)
            return []
    found: list[str] = []
    for body in bodies:
        try:
            found += [rejected.detail for rejected in decode_tick(body).rejected]
        except InvalidMessage as exc:
            found.append(str(exc))
    return found


def recall_request(
    world: str | int,
    queries: Sequence[tuple[str | int, str]],
    tick: int,
    timeout_s: float,
    options: Mapping[str, Any],
) -> RecallRequest:
    """The request for (agent, observation) each. Raises InvalidMessage, for an option that there
    is not, too: what is misspelt would be ignored by whoever reads it."""
    _known(options, _OPTIONS, "a recall has")
    if isinstance(weights := options.get("weights"), Mapping):
        _known(weights, _WEIGHTS, "weights has")
    try:
        asked = [
            {"agent": agent, "observation": _sayable(observation)} for agent, observation in queries
        ]
    except (TypeError, ValueError) as exc:
        msg = "queries: a list of pairs is wanted, (agent, observation) each"
        raise InvalidMessage(msg) from exc
    said = {"world": world, "tick": tick, "queries": asked}
    # What is no number of seconds asks for nothing in the end, and must not raise here.
    deadline = {"deadline_ms": int(max(1, min(60_000, timeout_s * 1000)))}
    try:
        return RecallRequest.model_validate(deadline | dict(options) | said)
    except ValidationError as exc:
        raise InvalidMessage(explain(exc)) from exc


def _known(given: Mapping[str, Any], known: frozenset[str], who: str) -> None:
    if unknown := sorted(str(name) for name in given if name not in known):
        msg = f"{', '.join(unknown)}: unknown; {who} {', '.join(sorted(known))}"
        raise InvalidMessage(msg)


def recall_body(request: RecallRequest) -> bytes:
    """The request as it is published. Raises InvalidMessage where no message can hold it."""
    # Absent is the same as null, and a retriever of before need not know what is new.
    try:
        body = request.model_dump_json(exclude_none=True).encode()
    except (PydanticSerializationError, UnicodeEncodeError):
        # A lone surrogate in one of `kinds`, which goes as its escape: it is replaced where it is
        # read, as it was in what is recorded.
        body = json.dumps(request.model_dump(exclude_none=True)).encode()
    if len(body) > MAX_BODY_BYTES:
        msg = f"queries: the request has {len(body)} bytes, at most {MAX_BODY_BYTES} are taken: "
        raise InvalidMessage(msg + "ask for fewer agents at once, or shorten what they see")
    return body


def _sayable(text: object) -> object:
    """A text without what no message can hold; anything else is for the validation to refuse."""
    return clean_text(text).text if isinstance(text, str) else text


def _json(value: object) -> bytes:
    """JSON in UTF-8; a lone surrogate, which UTF-8 cannot hold, goes as its escape."""
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def _parts(encoded: Sequence[tuple[Any, bytes]], room: int) -> list[list[bytes]]:
    """Decisions in as many parts as their size, `room` bytes at most each, asks for."""
    parts: list[list[bytes]] = [[]]
    used = 0
    for unit in _units(encoded, room):
        size = _size(unit)
        if parts[-1] and used + size > room:
            parts.append([])
            used = 0
        parts[-1].extend(unit)
        used += size
    return parts


def _units(encoded: Sequence[tuple[Any, bytes]], room: int) -> Iterator[list[bytes]]:
    """What stays together where it fits: all; else those of one place, since who hears a talk may
    be told by place; else identical ones, since they are told apart by their order in a message.
    """
    everything = [body for _, body in encoded]
    if _size(everything) <= room:
        yield everything
        return
    places: dict[str | None, list[bytes]] = {}
    for place, body in encoded:
        places.setdefault(place if isinstance(place, str) else None, []).append(body)
    for bodies in places.values():
        if _size(bodies) <= room:
            yield bodies
            continue
        for body, count in Counter(bodies).items():
            alike = [body] * count
            if _size(alike) <= room:
                yield alike
            else:
                yield from ([body] for body in alike)


def _size(bodies: Sequence[bytes]) -> int:
    return sum(len(body) + 1 for body in bodies)  # and a comma each
