"""Vectors of observations: kept, asked for once, and many in one call."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from opentelemetry.context import Context, get_current

from tickmind.embedding import Embedder
from tickmind.errors import EmbeddingFailed, EmbeddingUnavailable, TextRefused, TickmindError
from tickmind.tracing import span

__all__ = ["QueryVectors"]

Vector = NDArray[np.float32]

#: Calls under way at once; what comes meanwhile shares the next one.
_CALLS = 4
#: Calls that a batch with a refused text in it may take: finding one among 100 takes 14.
_CALLS_A_BATCH = 16
#: A failure tells of the provider's state so long, unless a call passes meanwhile.
_FAULT_S = 30.0


@dataclass(slots=True, kw_only=True, eq=False)
class _Flight:
    """One text on its way to its vector. `waiting`: callers that have not given up."""

    text: str
    future: asyncio.Future[Vector]
    waiting: int = 0
    trace: Context = field(default_factory=get_current)


@dataclass(slots=True, kw_only=True, eq=False)
class _Call:
    flights: list[_Flight]
    task: asyncio.Task[None] | None = None
    left: int = field(default=_CALLS_A_BATCH)

    @property
    def wanted(self) -> bool:
        return any(flight.waiting for flight in self.flights)


class QueryVectors:
    """A cache of one embedding space, with a single flight per text.

    A caller that gives up takes nothing from the others. A call whose callers have all given up
    goes on, its vectors are kept; it ends where another is waiting for its place.
    """

    def __init__(self, embedder: Embedder, *, kept: int) -> None:
        self._embedder = embedder
        self._kept = kept
        self._cache: OrderedDict[str, Vector] = OrderedDict()
        self._flights: dict[str, _Flight] = {}
        self._boarding: list[_Flight] = []
        self._calls: list[_Call] = []
        self._fault: tuple[float, str] | None = None

    @contextmanager
    def wanted(self, texts: Iterable[str]) -> Iterator[dict[str, asyncio.Future[Vector]]]:
        """Vectors of texts, none blank, for the length of the block.

        Each future gives (dimensions,) float32, unit length, or raises as `Embedder.embed` does.
        Not to be cancelled: others may be waiting for the same.
        """
        flights = {text: self._flight(text) for text in dict.fromkeys(texts)}
        for flight in flights.values():
            flight.waiting += 1
        self._depart()
        try:
            yield {text: flight.future for text, flight in flights.items()}
        finally:
            for flight in flights.values():
                flight.waiting -= 1

    def _flight(self, text: str) -> _Flight:
        flight = self._flights.get(text)
        if flight is None:
            flight = _Flight(text=text, future=asyncio.get_running_loop().create_future())
            vector = self._cache.get(text)
            if vector is not None:
                self._cache.move_to_end(text)
                flight.future.set_result(vector)
            else:
                flight.future.add_done_callback(_look)
                self._flights[text] = flight
                self._boarding.append(flight)
        return flight

    def _depart(self) -> None:
        for flight in [flight for flight in self._boarding if not flight.waiting]:
            self._boarding.remove(flight)
            self._land(flight, EmbeddingUnavailable("nobody waited for it any more"))
        while self._boarding and (len(self._calls) < _CALLS or self._give_up_one()):
            most = self._embedder.max_inputs
            call = _Call(flights=self._boarding[:most])
            self._boarding = self._boarding[most:]
            self._calls.append(call)
            call.task = asyncio.create_task(self._run(call))

    def _give_up_one(self) -> bool:
        """Make room by ending a call that nobody waits for; False: there is none."""
        for call in self._calls:
            if not call.wanted and call.task is not None:
                call.task.cancel()
                self._ended(call)
                return True
        return False

    async def _run(self, call: _Call) -> None:
        try:
            with span("embed", joins=[flight.trace for flight in call.flights]):
                await self._embed(call, call.flights)
        finally:
            if call in self._calls:
                self._ended(call)
                self._depart()

    def _ended(self, call: _Call) -> None:
        self._calls.remove(call)
        for flight in call.flights:
            self._land(flight, EmbeddingUnavailable("the call was given up"))

    async def _embed(self, call: _Call, flights: Sequence[_Flight]) -> None:
        """One call; where a text in it is not taken, halves, down to the text at fault."""
        call.left -= 1
        try:
            vectors = await self._embedder.embed([flight.text for flight in flights], "query")
        except TickmindError as exc:
            of_a_text = isinstance(exc, TextRefused | EmbeddingFailed)
            if not of_a_text:
                self._fault = (asyncio.get_running_loop().time(), str(exc))
            if of_a_text and len(flights) > 1 and call.left > 0 and call.wanted:
                middle = len(flights) // 2
                await self._embed(call, flights[:middle])
                await self._embed(call, flights[middle:])
                return
            for flight in flights:
                self._land(flight, exc)
            return
        self._fault = None
        for flight, vector in zip(flights, vectors, strict=True):
            self._land(flight, vector.copy())  # a row would keep its whole batch in memory

    def _land(self, flight: _Flight, outcome: Vector | TickmindError) -> None:
        """The end of a flight, if it has not ended before."""
        if flight.future.done():
            return
        del self._flights[flight.text]
        if isinstance(outcome, TickmindError):
            flight.future.set_exception(outcome)
            return
        flight.future.set_result(outcome)
        self._cache[flight.text] = outcome
        while len(self._cache) > self._kept:
            self._cache.popitem(last=False)

    async def fault(self) -> str | None:
        """Why no vectors can be had just now, in one sentence; None: they can."""
        if self._fault is not None:
            since, what = self._fault
            if asyncio.get_running_loop().time() - since < _FAULT_S:
                return what
        return await self._embedder.fault()

    async def close(self) -> None:
        """Give up the calls under way; who waits for them is told."""
        tasks = [call.task for call in self._calls if call.task is not None]
        for call in list(self._calls):
            self._ended(call)
        for flight in self._boarding:
            self._land(flight, EmbeddingUnavailable("the retriever is stopping"))
        self._boarding.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _look(future: asyncio.Future[Vector]) -> None:
    """Every caller may have given up: an error nobody awaits is not an accident."""
    if not future.cancelled():
        future.exception()
