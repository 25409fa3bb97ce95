"""A real town, replayed: its trace as ticks of any world, day after day without end.

Every word said carries the world's name and the day, so that no two worlds and no two days say the
same: a stranger's memory shows itself in a fragment, and each day has texts to embed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["ReplayedTick", "Trace", "data_trace", "load_trace", "replay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedTick:
    """One tick of a world, as `publish_tick` takes it."""

    world: str
    tick: int
    decisions: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One day of a town. `ticks`: the decisions by tick, ascending; `observations`: what its people
    may see or hear."""

    ticks: tuple[tuple[int, tuple[dict[str, Any], ...]], ...]
    agents: tuple[str, ...]
    observations: tuple[str, ...]

    @property
    def day(self) -> int:
        """Ticks from one day's beginning to the next one's."""
        return self.ticks[-1][0] + 1


def load_trace(path: Path) -> Trace:
    """Read a trace in the contract's form, one tick a line. Raises OSError."""
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    decisions = [decision for row in rows for decision in row["decisions"]]
    seen: dict[str, None] = {}
    for decision in decisions:
        seen |= dict.fromkeys(filter(None, (decision.get("speech"), decision.get("place"))))
    return Trace(
        ticks=tuple((row["tick"], tuple(row["decisions"])) for row in rows),
        agents=tuple(dict.fromkeys(str(decision["agent"]) for decision in decisions)),
        observations=tuple(seen),
    )


def replay(trace: Trace, world: str) -> Iterator[ReplayedTick]:
    """The ticks of a world, one day after the other, for ever."""
    day = 0
    while True:
        for tick, decisions in trace.ticks:
            yield ReplayedTick(
                world=world,
                tick=day * trace.day + tick,
                decisions=tuple(_marked(decisions, f"{world} {day}")),
            )
        day += 1


def _marked(decisions: Sequence[dict[str, Any]], mark: str) -> Iterator[dict[str, Any]]:
    for decision in decisions:
        if "speech" in decision:
            yield decision | {"speech": f"{decision['speech']} ({mark})"}
        else:
            yield decision


def data_trace(data: Path) -> Path:
    """The busiest of the real towns: 25 agents, 705 talks and 895 moves in 495 ticks."""
    return data / "smallville-zh" / "tick_ended.jsonl"
