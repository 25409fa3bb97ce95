"""`embedder`: a fleet's budget, one replica's pace, a real town's cost, the reservations' price.

All calls go to the test provider, a process of its own, which enforces limits exactly and keeps a
ledger of every text it billed.

`budget_used_<replicas>`: share of the allowed budget that so many embedder processes used, the
worst over four sets of limits: 3000 texts a minute; 100 calls a minute; 30,000 tokens a minute;
3000 texts a minute and 500 in ten seconds. All are sliding windows. Time is scaled
(`time_scale`: seconds that a second of the limits takes), for provider and fleet alike, which
makes every delay of ours weigh more than it would: the figures are on the low side. The share is
what the ledger shows admitted within five windows, over five times what a window allows, averaged
over all spans of five windows that begin within the first one (`embedder_share` says why: it
cannot exceed 1, and the burst that empty windows allow at the beginning does not count). Under
several limits that of the limit used most counts. `budget_used_8_killed`: one of the eight is
killed (SIGKILL) half-way. `rejections_<replicas>`: 429s of all sets together, from start to end.

`bare_ratio_0ms`, `bare_ratio_300ms`: texts/s of one embedder without limits over those of a bare
loop (`embedder_bare`) that makes the same calls, as many at once, and writes the same rows, with a
provider that answers at once and after 300 ms; both from the first call to the last row.

`sent_share`: the Smallville trace (TICKMIND_DATA, default ../shared/data) through recorder and
embedder: texts billed over memories stored, held to `distinct_share`, distinct texts over memories.

`reservations_per_s_<processes>`, `reserve_ms_…`: see `reserve`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.embedder_budget import SETS, Found, LimitSet, fleet_budget
from benchmarks.embedder_ratio import Cost, measure_ratio
from benchmarks.embedder_sent import measure_sent
from benchmarks.report import Report, at_least, at_most, machine
from benchmarks.reserve import measure_reservations
from benchmarks.stack import Stack, running_stack

__all__ = ["Options", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How much is measured.

    `processes`: embedders that run at once; as many sets of limits are measured at the same time,
    each with a fleet, a provider and a database of its own. `rounds`: by the provider's latency in
    seconds, texts and rounds.
    """

    time_scale: float = 0.2
    windows: int = 5
    replicas: tuple[int, ...] = (1, 2, 4, 8)
    killed: int = 8
    processes: int = 16
    rounds: tuple[tuple[float, int, int], ...] = ((0.0, 4000, 5), (0.3, 1600, 3))
    reserving: tuple[int, ...] = (1, 8)
    reserving_s: float = 8.0


async def run(report: Callable[[str], None], options: Options | None = None) -> Report:
    """Measure; `report` is told in words how far it is.

    Raises ConfigurationError where the trace is missing, StartFailed, RuntimeError.
    """
    options = options or Options()
    found = Report(name="embedder", machine=machine())
    async with running_stack() as stack:
        await _budgets(stack, options, found, report)
        for latency_s, texts, rounds in options.rounds:
            costs = await measure_ratio(
                stack, latency_s=latency_s, texts=texts, rounds=rounds, report=report
            )
            _ratio(found, f"{latency_s * 1000:.0f}ms", texts, costs["bare"], costs["embedder"])
        sent = await measure_sent(stack, report)
        distinct = sent.distinct / sent.memories
        found.add(
            "sent_share", sent.texts / sent.memories, "texts billed / memory", at_most(distinct)
        )
        found.add("distinct_share", distinct, "distinct texts / memory")
        found.add("memories", sent.memories, "")
        found.add("sent_seconds", sent.seconds, "s")
        for count in options.reserving:
            reservations = await measure_reservations(stack, count, options.reserving_s)
            for name, value, unit in reservations:
                found.add(f"{name}_{count}", value, unit)
            report(f"reservations of {count} processes measured")
    return found


async def _budgets(
    stack: Stack, options: Options, found: Report, report: Callable[[str], None]
) -> None:
    fleets = [(count, False) for count in options.replicas] + [(options.killed, True)]
    for count, kill in fleets:
        measured: dict[str, Found] = {}
        together = max(1, options.processes // count)
        for first in range(0, len(SETS), together):
            chosen = SETS[first : first + together]
            measured |= await _fleets(stack, chosen, options, count, kill, report)
        name = f"{count}_killed" if kill else str(count)
        worst = min(one.used for one in measured.values())
        rejections = sum(one.rejections for one in measured.values())
        found.add(
            f"budget_used_{name}", worst, "share of the budget", at_least(0.95 if kill else 0.98)
        )
        found.add(f"rejections_{name}", rejections, "429s", at_most(0))
        for set_name, one in measured.items():
            found.add(f"budget_used_{name}_{set_name}", one.used, "share of the budget")
    found.add("time_scale", options.time_scale, "s / s of the limits")


async def _fleets(
    stack: Stack,
    sets: Sequence[LimitSet],
    options: Options,
    count: int,
    kill: bool,
    report: Callable[[str], None],
) -> dict[str, Found]:
    tasks = {}
    async with asyncio.TaskGroup() as fleets:
        for chosen in sets:
            fleet = fleet_budget(
                stack,
                chosen,
                count=count,
                windows=options.windows,
                scale=options.time_scale,
                kill=kill,
                report=report,
            )
            tasks[chosen.name] = fleets.create_task(fleet)
    return {name: task.result() for name, task in tasks.items()}


def _ratio(
    found: Report, at: str, texts: int, bare: Sequence[Cost], embedder: Sequence[Cost]
) -> None:
    pairs = list(zip(bare, embedder, strict=True))
    found.add_spread(
        f"bare_ratio_{at}",
        [floor.wall_s / ours.wall_s for floor, ours in pairs],
        "rate / bare rate",
        at_least(0.7),
    )
    found.add_spread(f"texts_per_s_{at}", [texts / ours.wall_s for ours in embedder], "1/s")
    found.add_spread(f"bare_texts_per_s_{at}", [texts / floor.wall_s for floor in bare], "1/s")
    thousands = texts / 1000
    for who, costs in (("", embedder), ("bare_", bare)):
        for part in ("worker", "postgres"):
            found.add_spread(
                f"{who}{part}_cpu_ms_per_1000_texts_{at}",
                [getattr(cost, f"{part}_s") * 1000 / thousands for cost in costs],
                "ms",
            )
