"""The ledger: what was published and asked, against what is stored and what was answered. Pure.

What a world must remember is told by the policy alone, from the messages as they were published,
and compared as people see memories, not by the keys the recorder gives them: a key that is told
wrongly would hide the very loss or double it causes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tickmind import Answer
from tickmind.decoding import decode_tick
from tickmind.encoding import tick_bodies
from tickmind.grading import grade
from tickmind.memory import Memory
from tickmind.policy import Policy
from tickmind.store.inspection import Audit

__all__ = ["TOLERANCE_S", "Found", "Ledger", "Recall", "Remembered", "Stored", "Verdict"]

#: A recall is late where its caller waited longer than its deadline, this, and the time for which
#: the caller's event loop did not get to its timers: the client ends its wait by one of them,
#: which a machine shared with others may keep from running for seconds (seen at a load of 20 on 2
#: cores; beside the servers alone, 60 ms).
TOLERANCE_S = 0.25

#: So many of each kind of fault are told in full.
_TOLD = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """One memory as anyone may see it, without ids."""

    world: str
    agent: str
    tick: int
    kind: str
    content: str
    importance: int
    is_core: bool
    speaker: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One row of `memory`, with names for ids."""

    id: int
    memory: Remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the database and the broker hold once all is quiet.

    `pending`: memories whose text is neither embedded nor given up on; `parked`: those given up
    on; `mispaired`: texts whose vector is another text's; `rejects`, `dead_letters`, `left`:
    refused input, the broker's dead letters, and messages still in the recorder's queue.
    """

    stored: Sequence[Stored]
    audit: Audit
    pending: int = 0
    parked: int = 0
    mispaired: int = 0
    rejects: int = 0
    dead_letters: int = 0
    left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """One request as its caller saw it. `began_s`: on the loop's clock; `stalled_s`: for how much
    of the time its loop was not run; `foreign_words`: what no fragment may hold, since only other
    worlds say it."""

    world: str
    agents: tuple[str, ...]
    answers: tuple[Answer, ...]
    began_s: float
    took_s: float
    deadline_s: float
    stalled_s: float = 0.0
    foreign_words: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether every agent was answered from what it remembers, and one remembers something."""
        return all(a.reason is None for a in self.answers) and any(
            a.status == "ok" for a in self.answers
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the ledger found. Each list holds one sentence or memory for each fault."""

    lost: Sequence[Remembered] = ()
    duplicated: Sequence[Remembered] = ()
    invented: Sequence[Remembered] = ()
    foreign: Sequence[str] = ()
    late: Sequence[str] = ()
    unfinished: Sequence[str] = ()

    @property
    def sound(self) -> bool:
        return not any(faults for _, faults in self._kinds())

    def __str__(self) -> str:
        told = []
        for name, faults in self._kinds():
            if faults:
                some = "".join(f"\n    {fault}" for fault in faults[:_TOLD])
                told.append(f"  {len(faults)} {name}:{some}")
        return "\n".join(told) or "  sound"

    def _kinds(self) -> Iterator[tuple[str, Sequence[object]]]:
        yield "memories lost", self.lost
        yield "memories stored twice", self.duplicated
        yield "memories nobody published", self.invented
        yield "answers with a stranger's memory", self.foreign
        yield "recalls late", self.late
        yield "things left unfinished", self.unfinished


@dataclass(kw_only=True)
class Ledger:
    """Written by the load while it runs, read once all is quiet."""

    policy: Policy
    tolerance_s: float = TOLERANCE_S
    expected: Counter[Remembered] = field(default_factory=Counter)
    recalls: list[Recall] = field(default_factory=list)
    #: Ticks by world that the broker has confirmed.
    confirmed: dict[str, set[int]] = field(default_factory=dict)
    #: Decisions published, each counted once, and deliveries of them, each time.
    events: int = 0
    deliveries: int = 0

    def publishing(self, world: str, tick: int, decisions: Sequence[Mapping[str, Any]]) -> None:
        """One tick is about to be published, once or many times: say so once."""
        for body in tick_bodies(world, tick, decisions, None):
            graded = grade(decode_tick(body), self.policy)
            assert not graded.rejected
            self.expected.update(_seen(memory) for memory in graded.memories)
        self.events += len(decisions)

    def confirm(self, world: str, tick: int, decisions: int) -> None:
        """The broker has confirmed all of a tick, once."""
        self.confirmed.setdefault(world, set()).add(tick)
        self.deliveries += decisions

    def verdict(self, found: Found) -> Verdict:
        """What of the promises is broken."""
        stored = Counter(row.memory for row in found.stored)
        surplus = stored - self.expected
        return Verdict(
            lost=list((self.expected - stored).elements()),
            duplicated=[memory for memory in surplus.elements() if memory in self.expected],
            invented=[memory for memory in surplus.elements() if memory not in self.expected],
            foreign=list(self._foreign(found.stored)),
            late=list(self._late()),
            unfinished=list(_unfinished(found)),
        )

    def _foreign(self, stored: Iterable[Stored]) -> Iterator[str]:
        """Answers that hold what is not the asking agent's own, or not what it remembers."""
        owned = {row.id: row.memory for row in stored}
        for recall in self.recalls:
            if len(recall.answers) != len(recall.agents):
                yield f"{len(recall.agents)} agents asked, {len(recall.answers)} answers"
            for agent, answer in zip(recall.agents, recall.answers, strict=False):
                who = f"{recall.world}/{agent}"
                if answer.agent != agent:
                    yield f"{who} was given the answer of {answer.agent}"
                for word in recall.foreign_words:
                    if word in answer.fragment:
                        yield f"{who} was told of {word}"
                for told in answer.memories:
                    memory = owned.get(told["id"])
                    if memory is None:
                        yield f"{who} was told memory {told['id']}, which there is not"
                    elif (memory.world, memory.agent) != (recall.world, agent):
                        yield f"{who} was told {memory}"
                    elif (memory.tick, memory.content) != (told["tick"], told["content"]):
                        yield f"{who} was told {told['content']!r} for {memory}"

    def _late(self) -> Iterator[str]:
        for recall in self.recalls:
            late_s = recall.took_s - recall.stalled_s - recall.deadline_s
            if late_s > self.tolerance_s:
                reasons = {answer.reason for answer in recall.answers}
                yield f"{recall.world}: by {late_s:.3f} s, answered {reasons}"


def _seen(memory: Memory) -> Remembered:
    return Remembered(
        world=memory.world,
        agent=memory.agent,
        tick=memory.tick,
        kind=memory.kind,
        content=memory.content,
        importance=memory.importance,
        is_core=memory.is_core,
        speaker=memory.speaker,
    )


def _unfinished(found: Found) -> Iterator[str]:
    if found.audit != Audit(lost=0, both=0, without_vector=0, without_job=0):
        yield f"the link protocol is broken: {found.audit}"
    for count, what in (
        (found.pending, "memories still wait for their vector"),
        (found.mispaired, "texts have another text's vector"),
        (found.rejects, "messages were rejected"),
        (found.dead_letters, "messages went to the dead letters"),
        (found.left, "messages are left in the recorder's queue"),
    ):
        if count:
            yield f"{count} {what}"
