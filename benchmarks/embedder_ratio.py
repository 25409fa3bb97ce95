"""One embedder without limits against a bare loop (`embedder_bare`) that writes the same rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import asyncpg

from benchmarks.embedder_load import (
    embedder_settings,
    made_texts,
    pending_texts,
    provider,
    scratch_database,
    warmed,
)
from benchmarks.processes import CpuClock
from benchmarks.stack import Stack
from tickmind.local.postgres import DATABASE
from tickmind.local.processes import Child
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.remote import RemoteProvider
from tickmind_embedder.settings import EmbedderSettings

__all__ = ["Cost", "measure_ratio"]

_LOOK_S = 0.005
#: A round takes seconds; after this long something is broken.
_ROUND_TIMEOUT_S = 120.0

_Subject = Callable[[Mapping[str, str]], AbstractAsyncContextManager[Child]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One round: wall time from the first call to the last row, and processor time meanwhile."""

    wall_s: float
    worker_s: float
    postgres_s: float


async def measure_ratio(
    stack: Stack, *, latency_s: float, texts: int, rounds: int, report: Callable[[str], None]
) -> dict[str, list[Cost]]:
    """`bare` and `embedder` take turns in changing order, each on a fresh copy of the same pending
    rows; their rounds. Raises RuntimeError where one did not do all its work."""
    costs: dict[str, list[Cost]] = {"bare": [], "embedder": []}
    template = f"ratio_{latency_s * 1000:.0f}ms"
    async with (
        provider(stack, ProviderOptions(latency_s=latency_s), instance=template) as api,
        scratch_database(stack, template, template=DATABASE) as url,
    ):
        await pending_texts(url, embedder_settings(url, api), texts)
        await warmed(api, made_texts(texts)[:200])
        for number in range(rounds):
            for name in sorted(costs, reverse=number % 2 == 1):
                async with scratch_database(stack, "ratio_round", template=template) as scratch:
                    settings = embedder_settings(scratch, api)
                    subject = _bare(stack) if name == "bare" else _embedder(stack)
                    costs[name].append(await _round(stack, scratch, api, subject(settings), texts))
            told = ", ".join(f"{name} {of[-1].wall_s:.2f} s" for name, of in costs.items())
            report(f"{latency_s * 1000:.0f} ms, round {number + 1} of {rounds}: {told}")
    return costs


async def _round(
    stack: Stack,
    url: str,
    api: RemoteProvider,
    subject: AbstractAsyncContextManager[Child],
    texts: int,
) -> Cost:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("CHECKPOINT")
        await api.reset()
        async with subject as child, asyncio.timeout(_ROUND_TIMEOUT_S):
            while not (await api.totals()).calls:
                _check_runs(child)
                await asyncio.sleep(_LOOK_S)
            clocks = [CpuClock(pid) for pid in (child.pid, stack.postgres.pid)]
            while await connection.fetchval("SELECT EXISTS (SELECT FROM pending_embedding)"):
                _check_runs(child)
                await asyncio.sleep(_LOOK_S)
            ended = time.monotonic()
            worker_s, postgres_s = (clock.seconds() for clock in clocks)
        stored = await connection.fetchrow(
            "SELECT (SELECT count(*) FROM embedding), (SELECT count(*) FROM recall_index)"
        )
        if tuple(stored) != (texts, texts):
            msg = f"vectors and index rows stored were {tuple(stored)}, not {texts}"
            raise RuntimeError(msg)
        begun = (await api.calls())[0].started_at
        return Cost(wall_s=ended - begun, worker_s=worker_s, postgres_s=postgres_s)
    finally:
        await connection.close()


def _check_runs(child: Child) -> None:
    if not child.running:
        raise child.failure("ended before its work was done")


def _embedder(stack: Stack) -> _Subject:
    @asynccontextmanager
    async def start(settings: Mapping[str, str]) -> AsyncIterator[Child]:
        told = {**stack.service_settings, **settings}
        async with stack.process("tickmind_embedder", settings=told) as child:
            yield child

    return start


def _bare(stack: Stack) -> _Subject:
    @asynccontextmanager
    async def start(settings: Mapping[str, str]) -> AsyncIterator[Child]:
        defaults = EmbedderSettings(embedding_profile="openai-compatible")
        options = {
            "--database": settings["TICKMIND_DATABASE_URL"],
            "--base-url": f"{settings['TICKMIND_EMBEDDING_BASE_URL']}/",
            "--model": defaults.embedding_model,
            "--batch": defaults.embedding_max_inputs,
            "--in-flight": defaults.embedder_concurrency,
        }
        arguments = [str(word) for option in options.items() for word in option]
        async with stack.process("benchmarks.embedder_bare", arguments, settings={}) as child:
            yield child

    return start
