"""What the embedder does: link, claim, call, check, store. Knows nothing of the broker.

The provider is never called inside a transaction, and one answer is one transaction: a crash
costs at most the calls in flight, whose leases run out.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge

from tickmind.clean import is_blank
from tickmind.database import Database
from tickmind.embedding import Embedder
from tickmind.errors import (
    ConfigurationError,
    EmbeddingFailed,
    EmbeddingUnavailable,
    TextRefused,
)
from tickmind.store import embedding as store
from tickmind.store.embedding import Job
from tickmind.store.spaces import Generation, ensure_space, refresh_mean
from tickmind.telemetry import log

__all__ = ["Handler", "Metrics", "ProviderPaused"]

_logger = logging.getLogger("tickmind.embedder")

#: Pending rows looked at in one short transaction.
_SWEEP_ROWS = 2000
#: Before a text at fault is tried again: seconds, doubled with each attempt.
_RETRY_FIRST_S = 1.0
_RETRY_MOST_S = 300.0


class ProviderPaused(Exception):
    """The provider takes nothing for now; what was claimed is given back uncharged."""

    def __init__(self, reason: str, wait_s: float | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait_s = wait_s


class Metrics:
    """What the embedder counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.linked = Counter(
            "tickmind_memories_indexed", "Memories that became recallable", registry=registry
        )
        self.texts = Counter(
            "tickmind_embedding_texts",
            "Distinct texts by outcome",
            ["outcome"],
            registry=registry,
        )
        self.calls = Counter(
            "tickmind_embedding_calls", "API calls by outcome", ["outcome"], registry=registry
        )
        self.pending = Gauge(
            "tickmind_embedding_backlog",
            "Pending rows that the last full sweep saw and could not link",
            registry=registry,
        )


class Handler:
    """One embedder's work on one embedding space; every method may run twice."""

    def __init__(
        self,
        database: Database,
        embedder: Embedder,
        metrics: Metrics,
        *,
        lease_s: float,
        max_attempts: int,
    ) -> None:
        self._database = database
        self._embedder = embedder
        self._metrics = metrics
        self._lease_s = lease_s
        self._max_attempts = max_attempts
        self._token = uuid4()
        self._generation: Generation | None = None
        self._swept = 0  # the highest memory id looked at

    async def generation(self) -> Generation:
        """The active generation, made for our space in a database that has none.

        Raises ConfigurationError where the database is bound to another space: vectors of two
        spaces are never compared.
        """
        if self._generation is None:
            async with self._database.writing() as session:
                found = await ensure_space(session, self._embedder.space)
            if found.space != self._embedder.space:
                msg = (
                    f"this database is embedded with {found.space.model} in"
                    f" {found.space.dimensions} dimensions and its prefixes, these settings name"
                    f" {self._embedder.space.model} in {self._embedder.space.dimensions}: set"
                    " TICKMIND_EMBEDDING_* to the same, or use another database"
                )
                raise ConfigurationError(msg)
            self._generation = found
        return self._generation

    async def sweep(self, *, full: bool) -> None:
        """Link what is embedded already and make jobs for the rest, in short transactions.

        `full`: from the first pending row, else from where the last sweep ended.
        """
        generation = await self.generation()
        after = 0 if full else self._swept
        waiting = 0
        more = True
        while more:
            async with self._database.writing() as session:
                swept = await store.sweep(
                    session, generation.space_id, after=after, most=_SWEEP_ROWS
                )
            self._metrics.linked.inc(swept.linked)
            waiting += swept.seen - swept.linked
            more = swept.seen == _SWEEP_ROWS
            after = swept.highest
            self._swept = max(self._swept, after)
        if full:
            self._metrics.pending.set(waiting)

    async def claim(self) -> list[Job]:
        """Lease the next texts, blanks finished and hopeless ones parked on the way."""
        generation = await self.generation()
        async with self._database.writing() as session:
            jobs = await store.claim(
                session,
                generation.space_id,
                token=self._token,
                most=self._embedder.max_inputs,
                lease_s=self._lease_s,
            )
        blank = [job for job in jobs if is_blank(job.content)]
        if blank:
            await self._finish_blank(blank)
        hopeless = [
            job for job in jobs if job.attempts > self._max_attempts and not is_blank(job.content)
        ]
        if hopeless:
            # Every claim is counted before the call: this text outlived its workers.
            await self._park(hopeless, f"no worker finished it in {self._max_attempts} attempts")
        done = {job.content_hash for job in (*blank, *hopeless)}
        return [job for job in jobs if job.content_hash not in done]

    async def embed(self, jobs: Sequence[Job]) -> None:
        """Embed and store leased texts. Raises ProviderPaused, the texts given back."""
        try:
            await self._embed(jobs)
        except EmbeddingUnavailable as exc:
            self._metrics.calls.labels("unavailable").inc()
            await self._give_back(jobs)
            raise ProviderPaused(str(exc), exc.retry_after_s) from exc
        except ConfigurationError as exc:
            self._metrics.calls.labels("refused").inc()
            await self._give_back(jobs)
            raise ProviderPaused(str(exc), None) from exc

    async def _embed(self, jobs: Sequence[Job]) -> None:
        """One call for all; where its answer is worthless, halves, down to the text at fault."""
        try:
            vectors = await self._embedder.embed([job.content for job in jobs], "document")
        except (TextRefused, EmbeddingFailed) as exc:
            self._metrics.calls.labels(exc.reason).inc()
            log(_logger, logging.WARNING, "call_failed", reason=exc.reason, texts=len(jobs))
            if len(jobs) > 1:
                middle = len(jobs) // 2
                await self._embed(jobs[:middle])
                await self._embed(jobs[middle:])
            elif isinstance(exc, TextRefused) or jobs[0].attempts >= self._max_attempts:
                await self._park(jobs, str(exc))
            else:
                await self._retry_later(jobs)
            return
        self._metrics.calls.labels("ok").inc()
        await self._store(dict(zip((job.content_hash for job in jobs), vectors, strict=True)))
        self._metrics.texts.labels("embedded").inc(len(jobs))

    async def _store(self, vectors: dict[bytes, NDArray[np.float32]]) -> None:
        generation = await self.generation()
        async with self._database.writing() as session:
            linked = await store.store_vectors(session, generation.space_id, vectors)
        self._metrics.linked.inc(linked)
        async with self._database.writing() as session:
            if await refresh_mean(session, generation):
                self._generation = None  # read anew, with its mean

    async def _finish_blank(self, jobs: Sequence[Job]) -> None:
        """A blank text is final without a call: the zero vector scores below everything."""
        zero = np.zeros(self._embedder.space.dimensions, dtype=np.float32)
        await self._store({job.content_hash: zero for job in jobs})
        self._metrics.texts.labels("blank").inc(len(jobs))

    async def _park(self, jobs: Sequence[Job], reason: str) -> None:
        generation = await self.generation()
        async with self._database.writing() as session:
            await store.park(session, generation.space_id, jobs, token=self._token, reason=reason)
        self._metrics.texts.labels("parked").inc(len(jobs))
        log(_logger, logging.WARNING, "parked", texts=len(jobs), reason=reason)

    async def _retry_later(self, jobs: Sequence[Job]) -> None:
        generation = await self.generation()
        delay = min(_RETRY_MOST_S, _RETRY_FIRST_S * 2 ** (jobs[0].attempts - 1))
        async with self._database.writing() as session:
            await store.retry_later(
                session, generation.space_id, jobs, token=self._token, delay_s=delay
            )
        self._metrics.texts.labels("retried").inc(len(jobs))

    async def _give_back(self, jobs: Sequence[Job]) -> None:
        generation = await self.generation()
        async with self._database.writing() as session:
            await store.release(session, generation.space_id, jobs, token=self._token)
