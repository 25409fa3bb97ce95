"""The play: a small town lives through a day, and its people are asked what they remember."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import SecretStr

from tickmind.cli.output import Bar, note, print_json, progress
from tickmind.cli.servers import CommandFailed
from tickmind.cli.stack import ask_person
from tickmind.cli.telling import Answered, introduce, show_answer, show_summary
from tickmind.client import MemoryClient
from tickmind.database import Database
from tickmind.local.stack import LocalStack, local_stack
from tickmind.local.town import Question, load_questions, load_ticks
from tickmind.settings import DatabaseSettings
from tickmind.store import inspection
from tickmind.store.spaces import active_generation

__all__ = ["run_demo"]

#: Between two looks at how far the embedder is.
LOOK_S = 0.2

#: Measured: 12 s on 2 cores for the town's texts; slow machines take several times as long.
EMBEDDED_WITHIN_S = 150.0

#: A real engine gives less; here a machine that does all at once shall still show its answers.
RECALL_WITHIN_S = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    """What came of the play, in the summary's numbers."""

    published: int
    stored: int
    dropped: int
    rejected: int
    pending: int
    parked: int
    answers: Sequence[Answered]

    def summary(self, seconds: float) -> dict[str, Any]:
        latencies = [answered.latency_ms for answered in self.answers]
        return {
            "published": self.published,
            "stored": self.stored,
            "dropped": self.dropped,
            "rejected": self.rejected,
            "pending": self.pending,
            "parked": self.parked,
            "recalls": len(self.answers),
            "empty": sum(not answered.answer.memories for answered in self.answers),
            "recall_p50_ms": _percentile(latencies, 0.50),
            "recall_p99_ms": _percentile(latencies, 0.99),
            "seconds": round(seconds, 1),
            "answers": [answered.as_json() for answered in self.answers],
        }


def _percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 1)


async def run_demo(*, assume_yes: bool, as_json: bool, keep: bool) -> None:
    """All of it; nothing is left behind. Raises what the local stack raises, CommandFailed."""
    begun = time.monotonic()
    ticks, questions = list(load_ticks()), load_questions()
    if not as_json:
        introduce(ticks, questions[0])
    with _state_dir(keep) as where:
        async with local_stack(
            where, durable=False, assume_yes=assume_yes, ask=ask_person, report=_ready
        ) as stack:
            played = await _unless_failed(stack, _play(stack, ticks, questions, quiet=as_json))
            note("Stopping everything.")
    summary = played.summary(time.monotonic() - begun)
    found = sum(answered.found for answered in played.answers)
    if as_json:
        note(f"{found} of {len(questions)} answers hold what they should")
        print_json(summary)
    else:
        show_summary(summary, played.answers[0], found)


def _ready(line: str) -> None:
    note(f"  {line}")


@contextmanager
def _state_dir(keep: bool) -> Iterator[Path]:
    """A directory of our own, gone at the end unless it is to be kept, or its logs are to be read
    after a failure."""
    path = Path(tempfile.mkdtemp(prefix="tickmind-demo-"))
    if os.geteuid() == 0:
        path.chmod(0o711)  # PostgreSQL does not run as root: its user must get through
    try:
        yield path
    except Exception:
        keep = True
        raise
    finally:
        if keep:
            note(f"Data and logs are in {path}")
        else:
            shutil.rmtree(path, ignore_errors=True)


async def _unless_failed(stack: LocalStack, work: Awaitable[T]) -> T:
    """Do the work, ended at once by the end of any of the stack's processes."""
    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(stack.failed())
            result = await work
            watching.cancel()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return result


async def _play(
    stack: LocalStack,
    ticks: Sequence[dict[str, Any]],
    questions: Sequence[Question],
    *,
    quiet: bool,
) -> _Played:
    world = ticks[0]["world"]
    settings = DatabaseSettings(database_url=SecretStr(stack.database_url))
    database = Database(settings, application="tickmind-demo")
    try:
        async with MemoryClient(stack.amqp_url) as memory:
            await _publish(memory, ticks)
            with progress("Embedding") as bar:
                status = await _embedded(database, world, ticks, bar)
            async with database.reading() as session:
                rejected = len(await inspection.reject_ids(session))
            answers = []
            for question in questions:
                answered = await _ask(memory, world, question)
                answers.append(answered)
                if not quiet:
                    show_answer(answered, ticks)
    finally:
        await database.dispose()
    return _Played(
        published=sum(len(tick["decisions"]) for tick in ticks),
        stored=sum(status.kinds.values()),
        dropped=await asyncio.to_thread(_dropped, stack.health_urls["recorder"]),
        rejected=rejected,
        pending=status.pending,
        parked=status.parked,
        answers=answers,
    )


async def _publish(memory: MemoryClient, ticks: Sequence[dict[str, Any]]) -> None:
    agents = {decision["agent"] for tick in ticks for decision in tick["decisions"]}
    decisions = sum(len(tick["decisions"]) for tick in ticks)
    note(f"Playing the town: {len(agents)} agents, {len(ticks)} ticks, {decisions} decisions")
    with progress("Publishing", total=len(ticks)) as bar:
        for done, tick in enumerate(ticks, start=1):
            receipt = await memory.publish_tick(
                tick["world"], tick["tick"], tick["decisions"], time=tick.get("time")
            )
            if not receipt.confirmed:
                msg = f"tick {tick['tick']} was not confirmed by the broker ({receipt.reason})"
                raise CommandFailed(msg)
            bar.to(done, about=f"tick {tick['tick']}")


async def _embedded(
    database: Database, world: str, ticks: Sequence[dict[str, Any]], bar: Bar
) -> inspection.WorldStatus:
    """Wait until every tick is recorded and every memory embedded. Raises CommandFailed."""
    until = time.monotonic() + EMBEDDED_WITHIN_S
    whole = (ticks[0]["tick"], ticks[-1]["tick"])
    while True:
        async with database.reading() as session:
            status = next(iter(await inspection.world_statuses(session, world)), None)
            complete = (
                status is not None
                and (status.first_tick, status.last_tick) == whole
                and not await inspection.gaps(session, world)
                and await active_generation(session) is not None
            )
        if status is not None:
            memories = sum(status.kinds.values())
            done = memories - status.pending
            bar.to(done, memories, about=f"{done}/{memories} memories")
            if complete and status.pending == 0:
                note(f"{memories} memories recorded and embedded")
                return status
        if time.monotonic() > until:
            left = "not all ticks were recorded" if not complete else f"{status} is left"
            raise CommandFailed(f"the town is not remembered after {EMBEDDED_WITHIN_S:g} s: {left}")
        await asyncio.sleep(LOOK_S)


async def _ask(memory: MemoryClient, world: str, question: Question) -> Answered:
    begun = time.monotonic()
    answer = await memory.recall(
        world,
        question.agent,
        question.observation,
        tick=question.tick,
        as_of_tick=question.tick,
        language=question.language,
        timeout_s=RECALL_WITHIN_S,
    )
    latency_ms = (time.monotonic() - begun) * 1000
    return Answered(question=question, answer=answer, latency_ms=latency_ms)


def _dropped(recorder_url: str) -> int:
    """Decisions the recorder did not keep, from its own metrics."""
    from prometheus_client.parser import text_string_to_metric_families

    # No proxy is to be asked for this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{recorder_url}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    return int(
        sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "tickmind_decisions_dropped_total"
        )
    )
