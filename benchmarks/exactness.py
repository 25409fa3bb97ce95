"""`exactness`: the ranking by signatures against the exact one, what it finds and what it costs.

Two sets: `real`, the texts of both towns and of long dialogues in English and Chinese, embedded by
multilingual-e5-small (384 wide; `mixed`: up to 20,000 memories of one agent), asked summaries and
questions about them; and `wide`, made vectors of 1536 in clusters (`made`). Ranked as by default:
blended, with default weights and half-life, by the statements the retriever sends.

`recall5_<set>_<rows>`, `recall10_…`: of the best 5 (10) of an agent of so many memories by the
exact ranking, the share that the ranking by signatures has, too; the mean over all questions.
`cpu_share_<set>_<rows>`: PostgreSQL's processor time for a recall by signatures over that for an
exact one, the two taking turns; `cpu_share_<rows>` is that of the wide set. `cpu_ms_…` are the two
themselves. The same with `_hnsw` at its end: by an HNSW index over all of the agent's memories;
`hnsw_build_s_<rows>`, `hnsw_bytes_a_row_<rows>`: what that costs.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from benchmarks.exactness_load import LAST_TICK, Load, fill, made, mixed
from benchmarks.processes import TaskClock
from benchmarks.real_vectors import real_vectors
from benchmarks.report import Report, at_least, at_most, machine
from tickmind.database import Database
from tickmind.local.postgres import running_postgres
from tickmind.memory import Weights
from tickmind.settings import DatabaseSettings
from tickmind.store import hnsw
from tickmind.store.hnsw import NEAREST, Hnsw
from tickmind.store.recall import Filters, Question, rank
from tickmind.store.recall_signature import CANDIDATES, Prefilter
from tickmind.store.signing import Signers
from tickmind.store.spaces import Generation
from tickmind_migrations import upgrade
from tickmind_retriever.settings import RetrieverSettings

__all__ = ["Options", "run"]

_Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How much is measured. `rows_ranked`: about so many rows are ranked exactly for each size,
    but at least and at most so many questions are asked."""

    real: tuple[int, ...] = (1_000, 5_000, 20_000)
    wide: tuple[int, ...] = (1_000, 10_000, 50_000, 150_000)
    least_questions: int = 60
    questions: int = 200
    rows_ranked: int = 10_000_000
    candidates: tuple[int, ...] = (CANDIDATES,)
    #: Agents of so many wide memories get an HNSW index, which is asked for so many.
    hnsw_from: int = 50_000
    nearest: tuple[int, ...] = (NEAREST,)


async def run(report: _Say, options: Options | None = None) -> Report:
    """Measure; `report` is told in words how far it is. Raises StartFailed, ConfigurationError."""
    options = options or Options()
    found = Report(name="exactness", machine=machine())
    real = mixed(real_vectors(report), memories=max(options.real))
    await _measure("real", real, options.real, options, found, report)
    wide = made(1536, memories=max(options.wide), queries=options.questions)
    await _measure("wide", wide, options.wide, options, found, report)
    return found


async def _measure(
    name: str, load: Load, sizes: Sequence[int], options: Options, found: Report, report: _Say
) -> None:
    # /var/tmp: a real disk that the server's system user can reach.
    state_dir = Path(tempfile.mkdtemp(prefix="tickmind-bench-", dir="/var/tmp"))
    state_dir.chmod(0o755)
    try:
        async with running_postgres(state_dir / "postgres", durable=False) as postgres:
            settings = DatabaseSettings(database_url=SecretStr(postgres.url))
            await upgrade(settings, lambda _: None)
            database = Database(settings, application="bench")
            try:
                generation, agents = await fill(database, postgres.url, load, sizes)
                report(f"{name}: filled")
                for size in sizes:
                    await _size(
                        name, size, database, generation, agents[size], load,
                        options, found,
                    )  # fmt: skip
                    report(f"{name}: {size} memories measured")
            finally:
                await database.dispose()
    finally:
        shutil.rmtree(state_dir, ignore_errors=True)


async def _size(
    name: str,
    size: int,
    database: Database,
    generation: Generation,
    agent_id: int,
    load: Load,
    options: Options,
    found: Report,
) -> None:
    count = min(options.questions, max(options.least_questions, options.rows_ranked // size))
    asked = load.queries[np.linspace(0, len(load.queries) - 1, count).astype(int)]
    async with database.reading() as session:
        signer = await Signers().of(session, generation.id)
        assert signer is not None
        server = (await session.execute(text("SELECT pg_backend_pid()"))).scalar_one()

        async def best(query: np.ndarray, prefilter: Prefilter | None) -> list[int]:
            return await _best(session, generation, agent_id, query, prefilter)

        plans: dict[str, Prefilter | None] = {"exact": None}
        plans |= {
            "" if most == CANDIDATES else f"_of_{most}": Prefilter(signer=signer, most=most)
            for most in options.candidates
        }
        if name == "wide" and size >= options.hnsw_from:
            index = await _indexed(session, server, size, generation, agent_id, found)
            plans |= {
                "_hnsw" if nearest == NEAREST else f"_hnsw_of_{nearest}": Prefilter(
                    signer=signer, hnsw=index, nearest=nearest
                )
                for nearest in options.nearest
            }
        answers: dict[str, list[list[int]]] = {plan: [] for plan in plans}
        cpu = dict.fromkeys(plans, 0.0)
        for prefilter in plans.values():
            await best(asked[0], prefilter)  # prepared, and read from the disk
        for query in asked:
            for plan, prefilter in plans.items():
                clock = TaskClock(server)
                answers[plan].append(await best(query, prefilter))
                cpu[plan] += clock.seconds()
    each = {plan: cpu[plan] / count * 1000 for plan in plans}
    for plan in plans:
        if plan == "exact":
            continue
        for k in (5, 10):
            share = [
                len(set(exact[:k]) & set(mine[:k])) / k
                for exact, mine in zip(answers["exact"], answers[plan], strict=True)
            ]
            aim = at_least(0.995) if plan in ("", "_hnsw") else None
            found.add(f"recall{k}_{name}_{size}{plan}", float(np.mean(share)), "", aim)
        found.add(f"cpu_ms_{name}_{size}{plan}", each[plan], "ms")
    found.add(f"cpu_ms_exact_{name}_{size}", each["exact"], "ms")
    told = f"{size}" if name == "wide" else f"{name}_{size}"
    aim = at_most(1 / 3) if name == "wide" and size >= 10_000 else None
    found.add(f"cpu_share_{told}", each[""] / each["exact"], "of exact", aim)
    if "_hnsw" in plans:
        found.add(f"cpu_share_{told}_hnsw", each["_hnsw"] / each["exact"], "of exact", aim)


async def _indexed(
    session: AsyncSession,
    server: int,
    size: int,
    generation: Generation,
    agent_id: int,
    found: Report,
) -> Hnsw:
    """An agent's HNSW index, over all it remembers; what it costs."""
    rows, index = await hnsw.extent(session, generation.id, agent_id)
    assert index is not None
    begun, clock = time.monotonic(), TaskClock(server)
    await hnsw.build(session, index, rows)
    found.add(f"hnsw_build_s_{size}", time.monotonic() - begun, "s")
    found.add(f"hnsw_build_cpu_s_{size}", clock.seconds(), "s of the process that leads")
    sizes = {kept.hnsw: kept.size_bytes for kept in await hnsw.kept(session)}
    found.add(f"hnsw_bytes_a_row_{size}", sizes[index] / rows, "bytes")
    return index


async def _best(
    session: AsyncSession,
    generation: Generation,
    agent_id: int,
    query: np.ndarray,
    prefilter: Prefilter | None,
) -> list[int]:
    (ranked,) = await rank(
        session,
        [Question(agent_id=agent_id, vector=query)],
        generation=generation,
        tick=LAST_TICK,
        k=10,
        filters=Filters(),
        weights=Weights(),
        half_life_ticks=RetrieverSettings().retriever_half_life_ticks,
        prefilter=prefilter,
    )
    return [memory.id for memory in ranked]
