"""What an engine says, as messages: ticks, each message small enough, and recalls. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from tickmind.clean import clean_text
from tickmind.decoding import explain
from tickmind.errors import InvalidMessage
from tickmind.messages import MAX_BODY_BYTES, RecallRequest, TickEnded

__all__ = ["recall_body", "recall_request", "tick_bodies"]


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
        encoded = [(decision.get("place"), _json(decision)) for decision in decisions]
    except (AttributeError, TypeError, ValueError, RecursionError) as exc:
        msg = f"a decision is not a mapping that JSON can say: {exc}"
        raise InvalidMessage(msg) from exc
    start = _json(head)[:-1] + b', "decisions": ['
    room = MAX_BODY_BYTES - len(start) - 2
    return [start + b",".join(part) + b"]}" for part in _parts(encoded, room)]


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


def recall_request(queries: Sequence[tuple[str | int, str]], **options: Any) -> RecallRequest:
    """A recall for (agent, observation) each; `options`: the request's other fields.

    Raises InvalidMessage where they are wrong.
    """
    asked = [
        {"agent": agent, "observation": _sayable(observation)} for agent, observation in queries
    ]
    try:
        return RecallRequest.model_validate({"queries": asked, **options})
    except ValidationError as exc:
        raise InvalidMessage(explain(exc)) from exc


def recall_body(request: RecallRequest) -> bytes:
    """The message of a request."""
    # Absent is the same as null, and a retriever of before need not know what is new.
    try:
        return request.model_dump_json(exclude_none=True).encode()
    except (PydanticSerializationError, UnicodeEncodeError):
        # A lone surrogate in one of `kinds`, which goes as its escape: it is replaced where it is
        # read, as it was in what is recorded.
        return json.dumps(request.model_dump(exclude_none=True)).encode()


def _sayable(text: object) -> object:
    """A text without what no message can hold; anything else is for the validation to refuse."""
    return clean_text(text).text if isinstance(text, str) else text
