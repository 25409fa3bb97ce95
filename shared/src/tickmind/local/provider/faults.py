"""What can go wrong with an embeddings request: plain data, to and from JSON.

A `Rule` is one fault with one trigger. `rules_from_json` reads what the control endpoint takes:
`[{"fault": {"kind": "status", "code": 503}, "trigger": {"kind": "next", "requests": 3}}]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from tickmind.local.provider.triggers import Next, Scripted, Trigger

__all__ = [
    "Asked",
    "BadIndex",
    "BadVector",
    "Body",
    "Drip",
    "Fault",
    "Hang",
    "NoUsage",
    "OneVector",
    "OtherEncoding",
    "Outage",
    "RefuseParameter",
    "Rule",
    "Shuffled",
    "Status",
    "Throttle",
    "Truncate",
    "WrongCount",
    "WrongWidth",
    "rules_from_json",
    "rules_to_json",
]

EncodingFormat = Literal["float", "base64"]
#: Shape of an error: OpenAI's object; Gemini's one-element array, or its bare object; a flat object
#: without "error" (text-embeddings-inference); a proxy's HTML page; plain text; nothing.
Body = Literal["openai", "gemini", "gemini-object", "flat", "html", "text", "empty"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a request asked for; None where it said nothing. `texts` is empty when unreadable."""

    texts: tuple[str, ...] = ()
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None


# Refusals: nothing is embedded, nothing is billed.


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(Scripted):
    """Answer with this status and an error body; `code` 200 is success with an error inside."""

    kind: Literal["status"] = "status"
    code: int
    body: Body = "openai"
    message: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle(Scripted):
    """429, and how it says when to come back.

    `header`: retry-after in whole seconds (rounded up), retry-after-ms, both, an HTTP date (whole
    seconds, rounded up), a date in the past, a negative number, words, or no header at all.
    `quota`: a limit that soon frees itself, one for the day, or no credit left (OpenAI's
    insufficient_quota, Gemini's billing text). Gemini bodies carry RetryInfo, for a day as well.
    """

    kind: Literal["throttle"] = "throttle"
    header: Literal[
        "seconds", "ms", "both", "http-date", "past-date", "negative", "garbage", "none"
    ] = "seconds"
    body: Body = "openai"
    quota: Literal["minute", "day", "insufficient"] = "minute"
    retry_after_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage(Scripted):
    """The provider is down: 503, or every connection reset without a word."""

    kind: Literal["outage"] = "outage"
    how: Literal["503", "reset"] = "503"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseParameter(Scripted):
    """400 for a request that sends `dimensions`, or asks for that encoding; others pass."""

    kind: Literal["refuse_parameter"] = "refuse_parameter"
    parameter: Literal["dimensions", "float", "base64"]


# Wrong answers: everything is embedded and billed.


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongCount(Scripted):
    """`by` vectors more (copies of the last) or fewer than texts; at least 0 stay."""

    kind: Literal["wrong_count"] = "wrong_count"
    by: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class OneVector(Scripted):
    """The first vector only, for a request of several texts."""

    kind: Literal["one_vector"] = "one_vector"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffled(Scripted):
    """Data in another order, each with its right index: a valid answer (several texts only)."""

    kind: Literal["shuffled"] = "shuffled"
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BadIndex(Scripted):
    """The index of one item (of all, where `position` is None) is absent or wrong.

    `missing` at position 0 is how Gemini leaves out a zero: a valid answer. `foreign` is the first
    number out of range. `duplicate` is another item's index (several texts only).
    """

    kind: Literal["bad_index"] = "bad_index"
    how: Literal["missing", "null", "duplicate", "foreign", "negative"]
    position: int | None = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoUsage(Scripted):
    """No `usage` in the answer."""

    kind: Literal["no_usage"] = "no_usage"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEncoding(Scripted):
    """Floats where base64 was asked, and base64 where floats (or nothing) were."""

    kind: Literal["other_encoding"] = "other_encoding"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongWidth(Scripted):
    """One vector (all, where `position` is None) of another width: cut, or filled with 0."""

    kind: Literal["wrong_width"] = "wrong_width"
    width: int
    position: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BadVector(Scripted):
    """One vector (all, where `position` is None) holds what no vector should.

    `nan`, `infinity`: in its first number. `null`: the same as JSON null, as encoders without NaN
    write it (NaN in base64). `zero`: nothing else. `unnormalised`: `scale` times as long.
    """

    kind: Literal["bad_vector"] = "bad_vector"
    how: Literal["nan", "infinity", "null", "zero", "unnormalised"]
    position: int | None = 0
    scale: float = 3.0


# Right answers that come late, slowly or not whole: embedded and billed.


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang(Scripted):
    """Embed and bill at once, answer after `seconds` (None: only when released).

    A caller that gave up meanwhile has paid for an answer it never got.
    """

    kind: Literal["hang"] = "hang"
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drip(Scripted):
    """Headers at once, the body in `chunks` equal pieces over `seconds`."""

    kind: Literal["drip"] = "drip"
    seconds: float = 1.0
    chunks: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate(Scripted):
    """The connection ends after this share of the body: reset, or merely closed."""

    kind: Literal["truncate"] = "truncate"
    share: float = 0.5
    how: Literal["reset", "close"] = "reset"


Fault = Annotated[
    Status
    | Throttle
    | Outage
    | RefuseParameter
    | WrongCount
    | OneVector
    | Shuffled
    | BadIndex
    | NoUsage
    | OtherEncoding
    | WrongWidth
    | BadVector
    | Hang
    | Drip
    | Truncate,
    Field(discriminator="kind"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Scripted):
    """One fault, and when it strikes."""

    fault: Fault
    trigger: Trigger = field(default_factory=Next)


_RULES: TypeAdapter[list[Rule]] = TypeAdapter(list[Rule])


def rules_from_json(text: str | bytes) -> list[Rule]:
    """Read a list of rules. Raises pydantic.ValidationError, which names the wrong field."""
    return _RULES.validate_json(text)


def rules_to_json(rules: Sequence[Rule]) -> bytes:
    """Write a list of rules as `rules_from_json` reads it."""
    return _RULES.dump_json(list(rules))
