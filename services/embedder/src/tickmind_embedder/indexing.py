"""When the recall index is built anew: by itself, once a space knows its mean."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random

from tickmind.database import Database
from tickmind.errors import TransientError
from tickmind.reindexing import Reindexing, Taken
from tickmind.telemetry import log
from tickmind_embedder.transactions import writing

__all__ = ["Indexing"]

_logger = logging.getLogger("tickmind.embedder")

#: Whether there is something to do is looked up this often, with a jitter: replicas do not come as
#: one.
_LOOK_S = 10.0
#: What another release left unsigned is looked for at first, and this often.
_TEND_S = 3600.0
#: Of the time that is worked at most: recalls go on meanwhile, and nobody waits for the new index.
_SHARE = 0.5
#: Longest that a step may take to be undone; a server that does not answer does not hold us up.
_END_S = 2.0


class Indexing:
    """Builds a generation with signatures over a space that has none, finishes one that another
    process left, and deletes those whose place was taken."""

    def __init__(self, database: Database, *, signed_from: int) -> None:
        """`signed_from`: distinct vectors from which a space is given signatures; 0: never by
        itself."""
        self._signed_from = signed_from
        self._reindexing = Reindexing(lambda: writing(database), share=_SHARE)
        self._tend_at = 0.0

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop`; a step that is under way then is finished or undone."""
        working = asyncio.create_task(self._work())
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            working.cancel()
            await asyncio.wait({working}, timeout=_END_S)
        if working.done() and not working.cancelled():
            working.result()

    async def _work(self) -> None:
        while True:
            try:
                await self.look()
            except TransientError as exc:
                log(_logger, logging.WARNING, "waiting", reason=exc.reason)
            await asyncio.sleep(_LOOK_S * (0.5 + random.random()))

    async def look(self) -> None:
        """Do what there is to do, if no other does. Raises DatabaseUnavailable."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(Taken):
            build = await self._reindexing.current()
            if build is None:
                return
            if build.building_id is not None or (self._signed_from and not build.active_signed):
                built = await self._reindexing.build(least=self._signed_from)
                if built is not None:
                    log(_logger, logging.INFO, "reindexed", generation=built.building_id)
            elif build.active_signed and loop.time() >= self._tend_at:
                await self._reindexing.tend(build)
                self._tend_at = loop.time() + _TEND_S
            await self._reindexing.drop_superseded()
