"""Embedder replicas as they run in production, less broker and process; and what they promise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from sqlalchemy import text

from tests.remembering import audited, counted, made
from tests.running import SOUND, eventually
from tickmind.budget import GUARD_S, Budget, Reserved
from tickmind.database import Database
from tickmind.embedding import Embedder, Provider, Reply, provider_of
from tickmind.errors import EmbeddingUnavailable
from tickmind.hashed import hash_embed
from tickmind.identity import content_hash
from tickmind.local.provider.ledger import Call
from tickmind.metered import MeteredProvider
from tickmind.store.inspection import parked_texts
from tickmind_embedder.handler import Handler, Metrics
from tickmind_embedder.settings import EmbedderSettings
from tickmind_embedder.worker import Worker

__all__ = [
    "WIDTH",
    "Replica",
    "called_early",
    "came_back",
    "finished",
    "fleet",
    "make_impatient",
    "promises_kept",
]

#: Numbers in a vector of the tests' space.
WIDTH = 64

_WAITING = """memory m
    WHERE NOT EXISTS (SELECT FROM recall_index r WHERE r.memory_id = m.id)
      AND NOT EXISTS (SELECT FROM pending_embedding p WHERE p.memory_id = m.id AND p.parked)"""


def make_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of our own of hundredths of a second instead of seconds and minutes; what a provider
    tells us to wait stays."""
    for name, seconds in (
        ("tickmind_embedder.worker._WAIT_FIRST_S", 0.02),
        ("tickmind_embedder.worker._WAIT_MOST_S", 0.1),
        ("tickmind_embedder.worker._LOOK_S", 0.1),
        ("tickmind_embedder.outcomes._RETRY_FIRST_S", 0.02),
        ("tickmind.metered._WAIT_FIRST_S", 0.05),
        ("tickmind.metered._WAIT_MOST_S", 0.2),
        ("tickmind.refusals.QUOTA_WAIT_S", 0.3),
        ("tickmind.refusals.DAY_QUOTA_WAIT_S", 0.3),
    ):
        monkeypatch.setattr(name, seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LetGo:
    """A call: when leave for it was asked for, and when it was let go."""

    asked_at: float
    at: float


class _Watched(MeteredProvider):
    """Keeps when its calls were let go, and since when all others can know what it was told.

    By the provider's own clock nobody can tell a call that came early from one that was under way
    for long on a busy machine.
    """

    def __init__(self, provider: Provider, budget: Budget, guard_s: float) -> None:
        super().__init__(provider, budget)
        self._asked_before_s = 0.8 * guard_s
        self.let_go: list[_LetGo] = []
        self.told_all_at: list[float] = []

    async def _reserved(self, texts: Sequence[str]) -> Reserved:
        reserved = await super()._reserved(texts)
        now = asyncio.get_running_loop().time()
        self.let_go.append(_LetGo(asked_at=reserved.until - self._asked_before_s, at=now))
        return reserved

    async def call(self, texts: Sequence[str]) -> Reply:
        try:
            return await super().call(texts)
        except EmbeddingUnavailable as exc:
            if exc.retry_after_s:
                self.told_all_at.append(asyncio.get_running_loop().time())
            raise


@dataclass(kw_only=True, eq=False)
class Replica:
    """One embedder: its own connections, budget and client."""

    database: Database
    embedder: Embedder
    worker: Worker
    provider: _Watched
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    async def fault(self) -> str | None:
        """What its readiness says of the provider."""
        return self.worker.fault or await self.embedder.fault()

    async def crash(self) -> None:
        """End it where it stands: nothing is given back, nothing finished."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.task = None


def _replica(settings: EmbedderSettings, guard_s: float) -> Replica:
    database = Database(settings, application="test-embedder")
    budget = Budget(database, settings.budget_name(), settings.limits(), guard_s=guard_s)
    provider = _Watched(provider_of(settings), budget, guard_s)
    embedder = Embedder(settings, provider)
    handler = Handler(
        database,
        embedder,
        Metrics(CollectorRegistry()),
        lease_s=settings.embedder_lease_s,
        max_attempts=settings.embedder_max_attempts,
    )
    worker = Worker(
        handler, concurrency=settings.embedder_concurrency, sweep_s=settings.embedder_sweep_s
    )
    replica = Replica(database=database, embedder=embedder, worker=worker, provider=provider)
    budget.stop_with(replica.stop)
    return replica


@asynccontextmanager
async def fleet(
    settings: EmbedderSettings, *, replicas: int = 1, guard_s: float = GUARD_S
) -> AsyncIterator[list[Replica]]:
    """Run so many embedders until the block ends; what one of them raises ends it. `guard_s`: how
    long a call may be under way to the provider, as their budgets reckon."""
    running = [_replica(settings, guard_s) for _ in range(replicas)]
    await made(running[0].database, settings)
    for replica in running:
        replica.task = asyncio.create_task(replica.worker.run(replica.stop))
    try:
        yield running
    finally:
        for replica in running:
            replica.stop.set()
        tasks = [replica.task for replica in running if replica.task is not None]
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for replica in running:
            await replica.embedder.close()
            await replica.database.dispose()
        for fault in ended:
            if isinstance(fault, BaseException):
                raise fault


def came_back(replicas: Sequence[Replica], refused: Call) -> list[float]:
    """When calls were let go by who could know what one of them was told, in seconds since that
    one's call came to the provider; the earliest first."""
    (told_all_at,) = (at for replica in replicas for at in replica.provider.told_all_at)
    return sorted(
        call.at - refused.started_at
        for replica in replicas
        for call in replica.provider.let_go
        if call.asked_at > told_all_at
    )


def called_early(replicas: Sequence[Replica], refused: Call, *, wait_s: float) -> list[float]:
    """Those of them that came before the time that was told."""
    return [at for at in came_back(replicas, refused) if at < wait_s]


async def finished(database: Database, *, timeout_s: float = 60.0) -> None:
    """Wait until nothing is left to do: every memory can be recalled, or its text is parked."""
    # What is pending is counted fifty times a second; joining all there is, once.
    pending = "pending_embedding WHERE NOT parked"
    for left in (pending, _WAITING, "embedding_job WHERE parked_reason IS NULL"):
        await eventually(
            lambda left=left: counted(database, left),  # type: ignore[misc]
            lambda waiting: waiting == 0,
            what=left,
            timeout_s=timeout_s,
        )


def _expected(content: str) -> NDArray[np.float32]:
    return hash_embed(content, WIDTH)


async def promises_kept(
    database: Database,
    texts: Sequence[str],
    *,
    parked: Mapping[str, str] | None = None,
    expected: Callable[[str], NDArray[np.float32]] = _expected,
) -> None:
    """Nothing lost, nothing mispaired, nothing stored half, nobody at fault but the parked.

    `parked`: texts that must be, with what their reason says; `expected`: the vector, at unit
    length, that a text alone has at this provider.
    """
    parked = parked or {}
    assert await audited(database) == SOUND
    async with database.reading() as session:
        found = await parked_texts(session)
        rows = await session.execute(
            text("SELECT content_hash, vector::vector::real[] AS vector FROM embedding")
        )
        stored = {row.content_hash: np.asarray(row.vector, dtype=np.float32) for row in rows}
    told = {one.content: one.reason for one in found}
    assert set(told) == set(parked)
    for content, reason in parked.items():
        assert reason in told[content]
    embedded = set(texts) - set(parked)
    assert set(stored) == {content_hash(content) for content in embedded}
    for content in embedded:
        vector = stored[content_hash(content)]
        assert np.linalg.norm(vector) == pytest.approx(1, abs=2e-3), content
        assert float(vector @ expected(content)) > 0.999, content
    assert await counted(database, "recall_index") == sum(t in embedded for t in texts)
    assert await counted(database, "embedding_job WHERE parked_reason IS NULL") == 0
