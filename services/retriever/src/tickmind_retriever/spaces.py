"""Who embeds the observations: for each space that recalls have used, a provider and a cache."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass

from tickmind.database import Database
from tickmind.embedding import Embedder, provider_of
from tickmind.errors import TickmindError
from tickmind.measured import CallMeters, measured
from tickmind.metered import metered_for_queries
from tickmind.serving import difference, settings_of
from tickmind.settings import EmbeddingSettings
from tickmind.store.spaces import Generation
from tickmind.telemetry import log
from tickmind_retriever.query_vectors import QueryVectors

__all__ = ["Spaces"]

_logger = logging.getLogger("tickmind.retriever")

#: The space in use, and the one before: requests that have begun go on with it, and going back to
#: it finds its vectors still there.
_KEPT = 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Served:
    settings: EmbeddingSettings
    embedder: Embedder
    vectors: QueryVectors

    async def close(self) -> None:
        await self.vectors.close()
        await self.embedder.close()


class Spaces:
    """Vectors of observations, each in the space it is asked for."""

    def __init__(
        self, database: Database, settings: EmbeddingSettings, *, kept: int, gather_s: float = 0.0
    ) -> None:
        """`kept`: vectors kept of each space; `gather_s`: how long a text waits for others to
        share its call. Raises ConfigurationError for settings that no text could be embedded with.
        """
        self._database = database
        self._settings = settings
        self._kept = kept
        self._gather_s = gather_s
        self.meters: CallMeters | None = None  # counts the calls, where it is given
        self._own = Embedder(settings)  # wrong settings are told at once
        self._served: OrderedDict[int, _Served] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._told: set[str] = set()
        self._in_use: Generation | None = None
        self._unreachable: str | None = None

    def vectors(self, generation: Generation) -> QueryVectors:
        """Where to get vectors in this generation's space. Raises ConfigurationError where it
        cannot be reached."""
        self._in_use = generation
        if differs := difference(generation.space, self._settings):
            self._tell(differs)
        try:
            settings = settings_of(generation.space, generation.served, self._settings)
            found = self._served.get(generation.space_id)
            if found is None or found.settings != settings:
                found = self._serve(generation.space_id, settings)
        except TickmindError as exc:
            self._unreachable = str(exc)
            self._tell(str(exc))
            raise
        self._unreachable = None
        self._served.move_to_end(generation.space_id)
        return found.vectors

    def _serve(self, space_id: int, settings: EmbeddingSettings) -> _Served:
        provider = measured(provider_of(settings), self.meters, settings)
        provider = metered_for_queries(provider, self._database, settings)
        embedder = Embedder(settings, provider)
        before = self._served.pop(space_id, None)
        if before is not None:
            self._close(before)
        # Made-up vectors take no call that could be shared.
        gather_s = 0.0 if settings.embedding_provider == "hash" else self._gather_s
        vectors = QueryVectors(embedder, kept=self._kept, gather_s=gather_s)
        found = _Served(settings=settings, embedder=embedder, vectors=vectors)
        self._served[space_id] = found
        while len(self._served) > _KEPT:
            self._close(self._served.popitem(last=False)[1])
        log(_logger, logging.INFO, "space_used", space=space_id)
        return found

    def _close(self, served: _Served) -> None:
        closing = asyncio.create_task(served.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _tell(self, note: str) -> None:
        if note not in self._told:
            self._told.add(note)
            log(_logger, logging.WARNING, "embedding_space", note=note)

    @property
    def refusing(self) -> bool:
        """Whether the provider in use has failed, so that texts not known are refused at once."""
        if self._in_use is None or self._in_use.space_id not in self._served:
            return False
        return self._served[self._in_use.space_id].vectors.refusing

    async def fault(self) -> str | None:
        """Why no vectors can be had just now, in one sentence; None: they can."""
        if self._unreachable is not None:
            return self._unreachable
        if self._in_use is None:
            return await self._own.fault()
        return await self._served[self._in_use.space_id].vectors.fault()

    async def note(self) -> str | None:
        """What a person should know though it stops nothing."""
        return difference(self._in_use.space, self._settings) if self._in_use else None

    async def close(self) -> None:
        """Give up the calls under way; who waits for them is told."""
        served = list(self._served.values())
        self._served.clear()
        self._in_use = None
        await asyncio.gather(*(one.close() for one in served), *self._closing)
        await self._own.close()
