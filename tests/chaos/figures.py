"""The suite's figures: one line for each scenario, their sums, and the longest recovery."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

__all__ = ["Figures", "as_json", "table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One scenario. `events`: decisions published, each once; `deliveries`: however often;
    `lost`, `duplicated` (with those nobody published), `wrong_agent`, `late`: of memories, of
    memories, of recalled memories, of recalls; `unfinished`: see the ledger; `exits`: replicas that
    ended by themselves; `recovery_s`: the longest from the end of a fault until everything
    published before was stored and embedded, and recalls were answered in full again."""

    scenario: str
    seed: int
    seconds: float
    events: int
    deliveries: int
    memories: int
    faults: int
    recalls: int
    recalls_ok: int
    lost: int
    duplicated: int
    wrong_agent: int
    late: int
    unfinished: int
    parked: int
    exits: int
    recovery_s: float


#: Columns of the table, in order; JSON has all fields.
_COLUMNS = {
    "scenario": "scenario",
    "seconds": "s",
    "events": "events",
    "faults": "faults",
    "lost": "lost",
    "duplicated": "twice",
    "wrong_agent": "wrong agent",
    "recalls": "recalls",
    "recalls_ok": "ok",
    "late": "late",
    "parked": "parked",
    "exits": "exits",
    "recovery_s": "recovery s",
}


def total(runs: Sequence[Figures]) -> dict[str, float]:
    """Sums of all figures, and the longest recovery."""
    names = [field.name for field in fields(Figures) if field.name not in ("scenario", "seed")]
    sums = {name: sum(getattr(run, name) for run in runs) for name in names}
    sums["recovery_s"] = max((run.recovery_s for run in runs), default=0.0)
    return sums


def as_json(runs: Sequence[Figures], *, seed: int) -> str:
    """All of it as one JSON object."""
    told = {"seed": seed, "total": total(runs), "scenarios": [asdict(run) for run in runs]}
    return json.dumps(told, indent=2)


def table(runs: Sequence[Figures]) -> list[str]:
    """Lines for people: scenarios, sums, and what the suite promises in one sentence."""
    sums = total(runs)
    rows = [[_said(getattr(run, name)) for name in _COLUMNS] for run in runs]
    rows.append(["all", *(_said(sums[name]) for name in list(_COLUMNS)[1:])])
    rows.insert(0, list(_COLUMNS.values()))
    widths = [max(len(row[place]) for row in rows) for place in range(len(_COLUMNS))]
    lines = [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    lines.append(
        f"events published {sums['events']}, faults injected {sums['faults']},"
        f" lost {sums['lost']}, duplicated {sums['duplicated']},"
        f" wrong-agent {sums['wrong_agent']}, recalls late {sums['late']},"
        f" longest recovery {sums['recovery_s']:.1f} s"
    )
    return lines


def _said(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)
