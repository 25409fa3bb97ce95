"""What a memory is, inside the program. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = [
    "MAX_TICK",
    "ContextUse",
    "Distinct",
    "Kind",
    "Memory",
    "Ranking",
    "Scored",
    "Watermarks",
    "Weights",
]

#: Highest tick a world can reach: PostgreSQL's bigint.
MAX_TICK = 2**63 - 1

#: What sort of memory it is; a policy may name others.
Kind = str

#: What the utterance that a memory answers is good for: nothing, finding it by words, or that and
#: being embedded with it.
ContextUse = Literal["none", "words", "embedded"]


class Memory(NamedTuple):
    """One remembered text of one agent, as the recorder stores it (no vector, no id yet).

    A tuple, since a frozen dataclass of twelve fields takes twelve calls to make: one of these is
    made for each agent that hears something, in a third of the time.

    `event_key`: 16 bytes, unique within the agent; the same event always gives the same key.
    `importance`: 1..10. `speaker`: who said it, where the agent only heard it. `present`: who said
    and heard it. `context`: the utterance it answers, as this agent remembers it; never shown, and
    no part of the memory's identity. `context_use`: whether it is wanted, and for what.
    """

    world: str
    agent: str
    tick: int
    kind: Kind
    content: str
    importance: int
    event_key: bytes
    is_core: bool = False
    speaker: str | None = None
    present: tuple[str, ...] = ()
    context: str | None = None
    context_use: ContextUse = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One recalled memory with why it came back.

    `score` is the composite the order follows; `relevance` in [-1, 1.7] (the cosine, and up to
    0.7 for words), `recency` in (0, 1].
    """

    id: int
    tick: int
    kind: Kind
    content: str
    importance: int
    score: float
    relevance: float
    recency: float
    is_core: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """How much each term counts in a blended score; each finite and >= 0.

    Measured (`bench quality`, a town asked at its last tick about all of its day, which recency
    can only spoil): 0.05 to 0.1 of recency cost 0.003 of recall@5, 0.2 costs 0.007; half-lives
    of 50 to 5000 ticks differ by 0.004 at 0.1; importance costs nothing up to 0.4. Two of the 25
    questions of the demonstration's town need them.
    """

    relevance: float = 1.0
    recency: float = 0.1
    importance: float = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermarks:
    """How far a world's memory reaches: highest tick recorded, and highest tick up to which
    every memory is embedded (or parked). None: nothing yet."""

    recorded: int | None = None
    embedded: int | None = None


Ranking = Literal["relevance", "blended"]

#: Which memories count as the same, so that only the best of them is recalled; see
#: `tickmind.distinct`.
Distinct = Literal["off", "text", "numbers"]
