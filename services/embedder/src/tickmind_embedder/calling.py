"""A leased batch on its way through the provider; and whose fault it is where it does not pass.

A refused batch (400) is halved until the text at fault is alone, and so is one whose answer is
worthless. A call that broke down (5xx, time-out) is an outage until shown otherwise: the batch is
given back, and halved only when it breaks down again while the provider takes others. Nobody is
charged on suspicion: a text is parked, or its attempt counted, only where the provider takes a
harmless text and not this one. So an outage, or settings that nothing passes with, costs no text
an attempt, and each round of it a handful of calls.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tickmind.embedding import CallFailed, Embedder
from tickmind.errors import (
    ConfigurationError,
    EmbeddingFailed,
    EmbeddingUnavailable,
    TextRefused,
    TickmindError,
)
from tickmind.store.jobs import Job
from tickmind.telemetry import log
from tickmind.tracing import span
from tickmind_embedder.metrics import Metrics
from tickmind_embedder.outcomes import Outcomes

__all__ = ["Calling", "Evidence"]

_logger = logging.getLogger("tickmind.embedder")

#: What any provider takes that takes anything.
_HARMLESS = "hello"
#: A refusal for what a request says does not come and go: a call that passed so long ago still
#: shows that the settings are right.
_SETTINGS_PROVEN_S = 60.0
#: Texts of calls that broke down, remembered: a few batches of every caller.
_MOST_BROKEN = 10_000


class Evidence:
    """What one process has seen of the provider: when a call passed, whose calls broke down."""

    def __init__(self) -> None:
        self.passed_at = -math.inf
        self._broken: OrderedDict[bytes, float] = OrderedDict()

    def passed(self, jobs: Sequence[Job] = ()) -> None:
        self.passed_at = asyncio.get_running_loop().time()
        for job in jobs:
            self._broken.pop(job.content_hash, None)

    def broke_down(self, jobs: Sequence[Job]) -> None:
        now = asyncio.get_running_loop().time()
        for job in jobs:
            self._broken[job.content_hash] = now
        while len(self._broken) > _MOST_BROKEN:
            self._broken.popitem(last=False)

    def broken_at(self, jobs: Sequence[Job]) -> float | None:
        """When a call with one of these last broke down; None: never, as far as we remember."""
        times = [self._broken[job.content_hash] for job in jobs if job.content_hash in self._broken]
        return max(times, default=None)


class Calling:
    """One batch. `open`: the texts that nothing has become of yet, by their hash.

    Where the provider takes nothing for now, EmbeddingUnavailable or ConfigurationError ends it.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        *,
        embedder: Embedder,
        outcomes: Outcomes,
        metrics: Metrics,
        evidence: Evidence,
        max_attempts: int,
    ) -> None:
        self.open = {job.content_hash: job for job in jobs}
        self.moved_mean = False
        self._at_fault: set[bytes] = set()
        self._embedder = embedder
        self._outcomes = outcomes
        self._metrics = metrics
        self._evidence = evidence
        self._max_attempts = max_attempts

    async def run(self) -> None:
        """Embed and store all of them, one transaction per answer."""
        await self._in_turns(list(self.open.values()))

    async def _in_turns(self, jobs: list[Job]) -> None:
        """As many at a time as one request takes and the budget has room for."""
        while jobs:
            fitting = jobs[: self._embedder.fitting([job.content for job in jobs])]
            async with self._embedder.turn([job.content for job in fitting]) as count:
                await self._embed(fitting[:count])
            jobs = jobs[count:]

    async def _embed(self, jobs: list[Job]) -> None:
        begun = asyncio.get_running_loop().time()
        try:
            vectors = await self._call(jobs)
        except (TextRefused, EmbeddingFailed, CallFailed) as exc:
            if len(jobs) == 1:
                await self._judge(jobs[0], exc, begun)
                return
            if isinstance(exc, CallFailed):
                before = self._evidence.broken_at(jobs)
                if before is None:
                    self._evidence.broke_down(jobs)
                    raise
                if self._evidence.passed_at < before:
                    await self._prove()
            if isinstance(exc, TextRefused) and exc.max_inputs is not None:
                await self._in_turns(jobs)  # what one request takes is known now
                return
            middle = len(jobs) // 2
            await self._in_turns(jobs[:middle])
            await self._in_turns(jobs[middle:])
            if isinstance(exc, TextRefused) and not self._at_fault & {j.content_hash for j in jobs}:
                self._embedder.taken_in_parts([job.content for job in jobs])
        else:
            await self._store(jobs, vectors)

    async def _call(self, jobs: Sequence[Job]) -> NDArray[np.float32]:
        try:
            vectors = await self._embedder.embed([job.content for job in jobs], "document")
        except TickmindError as exc:
            self._metrics.calls.labels(exc.reason).inc()
            log(_logger, logging.WARNING, "call_failed", reason=exc.reason, texts=len(jobs))
            raise
        self._metrics.calls.labels("ok").inc()
        self._evidence.passed(jobs)
        return vectors

    async def _store(self, jobs: Sequence[Job], vectors: NDArray[np.float32]) -> None:
        hashes = [job.content_hash for job in jobs]
        with span("store", attributes={"tickmind.texts": len(jobs)}):
            stored = dict(zip(hashes, vectors, strict=True))
            self.moved_mean |= await self._outcomes.store(stored)
        self._closed(jobs)
        self._metrics.texts.labels("embedded").inc(len(jobs))

    def _closed(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.open.pop(job.content_hash, None)

    async def _judge(
        self, job: Job, exc: TextRefused | EmbeddingFailed | CallFailed, begun: float
    ) -> None:
        """Its call, begun then, did not pass, and it was alone in it."""
        since = begun
        if isinstance(exc, TextRefused):
            since = asyncio.get_running_loop().time() - _SETTINGS_PROVEN_S
        if self._evidence.passed_at < since:
            await self._prove()
        if isinstance(exc, CallFailed):  # the provider works: was it only a bad moment?
            try:
                await self._store([job], await self._call([job]))
            except (TextRefused, EmbeddingFailed, CallFailed) as again:
                exc = again
            else:
                return
        if isinstance(exc, TextRefused) or job.attempts >= self._max_attempts:
            await self._outcomes.park([job], str(exc))
        else:
            await self._outcomes.retry_later(job)
        self._at_fault.add(job.content_hash)
        self._closed([job])

    async def _prove(self) -> None:
        """Raises EmbeddingUnavailable where the provider takes not even a harmless text."""
        try:
            await self._embedder.embed([_HARMLESS], "document")
        except (TextRefused, EmbeddingFailed, EmbeddingUnavailable, ConfigurationError) as exc:
            self._metrics.calls.labels(exc.reason).inc()
            wait_s = exc.retry_after_s if isinstance(exc, EmbeddingUnavailable) else None
            msg = f"the provider takes not even a harmless text: {exc}"
            raise EmbeddingUnavailable(msg, retry_after_s=wait_s) from exc
        self._metrics.calls.labels("ok").inc()
        self._evidence.passed()
