"""When a fault strikes: plain data, to and from JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

__all__ = [
    "Always",
    "Containing",
    "During",
    "EveryNth",
    "LargerThan",
    "Next",
    "RandomShare",
    "Scripted",
    "Trigger",
]


class Scripted:
    """Refuses unknown fields when read from JSON, so that a misspelt script fails loudly."""

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Next(Scripted):
    """The next `requests` requests that reach this rule, after letting `after` pass; then gone."""

    kind: Literal["next"] = "next"
    requests: int = 1
    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryNth(Scripted):
    """The nth, 2nth, 3nth… request that reaches this rule."""

    kind: Literal["every_nth"] = "every_nth"
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Containing(Scripted):
    """Requests with a text that contains `substring`: a poison text that fails its batch."""

    kind: Literal["containing"] = "containing"
    substring: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LargerThan(Scripted):
    """Requests of more than `texts` texts."""

    kind: Literal["larger_than"] = "larger_than"
    texts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomShare(Scripted):
    """A random share of requests (0..1), the same ones for the same seed."""

    kind: Literal["random_share"] = "random_share"
    share: float
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class During(Scripted):
    """For `seconds`, beginning `after_s` after the rule was added; then gone."""

    kind: Literal["during"] = "during"
    seconds: float
    after_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Always(Scripted):
    """Until removed."""

    kind: Literal["always"] = "always"


Trigger = Annotated[
    Next | EveryNth | Containing | LargerThan | RandomShare | During | Always,
    Field(discriminator="kind"),
]
