"""A policy tried on a trace, without any server: the recorder's own grading, counted."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tickmind.cli.output import progress
from tickmind.cli.trace import check, numbered, opened
from tickmind.decoding import DecodedTick, decode_tick
from tickmind.encoding import tick_bodies
from tickmind.errors import InvalidMessage
from tickmind.grading import grade
from tickmind.memory import Memory
from tickmind.messages import MAX_BODY_BYTES
from tickmind.policy import Policy

__all__ = ["ActionTrial", "Trial", "decode_line", "try_policy"]

#: Under what name decisions are counted that break the contract, and so have no action to trust.
INVALID = "(not valid)"


@dataclass(slots=True, kw_only=True)
class ActionTrial:
    """What became of the decisions with one action. `heard`: memories of those who heard them;
    `why`: reasons of what was not kept."""

    kept: int = 0
    dropped: int = 0
    rejected: int = 0
    heard: int = 0
    why: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    @property
    def decisions(self) -> int:
        return self.kept + self.dropped + self.rejected


@dataclass(slots=True, kw_only=True)
class Trial:
    """What became of a trace. `memories`: by kind and importance, hearers' included."""

    ticks: int = 0
    bad_lines: int = 0
    hearers_cut: int = 0
    actions: dict[str, ActionTrial] = field(default_factory=dict)
    memories: Counter[tuple[str, int]] = field(default_factory=Counter)

    @property
    def decisions(self) -> int:
        return sum(action.decisions for action in self.actions.values())

    @property
    def invalid(self) -> int:
        """Decisions that break the contract."""
        return self.actions[INVALID].rejected if INVALID in self.actions else 0

    @property
    def heard(self) -> int:
        return sum(action.heard for action in self.actions.values())

    def of(self, action: str) -> ActionTrial:
        return self.actions.setdefault(action, ActionTrial())

    def as_json(self) -> dict[str, Any]:
        """All of it in JSON's types."""
        return {
            "ticks": self.ticks,
            "bad_lines": self.bad_lines,
            "decisions": self.decisions,
            "kept": sum(action.kept for action in self.actions.values()),
            "dropped": sum(action.dropped for action in self.actions.values()),
            "rejected": sum(action.rejected for action in self.actions.values()),
            "memories": sum(self.memories.values()),
            "heard": self.heard,
            "hearers_cut": self.hearers_cut,
            "by_kind": [
                {"kind": kind, "importance": importance, "memories": count}
                for (kind, importance), count in sorted(self.memories.items())
            ],
            "actions": {
                name: {
                    "decisions": action.decisions,
                    "kept": action.kept,
                    "dropped": action.dropped,
                    "rejected": action.rejected,
                    "heard": action.heard,
                    "why": dict(action.why),
                    "examples": action.examples,
                }
                for name, action in self.actions.items()
            },
        }


def try_policy(
    path: Path,
    policy: Policy,
    *,
    world: str | None,
    examples: int,
    warn: Callable[[str], None],
) -> Trial:
    """Grade a trace. `world`: whose rules to use, None: each line's own; `examples`: wordings to
    keep per action. Raises ConfigurationError for a file that cannot be read."""
    trial = Trial()
    with opened(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
        size = os.fstat(descriptor).st_size or None
        read = 0
        with progress("Grading", total=size) as bar:
            for number, line in numbered(file):
                read += len(line)
                try:
                    parts = decode_line(number, line)
                except InvalidMessage as exc:
                    trial.bad_lines += 1
                    warn(f"line {number}: {exc}")
                    continue
                trial.ticks += 1
                for tick in parts:
                    for rejected in tick.rejected:
                        warn(f"line {number}: {rejected.detail}")
                    named = tick if world is None else replace(tick, world=world)
                    _grade(named, policy, trial, examples)
                bar.to(read, about=f"{trial.ticks} ticks")
    trial.actions = dict(sorted(trial.actions.items(), key=lambda item: -item[1].decisions))
    return trial


def decode_line(number: int, line: bytes) -> list[DecodedTick]:
    """The line as the recorder would see it: a large tick comes in several messages.

    Raises InvalidMessage.
    """
    if len(line) <= MAX_BODY_BYTES:
        return [decode_tick(line)]
    checked = check(number, line)
    if checked.message is None:
        raise InvalidMessage(checked.fault or "")
    tick = checked.message
    bodies = tick_bodies(tick["world"], tick["tick"], tick["decisions"], tick.get("time"))
    return [decode_tick(body) for body in bodies]


def _grade(tick: DecodedTick, policy: Policy, trial: Trial, examples: int) -> None:
    for rejected in tick.rejected:
        action = trial.of(INVALID)
        action.rejected += 1
        action.why[rejected.detail] += 1
    # Graded together, since who hears a talk depends on all; then each alone, to learn which of
    # them were kept: those begin the runs of memories that the whole gave.
    graded = grade(tick, policy)
    trial.hearers_cut += graded.hearers_cut
    trial.memories.update((memory.kind, memory.importance) for memory in graded.memories)
    runs = _runs(graded.memories)
    for decision in tick.decisions:
        alone = grade(replace(tick, decisions=(decision,), rejected=()), policy)
        action = trial.of(decision.action)
        if alone.rejected:
            action.rejected += 1
            action.why[alone.rejected[0].detail] += 1
        elif alone.memories:
            own, *heard = next(runs)
            action.kept += 1
            action.heard += len(heard)
            for memory in (own, *heard[:1]):
                if len(action.examples) < examples and memory.content not in action.examples:
                    action.examples.append(memory.content)
        else:
            action.dropped += 1
            action.why.update(why for _, why in alone.dropped)


def _runs(memories: tuple[Memory, ...]) -> Iterator[list[Memory]]:
    """Each decision's memories: the agent's own, then its hearers'."""
    run: list[Memory] = []
    for memory in memories:
        if memory.speaker is None and run:
            yield run
            run = []
        run.append(memory)
    if run:
        yield run
