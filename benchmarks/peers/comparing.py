"""One system after the other through the same work, and their figures beside each other.

Every system gets a database of its own on the same PostgreSQL, the same provider (OpenAI's
contract, deterministic vectors, no latency: what is measured is the systems), the same ticks of 25
memories, 16 under way at once, and the same questions. No text is said twice, which is what suits
the peers best: tickmind embeds a text once. After the writing every database is vacuumed and
analysed, as autovacuum would in time. The provider runs in this process, which else only waits.

`write_per_s`: memories until all of them can be recalled. `recall5`: share of the exact five
nearest by cosine that came back; `recall5_lead`: ours less the peer's, where it is least;
`short`: share of the answers with fewer than five. Between writing and recalling every system
comes to rest: `rest_s`, for tickmind until the embedder has built the signatures that a space of
this size is to have; `scored_…`: memories that a recall then scores exactly, and by which plan.
While the provider hangs, one recall and one write are given `_HANG_S` seconds.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
from pydantic import SecretStr

from benchmarks.peers import Options
from benchmarks.peers.driving import RESULTS, Given
from benchmarks.peers.environments import NotInstallable, python_of
from benchmarks.peers.subject import Broken, Subject, running_subject
from benchmarks.peers.wording import embedding_settings
from benchmarks.peers.workload import Oracle, Workload, percentile, questions, workload
from benchmarks.report import Report, at_least, machine
from benchmarks.stack import Stack, running_stack
from tickmind.local.provider.faults import Hang
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.running import Provider, running_provider
from tickmind.local.provider.triggers import Always
from tickmind.settings import DatabaseSettings
from tickmind_migrations import upgrade

__all__ = ["Measured", "compare", "compared"]

#: tickmind in process, asked for the nearest by cosine as the others are; asked for its default
#: blend, of which recall@5 by cosine is told and not expected; and over the queue, by cosine.
OURS = ("tickmind", "blended", "queue")
_MODEL = "text-embedding-3-small"
_AT_ONCE = 16
#: Long enough for ten memories a second.
_WRITE_S = 900.0
_RECALL_S = 15.0
#: How long a hanging provider is waited for; OpenAI's client waits ten minutes by default.
_HANG_S = 10.0


@dataclass(slots=True, kw_only=True)
class Measured:
    """One system's figures. `seconds`: of each recall, by (set, callers)."""

    memories: int = 0
    recallable_s: float = 0.0
    stored_s: float = 0.0
    calls: int = 0
    texts: int = 0
    recall_calls: float = 0.0
    failed: int = 0
    seconds: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    recall5: dict[str, float] = field(default_factory=dict)
    short: dict[str, float] = field(default_factory=dict)
    plans: dict[str, tuple[str, int]] = field(default_factory=dict)
    rest_s: float = 0.0
    hanging: dict[str, Mapping[str, Any]] = field(default_factory=dict)


async def compare(say: Callable[[str], None], options: Options) -> Report:
    """Measure all that can be run here; who cannot has a figure `absent_<name>` that says why."""
    found = Report(name="peers", machine=machine())
    work = workload(options.sizes)
    oracle = Oracle(work.texts, options.dimensions)
    everyone: dict[str, Measured] = {}
    provided = ProviderOptions(native_width=options.dimensions)
    async with running_stack() as stack, running_provider(provided) as provider:
        ticks = stack.state_dir / "ticks.json"
        ticks.write_text(json.dumps(work.ticks))
        for name in (*options.peers, *OURS):
            try:
                async with _opened(name, stack, provider, options) as (subject, url):
                    bench = _Bench(subject, provider, work, oracle, options)
                    await bench.write(ticks)
                    await bench.rest()
                    await _vacuum(url)
                    say(f"{name}: {bench.found.memories / bench.found.recallable_s:.0f} written/s")
                    await bench.recalls()
                    await bench.hang()
            except (NotInstallable, Broken) as exc:
                say(f"{name} is left out: {exc}")
                found.add(f"absent_{name}", 1, str(exc))
                continue
            finally:
                provider.reset()
            everyone[name] = bench.found
            said = " ".join(f"{package} {is_}" for package, is_ in subject.versions.items())
            say(f"{name} ({said}) measured" if said else f"{name} measured")
    compared(found, everyone, [callers for callers, _ in options.recalls])
    return found


@asynccontextmanager
async def _opened(
    name: str, stack: Stack, provider: Provider, options: Options
) -> AsyncIterator[tuple[Subject, str]]:
    """The system as a process on an empty database of its own, and the database's URL."""
    database = f"peers_{name}"
    await stack.postgres.create_database(database)
    url = stack.postgres.database_url(database)
    state_dir = stack.state_dir / name
    state_dir.mkdir()
    given: dict[str, Any] = {
        "database_url": url,
        "embedding_url": provider.base_url,
        "model": _MODEL,
        "dimensions": options.dimensions,
        "amqp_url": stack.rabbitmq.url,
        "state_dir": str(state_dir),
        "ranking": "blended" if name == "blended" else "relevance",
    }
    python = Path(sys.executable) if name in OURS else await python_of(name)
    async with AsyncExitStack() as parts:
        if name in OURS:
            await upgrade(DatabaseSettings(database_url=SecretStr(url)), lambda _: None)
        if name == "queue":
            told = embedding_settings(Given(**{**given, "state_dir": state_dir}))
            settings = {f"TICKMIND_{key.upper()}": str(value) for key, value in told.items()}
            settings["TICKMIND_DATABASE_URL"] = url
            for service in ("recorder", "embedder", "retriever"):
                await parts.enter_async_context(stack.service(service, settings))
        module = "of_tickmind" if name == "blended" else f"of_{name}"
        yield (
            await parts.enter_async_context(running_subject(python, module, given, state_dir)),
            url,
        )
    await stack.postgres.drop_database(database)


async def _vacuum(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("VACUUM ANALYZE")
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()


class _Bench:
    """One system's work, step by step. Raises Broken."""

    def __init__(
        self,
        subject: Subject,
        provider: Provider,
        work: Workload,
        oracle: Oracle,
        options: Options,
    ) -> None:
        self.found = Measured(memories=work.memories)
        self._subject = subject
        self._provider = provider
        self._work = work
        self._oracle = oracle
        self._options = options

    async def write(self, ticks: Path) -> None:
        answer = await self._subject.ask(
            "write", path=str(ticks), at_once=_AT_ONCE, timeout_s=_WRITE_S
        )
        self.found.stored_s = answer["stored_s"]
        self.found.recallable_s = answer["recallable_s"]
        totals = self._provider.ledger.totals()
        self.found.calls, self.found.texts = totals.calls, totals.texts_sent
        self._provider.ledger.reset()

    async def rest(self) -> None:
        """As long as it may take to build an index."""
        self.found.rest_s = (await self._subject.ask("rest", timeout_s=_WRITE_S))["seconds"]
        self._provider.ledger.reset()

    async def recalls(self) -> None:
        """Agents of one kind after the other, by more and more callers."""
        asked = 0
        for number, (kind, agents) in enumerate(self._work.agents.items()):
            source = questions(agents, number)
            shares: list[float] = []
            short = 0
            warm = list(itertools.islice(source, 8))
            await self._ask(warm, 4)
            for callers, count in self._options.recalls:
                some = list(itertools.islice(source, count))
                answer = await self._ask(some, callers)
                self.found.seconds[kind, callers] = list(answer["seconds"].values())
                self.found.failed += answer["failed"]
                for place, texts in answer["answers"].items():
                    shares.append(self._oracle.recall5(*some[int(place)], texts))
                    short += len(texts) < RESULTS
            told = await self._subject.ask("plan", question=next(source), timeout_s=_RECALL_S)
            if told["plan"] is not None:
                self.found.plans[kind] = told["plan"]
            asked += len(shares) + len(warm) + 1
            self.found.recall5[kind] = sum(shares) / len(shares)
            self.found.short[kind] = short / len(shares)
        self.found.recall_calls = self._provider.ledger.totals().calls / asked

    async def _ask(self, asked: Sequence[tuple[str, str]], callers: int) -> dict[str, Any]:
        return await self._subject.ask(
            "recall",
            questions=asked,
            at_once=callers,
            limit_s=_RECALL_S,
            timeout_s=_RECALL_S + 120,
        )

    async def hang(self) -> None:
        """A provider that takes requests and answers none."""
        self._provider.faults.add(Hang(), Always())
        question = next(questions(list(self._work.texts), 99))
        for what, asked in (("recall", question), ("write", None)):
            self.found.hanging[what] = await self._subject.ask(
                "try", question=asked, limit_s=_HANG_S, timeout_s=_HANG_S + 30
            )


def compared(found: Report, everyone: Mapping[str, Measured], callers: Sequence[int]) -> None:
    """Ratios to tickmind in process by cosine, which have the aims, and to its other ways; then
    everyone's own figures."""
    most = max(callers)
    ours = {name: everyone[name] for name in OURS if name in everyone}
    for peer in (name for name in everyone if name not in OURS):
        theirs = everyone[peer]
        for way, own in ours.items():
            aimed = way == "tickmind"
            infix = "" if aimed else f"{way}_"
            found.add(
                f"write_ratio_{infix}{peer}",
                _rate(own) / _rate(theirs),
                "memories / s over its",
                at_least(5) if aimed else None,
            )
            for kind in theirs.recall5:
                suffix = "" if kind == "big" else f"_{kind}"
                found.add(
                    f"p99_ratio_{infix}{peer}_c{most}{suffix}",
                    percentile(theirs.seconds[kind, most], 0.99)
                    / percentile(own.seconds[kind, most], 0.99),
                    f"its p99 over ours, {kind}",
                    at_least(2) if aimed else None,
                )
            if aimed:
                lead = min(own.recall5[kind] - theirs.recall5[kind] for kind in theirs.recall5)
                found.add(f"recall5_lead_{peer}", lead, "recall@5 less its", at_least(0))
    for name, of in everyone.items():
        _told(found, name, of)


def _rate(of: Measured) -> float:
    return of.memories / of.recallable_s


def _told(found: Report, name: str, of: Measured) -> None:
    found.add(f"write_per_s_{name}", _rate(of), "memories recallable / s")
    found.add(f"stored_per_s_{name}", of.memories / of.stored_s, "memories stored / s")
    for (kind, callers), seconds in of.seconds.items():
        for share in (50, 99):
            value = percentile(seconds, share / 100) * 1000
            found.add(f"p{share}_ms_{name}_{kind}_c{callers}", value, "ms")
    for kind in of.recall5:
        found.add(f"recall5_{name}_{kind}", of.recall5[kind], "of the exact five")
        found.add(f"short_{name}_{kind}", of.short[kind], "answers of fewer than five")
        if kind in of.plans:
            plan, scored = of.plans[kind]
            found.add(f"scored_{name}_{kind}", scored, f"memories scored exactly, plan: {plan}")
    found.add(f"failed_{name}", of.failed, "recalls raised")
    if of.plans:
        found.add(f"rest_s_{name}", of.rest_s, "s in the background after writing")
    thousands = of.memories / 1000
    found.add(f"embedding_calls_{name}", of.calls / thousands, "calls / 1,000 memories")
    found.add(f"embedding_texts_{name}", of.texts / thousands, "texts / 1,000 memories")
    found.add(f"embedding_calls_recall_{name}", of.recall_calls, "calls / recall")
    for what, tried in of.hanging.items():
        found.add(
            f"hang_{what}_s_{name}",
            tried["seconds"],
            f"s, {tried['outcome']}, provider hanging",
        )
