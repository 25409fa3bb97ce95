"""What the embedder does: link, claim, call, check, store. Knows nothing of the broker.

The provider is never called inside a transaction, and one answer is one transaction: a crash
costs at most the calls in flight, whose leases run out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from uuid import uuid4

import numpy as np

from tickmind.clean import is_blank
from tickmind.database import Database
from tickmind.database_errors import DatabaseUnavailable
from tickmind.embedding import Embedder
from tickmind.errors import ConfigurationError, EmbeddingUnavailable
from tickmind.serving import name_of
from tickmind.store import embedding as store
from tickmind.store import jobs as leases
from tickmind.store.embedding import Swept
from tickmind.store.jobs import Job
from tickmind.store.spaces import Generation, filled_generations
from tickmind_embedder.calling import Calling, Evidence
from tickmind_embedder.horizon import Horizon
from tickmind_embedder.metrics import Metrics
from tickmind_embedder.outcomes import Outcomes
from tickmind_embedder.transactions import reading, writing

__all__ = ["Handler", "Metrics", "ProviderPaused"]

#: Pending rows looked at in one short transaction.
_SWEEP_ROWS = 2000
#: A lease is renewed so many times before it would run out: two may fail.
_RENEWALS = 3


class ProviderPaused(Exception):
    """The provider takes nothing for now; what was claimed is given back uncharged."""

    def __init__(self, reason: str, wait_s: float | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait_s = wait_s


class Handler:
    """One embedder's work on one embedding space; every method may run twice.

    All raise DatabaseUnavailable, and ConfigurationError where the database has other spaces.
    """

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
        self._generation: Generation | None = None
        self._horizon = Horizon()
        self._evidence = Evidence()
        self._outcomes = Outcomes(database, metrics, self.generation)

    async def generation(self) -> Generation:
        """Our space's generation.

        Raises ConfigurationError where the database has others and ours is not one of those that
        are filled: vectors of two spaces are never compared; and DatabaseUnavailable where it has
        none yet.
        """
        if self._generation is None:
            space = self._embedder.space
            async with reading(self._database) as session:
                filled = await filled_generations(session)
            if not filled:
                msg = "this database has no embedding space yet"
                raise DatabaseUnavailable(msg)
            found = next((one for one in filled if one.space == space), None)
            if found is None:
                msg = (
                    f"this database is embedded with {name_of(filled[0].space)} and its prefixes,"
                    f" these settings name {name_of(space)}: set TICKMIND_EMBEDDING_* to the same,"
                    " or change the space with `tickmind space add`"
                )
                raise ConfigurationError(msg)
            self._generation = found
        return self._generation

    async def claimable(self) -> bool:
        """Whether there is a text to claim."""
        generation = await self.generation()
        async with reading(self._database) as session:
            return await leases.claimable(session, generation.space_id)

    async def sweep(self, *, full: bool, go_on: Callable[[Swept], bool] = lambda _: True) -> None:
        """Link what is embedded already and make jobs for the rest, in short transactions.

        `full`: from the first pending row, else from where nothing can have been missed before.
        `go_on`: told of each chunk; False ends the sweep.
        """
        generation = await self.generation()
        after = 0 if full else self._horizon.start
        waiting = 0
        first: Swept | None = None
        while True:
            async with writing(self._database) as session:
                last = await store.sweep(
                    session, generation.space_id, after=after, most=_SWEEP_ROWS
                )
            first = first or last
            self._metrics.linked.inc(last.linked)
            waiting += last.seen - last.linked
            after = last.highest
            if not go_on(last):
                return
            if last.seen < _SWEEP_ROWS:
                break
        self._horizon.swept(first, last)
        if full:
            self._metrics.backlog(generation.space_id, waiting)

    async def claim(self, *, most: int | None = None) -> list[Job]:
        """Lease the next texts, at most `most` or a request's worth; [] where there are none.

        Blanks are finished and hopeless ones parked on the way.
        """
        generation = await self.generation()
        await self._outcomes.give_back([])
        while True:
            async with writing(self._database) as session:
                claimed = await leases.claim(
                    session,
                    generation.space_id,
                    token=uuid4(),
                    most=min(most or self._embedder.max_inputs, self._embedder.max_inputs),
                    lease_s=self._lease_s,
                )
            if claimed.exhausted:
                return []
            blank = [job for job in claimed.jobs if is_blank(job.content)]
            jobs = [job for job in claimed.jobs if not is_blank(job.content)]
            hopeless = [job for job in jobs if job.attempts > self._max_attempts]
            jobs = [job for job in jobs if job.attempts <= self._max_attempts]
            together = self._together(jobs)
            await self._outcomes.give_back(jobs[len(together) :])
            if blank:
                await self._finish_blank(blank)
            if hopeless:
                # Every claim is counted before the call: this text outlived its workers.
                reason = f"no worker finished it in {self._max_attempts} attempts"
                await self._outcomes.park(hopeless, reason)
            if together:
                return together

    def _together(self, jobs: list[Job]) -> list[Job]:
        """Those of them, sorted to the front, that may share a request.

        A text claimed before may be what its worker died of. With each attempt it gets less
        company, and none at the last, so that no other is parked with it.
        """
        if not jobs:
            return []
        attempts = jobs[0].attempts
        jobs.sort(key=lambda job: job.attempts != attempts)
        alike = sum(job.attempts == attempts for job in jobs)
        left = (self._max_attempts - attempts) / max(1, self._max_attempts - 1)
        most = round(self._embedder.max_inputs**left) if attempts > 1 else len(jobs)
        return jobs[: min(alike, max(1, most))]

    async def embed(self, jobs: Sequence[Job]) -> None:
        """Embed and store leased texts. Raises ProviderPaused, what is left given back."""
        calling = Calling(
            jobs,
            embedder=self._embedder,
            outcomes=self._outcomes,
            metrics=self._metrics,
            evidence=self._evidence,
            max_attempts=self._max_attempts,
        )
        try:
            async with self._leases_kept(calling):
                await calling.run()
        except (EmbeddingUnavailable, ConfigurationError) as exc:
            await self.give_back(list(calling.open.values()))
            wait_s = exc.retry_after_s if isinstance(exc, EmbeddingUnavailable) else None
            raise ProviderPaused(str(exc), wait_s) from exc
        except DatabaseUnavailable:
            self._outcomes.owe(calling.open.values())
            raise
        finally:
            if calling.moved_mean:
                self._generation = None  # read anew, with its mean

    async def give_back(self, jobs: Sequence[Job]) -> None:
        """Give leased texts back uncharged: at once, or with the next claim."""
        await self._outcomes.give_back(jobs)

    @contextlib.asynccontextmanager
    async def _leases_kept(self, calling: Calling) -> AsyncIterator[None]:
        """Renew the leases of what is open, however long the provider takes."""
        done = asyncio.Event()
        keeping = asyncio.create_task(self._renew(calling, done))
        try:
            yield
        finally:
            done.set()
            await keeping

    async def _renew(self, calling: Calling, done: asyncio.Event) -> None:
        generation = await self.generation()
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), self._lease_s / _RENEWALS)
            if done.is_set():
                return
            # Where the database is away, nobody else can claim them either.
            with contextlib.suppress(DatabaseUnavailable):
                async with writing(self._database) as session:
                    await leases.renew(
                        session,
                        generation.space_id,
                        list(calling.open.values()),
                        lease_s=self._lease_s,
                    )

    async def _finish_blank(self, jobs: Sequence[Job]) -> None:
        """A blank text is final without a call: the zero vector scores below everything."""
        zero = np.zeros(self._embedder.space.dimensions, dtype=np.float32)
        await self._outcomes.store({job.content_hash: zero for job in jobs})
        self._metrics.texts.labels("blank").inc(len(jobs))
