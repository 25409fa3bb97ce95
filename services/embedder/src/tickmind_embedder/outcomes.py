"""What becomes of leased texts in the database: stored, parked, tried later, given back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tickmind.database import Database
from tickmind.database_errors import DatabaseUnavailable
from tickmind.store import embedding as store
from tickmind.store import jobs as leases
from tickmind.store.jobs import Job
from tickmind.store.signing import Signers
from tickmind.store.spaces import Generation, refresh_mean
from tickmind.telemetry import log
from tickmind_embedder.metrics import Metrics
from tickmind_embedder.transactions import writing

__all__ = ["Outcomes"]

_logger = logging.getLogger("tickmind.embedder")

#: Before a text at fault is tried again: seconds, doubled with each attempt.
_RETRY_FIRST_S = 1.0
_RETRY_MOST_S = 300.0
#: An answer is paid for: so long it is held on to while the database is away. Shorter than the
#: 30 s that Kubernetes gives a process to end in.
_HOLD_S = 20.0
_HOLD_FIRST_S, _HOLD_STEP_S = 0.1, 2.0


class Outcomes:
    """Ends of leases. Every method may run twice; all raise DatabaseUnavailable."""

    def __init__(
        self, database: Database, metrics: Metrics, generation: Callable[[], Awaitable[Generation]]
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._generation = generation
        self._owed: list[Job] = []
        self._signers = Signers()

    async def store(self, vectors: dict[bytes, NDArray[np.float32]]) -> bool:
        """Store the vectors of one answer and link who waits; whether the space's mean is new."""
        generation = await self._generation()
        await self._held(generation.space_id, vectors)
        async with writing(self._database) as session:
            linked = await store.link(session, generation.space_id, list(vectors))
            moved = await refresh_mean(session, generation)
        self._metrics.linked.inc(linked)
        return moved

    async def _held(self, space_id: int, vectors: dict[bytes, NDArray[np.float32]]) -> None:
        """One transaction, tried again for a while where the database is away."""
        loop = asyncio.get_running_loop()
        until, delay = loop.time() + _HOLD_S, _HOLD_FIRST_S
        while True:
            try:
                async with writing(self._database) as session:
                    linked = await store.store_vectors(session, space_id, vectors, self._signers)
            except DatabaseUnavailable:
                if loop.time() + delay > until:
                    raise
                await asyncio.sleep(delay)
                delay = min(_HOLD_STEP_S, delay * 2)
            else:
                self._metrics.linked.inc(linked)
                return

    async def park(self, jobs: Sequence[Job], reason: str) -> None:
        generation = await self._generation()
        async with writing(self._database) as session:
            parked = await leases.park(session, generation.space_id, jobs, reason=reason)
        self._metrics.texts.labels("parked").inc(parked)
        log(_logger, logging.WARNING, "parked", texts=parked, reason=reason)

    async def retry_later(self, job: Job) -> None:
        generation = await self._generation()
        delay_s = min(_RETRY_MOST_S, _RETRY_FIRST_S * 2 ** (job.attempts - 1))
        async with writing(self._database) as session:
            await leases.retry_later(session, generation.space_id, [job], delay_s=delay_s)
        self._metrics.texts.labels("retried").inc()

    async def give_back(self, jobs: Iterable[Job]) -> None:
        """Uncharged, with all that could not be given back before."""
        self._owed += jobs
        if not self._owed:
            return
        generation = await self._generation()
        owed, self._owed = self._owed, []
        try:
            async with writing(self._database) as session:
                await leases.release(session, generation.space_id, owed)
        except DatabaseUnavailable:
            self._owed += owed
            raise

    def owe(self, jobs: Iterable[Job]) -> None:
        """To be given back as soon as the database can be asked."""
        self._owed += jobs
