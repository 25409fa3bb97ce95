"""What a benchmark found: figures, the aims they are held to, as JSON and as a table."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psutil

__all__ = ["Aim", "Figure", "Report", "Spread", "at_least", "at_most", "machine", "spread"]

#: Digits that say something: rounds of one run differ by some per cent.
_SIGNIFICANT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """A bound that a figure is held to."""

    relation: Literal[">=", "<="]
    bound: float

    def holds(self, value: float) -> bool:
        """Whether the value, unrounded, keeps to the bound."""
        return value >= self.bound if self.relation == ">=" else value <= self.bound

    def __str__(self) -> str:
        return f"{self.relation} {self.bound:g}"


def at_least(bound: float) -> Aim:
    return Aim(relation=">=", bound=bound)


def at_most(bound: float) -> Aim:
    return Aim(relation="<=", bound=bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number with its unit; `aim` None: it is only told."""

    value: float
    unit: str
    aim: Aim | None = None

    @property
    def holds(self) -> bool | None:
        """Whether the aim is met; None where there is none."""
        return None if self.aim is None else self.aim.holds(self.value)

    def as_json(self) -> dict[str, Any]:
        return {
            "value": _rounded(self.value),
            "unit": self.unit,
            "aim": None if self.aim is None else str(self.aim),
            "holds": self.holds,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The median of several rounds, and how far they lay apart."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Median, lowest and highest of at least one value."""
    return Spread(median=statistics.median(values), low=min(values), high=max(values))


@dataclass(slots=True, kw_only=True)
class Report:
    """The figures of one benchmark, in the order they were added."""

    name: str
    machine: Mapping[str, str | int | float]
    figures: dict[str, Figure] = field(default_factory=dict)

    def add(self, name: str, value: float, unit: str, aim: Aim | None = None) -> None:
        """Add one figure. Raises ValueError for a name that is taken, or a value that is none."""
        if name in self.figures:
            msg = f"the figure {name} is there already"
            raise ValueError(msg)
        if not math.isfinite(value):
            msg = f"the figure {name} is {value}: nothing was measured"
            raise ValueError(msg)
        self.figures[name] = Figure(value=value, unit=unit, aim=aim)

    def add_spread(
        self, name: str, values: Sequence[float], unit: str, aim: Aim | None = None
    ) -> None:
        """Add the median of several rounds, held to the aim, with `_low` and `_high` beside it."""
        found = spread(values)
        self.add(name, found.median, unit, aim)
        self.add(f"{name}_low", found.low, unit)
        self.add(f"{name}_high", found.high, unit)

    def as_json(self) -> str:
        """One JSON object in one line."""
        return json.dumps(
            {
                "name": self.name,
                "machine": dict(self.machine),
                "figures": {name: figure.as_json() for name, figure in self.figures.items()},
            },
            ensure_ascii=False,
        )

    def as_table(self) -> str:
        """The same for a person: a line per figure; rounds' extremes beside their median."""
        spreads = {
            name
            for name in self.figures
            if f"{name}_low" in self.figures and f"{name}_high" in self.figures
        }
        beside = {f"{name}_{end}" for name in spreads for end in ("low", "high")}
        rows = [("figure", "value", "rounds", "aim", "holds")]
        for name, figure in self.figures.items():
            if name in beside:
                continue
            rounds = ""
            if name in spreads:
                low, high = self.figures[f"{name}_low"], self.figures[f"{name}_high"]
                rounds = f"{_rounded(low.value)} .. {_rounded(high.value)}"
            value = f"{_rounded(figure.value)} {figure.unit}".strip()
            aim = "" if figure.aim is None else str(figure.aim)
            holds = {None: "", True: "yes", False: "NO"}[figure.holds]
            rows.append((name, value, rounds, aim, holds))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        told = ", ".join(f"{key} {value}" for key, value in self.machine.items())
        return "\n".join([f"{self.name} on {told}", "", *lines])


def _rounded(value: float) -> float | int:
    """To the digits that say something; a whole number stays one."""
    rounded = float(f"{value:.{_SIGNIFICANT}g}")
    return int(rounded) if rounded == int(rounded) else rounded


def machine() -> dict[str, str | int | float]:
    """What the numbers were measured on."""
    return {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count() or 1,
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        # Of the minute before: what else kept the cores busy.
        "load": round(os.getloadavg()[0], 1),
    }


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
