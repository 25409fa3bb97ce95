"""Vectors of observations: kept, asked for once, and many in one call."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tickmind.embedding import Embedder

__all__ = ["QueryVectors"]

Vector = NDArray[np.float32]

#: Calls under way at once; what comes meanwhile shares the next one.
_CALLS = 4


class QueryVectors:
    """A cache of one embedding space, with a single flight per text.

    A caller that gives up takes nothing from the others: the call goes on and is kept.
    """

    def __init__(self, embedder: Embedder, *, kept: int) -> None:
        self._embedder = embedder
        self._kept = kept
        self._cache: OrderedDict[str, Vector] = OrderedDict()
        self._flights: dict[str, asyncio.Future[Vector]] = {}
        self._waiting: list[str] = []
        self._calls: set[asyncio.Task[None]] = set()

    async def of(self, texts: Sequence[str]) -> list[Vector]:
        """Vectors in the order of the texts, none blank: (dimensions,) float32, unit length.

        Raises as `Embedder.embed` does.
        """
        futures = {}
        for text in texts:
            if text in self._cache:
                self._cache.move_to_end(text)
            elif text not in futures:
                futures[text] = self._flight(text)
        if futures:
            self._depart()
            # Shielded by wait(): a cancelled caller leaves the shared futures alone.
            await asyncio.wait(futures.values())
        found = {text: future.result() for text, future in futures.items()}
        return [found[text] if text in found else self._cache[text] for text in texts]

    def _flight(self, text: str) -> asyncio.Future[Vector]:
        future = self._flights.get(text)
        if future is None:
            future = self._flights[text] = asyncio.get_running_loop().create_future()
            future.add_done_callback(_look)
            self._waiting.append(text)
        return future

    def _depart(self) -> None:
        while self._waiting and len(self._calls) < _CALLS:
            most = self._embedder.max_inputs
            batch, self._waiting = self._waiting[:most], self._waiting[most:]
            call = asyncio.create_task(self._call(batch))
            self._calls.add(call)
            call.add_done_callback(self._landed)

    def _landed(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._depart()

    async def _call(self, texts: list[str]) -> None:
        try:
            vectors = await self._embedder.embed(texts, "query")
        except BaseException as exc:
            for text in texts:
                self._flights.pop(text).set_exception(
                    exc if isinstance(exc, Exception) else asyncio.CancelledError()
                )
            if not isinstance(exc, Exception):
                raise
            return
        for text, vector in zip(texts, vectors, strict=True):
            self._flights.pop(text).set_result(vector)
            self._cache[text] = vector
        while len(self._cache) > self._kept:
            self._cache.popitem(last=False)

    async def close(self) -> None:
        """Give up the calls under way."""
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)


def _look(future: asyncio.Future[Vector]) -> None:
    """Every caller may have given up: an error nobody awaits is not an accident."""
    if not future.cancelled():
        future.exception()
