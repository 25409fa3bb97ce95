"""Identity of an event: however often it is delivered, it is one memory. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any

__all__ = [
    "KEY_BYTES",
    "content_hash",
    "embedded_text",
    "event_key",
    "hearer_key",
    "in_context",
    "reject_key",
]

#: 128 bits: by the birthday bound, 10^12 events collide with probability 1.5e-15.
KEY_BYTES = 16

_FIELD = b"\x00"  # names hold no NUL (removed on decoding), so fields cannot run together


# Made once: json.dumps with other than its defaults makes one anew for every call.
_CANONICAL = json.JSONEncoder(
    sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False
)


def _digest(*parts: bytes) -> bytes:
    return blake2b(_FIELD.join(parts), digest_size=KEY_BYTES).digest()


def canonical(decision: Mapping[str, Any]) -> bytes:
    """The known fields of a decision that are set, as JSON with sorted keys.

    Absent and null are the same, so that a field added to the contract later changes no key.
    """
    # As the encoder would write it, which takes twice as long for a whole object.
    said = [
        f"{_name(field)}:{_said(value)}"
        for field, value in sorted(decision.items())
        if value is not None
    ]
    return f"{{{','.join(said)}}}".encode()


@lru_cache(maxsize=64)  # the contract's fields
def _name(field: str) -> str:
    return _CANONICAL.encode(field)


def _said(value: Any) -> str:
    if type(value) is list:
        return f"[{','.join(map(_said, value))}]"
    return str(value) if type(value) is int else _CANONICAL.encode(value)


def event_key(
    world: str, tick: int, agent: str, *, event_id: str | None, decision: bytes, ordinal: int
) -> bytes:
    """Key of the acting agent's memory: by `event_id` if given, else by what was decided.

    `decision`: `canonical` form; `ordinal`: 0 for the first of identical decisions in a message.
    """
    where = (world.encode(), b"%d" % tick, agent.encode())
    if event_id is not None:
        return _digest(b"id", *where, event_id.encode())
    return _digest(b"as", *where, b"%d" % ordinal, decision)


def hearer_key(spoken: bytes, hearer: str) -> bytes:
    """Key of a hearer's own memory of what was said."""
    return _digest(b"heard", spoken, hearer.encode())


def embedded_text(content: str, context: str | None, content_hash_: bytes) -> str:
    """The text that a memory's vector is of, whose hash it carries: its content, or, where the
    policy has it embedded, its context with the content in the next line."""
    if context is None or content_hash(content) == content_hash_:
        return content
    return in_context(content, context)


def in_context(content: str, context: str) -> str:
    """What is embedded of a memory together with the utterance it answers."""
    return f"{context}\n{content}"


def content_hash(text: str) -> bytes:
    """Key under which a text is embedded once per space, whoever remembers it."""
    return blake2b(text.encode(), digest_size=KEY_BYTES).digest()


def reject_key(reason: str, world: str | None, body: bytes) -> bytes:
    """Key of a refused input, so that its redelivery is counted and not kept twice.

    `world`: as far as it is known; each world's rejects are its own and go with it.
    """
    return _digest(reason.encode(), (world or "").encode(), body)
