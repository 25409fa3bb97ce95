"""From the bytes of a message to checked decisions, and to what must be rejected. Pure."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from tickmind.clean import clean_text
from tickmind.errors import InvalidMessage, MessageTooLarge
from tickmind.messages import (
    MAX_BODY_BYTES,
    Decision,
    RecallEnvelope,
    RecallQuery,
    TickEnvelope,
)

__all__ = [
    "DecodedRecall",
    "DecodedTick",
    "Rejected",
    "alone",
    "cleaned",
    "decode_recall",
    "decode_tick",
    "explain",
    "parse_json",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """Input that breaks its contract. `body`: what to show and to retry, JSON where it was JSON;
    of a decision that decision alone, where that can be said, else its whole message."""

    reason: str
    detail: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedTick:
    """One tick.ended message: its sound decisions, and the others with why."""

    world: str
    tick: int
    time: datetime | None
    decisions: tuple[Decision, ...]
    rejected: tuple[Rejected, ...] = ()
    nul_removed: int = 0
    surrogates_replaced: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRecall:
    """One recall request. `queries` in its order; an InvalidMessage stands where one was bad."""

    options: RecallEnvelope
    queries: tuple[RecallQuery | InvalidMessage, ...]


class _NotANumber:
    """Stands for NaN or Infinity, which JSON does not have, until its decision is rejected."""


_NOT_A_NUMBER: Final = _NotANumber()
#: strict=False: a raw control character inside a string is cleaned later, not a reason to lose
#: the tick.
_DECODER: Final = json.JSONDecoder(parse_constant=lambda _: _NOT_A_NUMBER, strict=False)

#: Python gives up after some hundred levels; the contract has four, and ignores what it does not
#: know.
_TOO_DEEP: Final = "the body is nested too deeply to be a message"

_DECISION: Final = TypeAdapter(Decision)
_DECISIONS: Final = TypeAdapter(list[Decision])
_Model = TypeVar("_Model", bound=BaseModel)


@dataclass(slots=True)
class _Cleaning:
    nul_removed: int = 0
    surrogates_replaced: int = 0

    def text(self, text: str) -> str:
        cleaned = clean_text(text)
        self.nul_removed += cleaned.nul_removed
        self.surrogates_replaced += cleaned.surrogates_replaced
        return cleaned.text

    def leaf(self, value: Any) -> Any:
        return self.text(value) if isinstance(value, str) else value


def parse_json(body: bytes, cleaning: _Cleaning | None = None) -> Any:
    """The JSON value in `body`, with NUL removed and lone surrogates replaced in every string.

    Raises InvalidMessage for what is not UTF-8 JSON of at most MAX_BODY_BYTES.
    """
    if len(body) > MAX_BODY_BYTES:
        msg = f"the body has {len(body)} bytes; at most {MAX_BODY_BYTES} are taken: split it"
        raise MessageTooLarge(msg)
    try:
        text = body.decode()
    except UnicodeDecodeError as exc:
        msg = f"the body is not UTF-8 (byte {exc.start}): send JSON in UTF-8"
        raise InvalidMessage(msg) from exc
    try:
        value = _DECODER.decode(text.removeprefix("\ufeff"))
        # Strict UTF-8 holds no surrogate: only an escape, or a raw NUL, can bring in either.
        if "\\u" in text or "\x00" in text:
            return _with_leaves(value, (cleaning or _Cleaning()).leaf)
    except RecursionError as exc:
        raise InvalidMessage(_TOO_DEEP) from exc
    except json.JSONDecodeError as exc:
        msg = f"the body is not JSON: {exc}"
        raise InvalidMessage(msg) from exc
    except ValueError as exc:  # the only other one: Python's limit on the digits of an integer
        msg = f"the body holds an integer of more than {sys.get_int_max_str_digits()} digits"
        raise InvalidMessage(msg) from exc
    return value


# Not by recursion: a value that Python's parser took must not cost its neighbours anything for
# being nested so deeply that our own functions give up.


def _with_leaves(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """The value with all that is no list or object, names of fields too, as `leaf` makes it.

    Lists and objects are changed where they stand.
    """
    top = [value]
    waiting: list[Any] = [top]
    while waiting:
        holder = waiting.pop()
        if isinstance(holder, list):
            for place, item in enumerate(holder):
                if isinstance(item, list | dict):
                    waiting.append(item)
                else:
                    holder[place] = leaf(item)
            continue
        items = list(holder.items())
        holder.clear()
        for key, item in items:
            if isinstance(item, list | dict):
                waiting.append(item)
                holder[leaf(key)] = item
            else:
                holder[leaf(key)] = leaf(item)
    return top[0]


def cleaned(value: Any) -> Any:
    """A value of JSON, changed where it stands: NUL removed and lone surrogates replaced."""
    return _with_leaves(value, _Cleaning().leaf)


def _holds_no_number(value: Any) -> bool:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if item is _NOT_A_NUMBER:
            return True
        if isinstance(item, list):
            waiting += item
        elif isinstance(item, dict):
            waiting += item.values()
    return False


def _plain(value: Any) -> Any:
    """A leaf as JSON can say it again. What is no number says so in a form that no field takes: as
    a word it would be a text, and be taken for one when the reject is published again."""
    if value is _NOT_A_NUMBER:
        return {"not_a_number": "NaN"}
    if isinstance(value, float) and not math.isfinite(value):  # 1e999 is JSON, and too large
        return {"not_a_number": "Infinity" if value > 0 else "-Infinity"}
    return value


def explain(exc: ValidationError, *, at_most: int = 3) -> str:
    """A validation error in one line: which field, what was expected."""
    parts = []
    for error in exc.errors(include_url=False, include_input=False)[:at_most]:
        where = ".".join(str(step) for step in error["loc"]) or "message"
        parts.append(f"{where}: {error['msg'].removeprefix('Value error, ')}")
    more = exc.error_count() - at_most
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


def _check(validate: Callable[[Any], _Model], value: Any) -> _Model:
    try:
        return validate(value)
    except ValidationError as exc:
        raise InvalidMessage(explain(exc)) from exc


def decode_tick(body: bytes) -> DecodedTick:
    """Check a tick.ended body. Raises InvalidMessage where the message as a whole is unusable."""
    cleaning = _Cleaning()
    value = parse_json(body, cleaning)
    envelope = _check(TickEnvelope.model_validate, value)
    suspicious = b"NaN" in body or b"Infinity" in body
    if not suspicious:
        # All in one call where all are sound, as nearly always; else one by one, to know which.
        with contextlib.suppress(ValidationError):
            sound = _DECISIONS.validate_python(envelope.decisions)
            return _decoded(envelope, sound, [], cleaning)
    decisions: list[Decision] = []
    rejected: list[Rejected] = []
    for raw in envelope.decisions:
        try:
            if suspicious and _holds_no_number(raw):
                msg = "holds NaN or Infinity, which JSON does not have"
                raise InvalidMessage(msg)
            decisions.append(_check(_DECISION.validate_python, raw))
        except InvalidMessage as exc:
            rejected.append(
                Rejected(reason=exc.reason, detail=str(exc), body=_alone(envelope, raw) or body)
            )
    return _decoded(envelope, decisions, rejected, cleaning)


def _decoded(
    envelope: TickEnvelope,
    decisions: Sequence[Decision],
    rejected: Sequence[Rejected],
    cleaning: _Cleaning,
) -> DecodedTick:
    return DecodedTick(
        world=envelope.world,
        tick=envelope.tick,
        time=envelope.time,
        decisions=tuple(decisions),
        rejected=tuple(rejected),
        nul_removed=cleaning.nul_removed,
        surrogates_replaced=cleaning.surrogates_replaced,
    )


def _alone(envelope: TickEnvelope, raw: Any) -> bytes | None:
    """The one decision as a message of its own, ready to be mended and published again. None: it
    is nested so deeply that it can be read, and not be said again."""
    message = {
        "world": envelope.world,
        "tick": envelope.tick,
        "time": envelope.time.isoformat() if envelope.time else None,
        "decisions": [_with_leaves(raw, _plain)],
    }
    try:
        return json.dumps(message, ensure_ascii=False).encode()
    except RecursionError:
        return None


def alone(tick: DecodedTick, decision: Decision) -> bytes:
    """A sound decision of a tick as a message of its own."""
    message = {
        "world": tick.world,
        "tick": tick.tick,
        "time": tick.time.isoformat() if tick.time else None,
        "decisions": [decision.model_dump(exclude_none=True)],
    }
    return json.dumps(message, ensure_ascii=False).encode()


def decode_recall(body: bytes) -> DecodedRecall:
    """Check a recall request. Raises InvalidMessage where the request as a whole is unusable."""
    options = _check(RecallEnvelope.model_validate, parse_json(body))
    queries: list[RecallQuery | InvalidMessage] = []
    for raw in options.queries:
        try:
            queries.append(_check(RecallQuery.model_validate, raw))
        except InvalidMessage as exc:
            queries.append(exc)
    return DecodedRecall(options=options, queries=tuple(queries))
