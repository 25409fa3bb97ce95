"""Vectors of observations: kept, asked for once, and many in one call."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray
from opentelemetry.context import Context, get_current

from tickmind.embedding import Embedder
from tickmind.errors import (
    EmbeddingFailed,
    EmbeddingUnavailable,
    TextRefused,
    TickmindError,
)
from tickmind.tracing import span
from tickmind_retriever.breaker import Breaker

__all__ = ["QueryVectors"]

Vector = NDArray[np.float32]

#: Calls under way at once; what comes meanwhile shares the next one.
_CALLS = 4
#: Calls that a batch with a refused text in it may take: finding one among 100 takes 14.
_CALLS_A_BATCH = 16
#: A failure tells of the provider's state so long, unless a call passes meanwhile.
_FAULT_S = 30.0
#: A call that its callers gave up on sooner says nothing of the provider: APIs take 0.2 to 0.5 s.
_UNANSWERED_S = 0.2
#: A longer text is kept as its hash: an observation may have 100,000 characters, its vector 6 kB.
_KEPT_CHARS = 200
#: Any provider takes it, and few tokens.
_HARMLESS = "hello"


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
    since: float
    task: asyncio.Task[None] | None = None
    unanswered: bool = False
    left: int = field(default=_CALLS_A_BATCH)

    @property
    def wanted(self) -> bool:
        return any(flight.waiting for flight in self.flights)


class QueryVectors:
    """A cache of one embedding space, with a single flight per text.

    A caller that gives up takes nothing from the others. A call whose callers have all given up
    goes on, its vectors are kept; it ends where another is waiting for its place. While the
    provider fails (see `Breaker`), texts that are not kept are refused at once.

    `gather_s`: how long a text waits for others to share its call.
    """

    def __init__(self, embedder: Embedder, *, kept: int, gather_s: float = 0.0) -> None:
        self._embedder = embedder
        self._kept = kept
        self._gather_s = gather_s
        self._gathering: asyncio.TimerHandle | None = None
        self._breaker = Breaker(self._probe)
        self._cache: OrderedDict[str | bytes, Vector] = OrderedDict()
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
        self._gather()
        try:
            yield {text: flight.future for text, flight in flights.items()}
        finally:
            for flight in flights.values():
                flight.waiting -= 1
            self._count_unanswered(set(flights.values()))

    def _flight(self, text: str) -> _Flight:
        flight = self._flights.get(text)
        if flight is None:
            flight = _Flight(text=text, future=asyncio.get_running_loop().create_future())
            vector = self._cache.get(key := _key(text))
            if vector is not None:
                self._cache.move_to_end(key)
                flight.future.set_result(vector)
            else:
                flight.future.add_done_callback(_look)
                self._flights[text] = flight
                self._boarding.append(flight)
        return flight

    def _gather(self) -> None:
        """Depart, now or when those who ask within `gather_s` have boarded."""
        if self._breaker.open or not self._gather_s:
            self._depart()
        elif self._boarding and self._gathering is None:
            loop = asyncio.get_running_loop()
            self._gathering = loop.call_later(self._gather_s, self._gathered)

    def _gathered(self) -> None:
        self._gathering = None
        self._depart()

    def _count_unanswered(self, given_up: Collection[_Flight]) -> None:
        """A call whose last caller gave up has failed them, whatever comes of it later."""
        now = asyncio.get_running_loop().time()
        for call in self._calls:
            if call.unanswered or call.wanted or not any(f in given_up for f in call.flights):
                continue
            taken_s = now - call.since
            if taken_s >= _UNANSWERED_S:
                call.unanswered = True
                self._breaker.failed(f"no answer within {taken_s:.1f} s")

    def _depart(self) -> None:
        if self._breaker.open:
            for flight in self._boarding:
                self._land(flight, self._breaker.refusal())
            self._boarding.clear()
        for flight in [flight for flight in self._boarding if not flight.waiting]:
            self._boarding.remove(flight)
            self._land(flight, EmbeddingUnavailable("nobody waited for it any more"))
        while self._boarding and (len(self._calls) < _CALLS or self._give_up_one()):
            most = self._embedder.max_inputs
            now = asyncio.get_running_loop().time()
            call = _Call(flights=self._boarding[:most], since=now)
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
                if _is_outage(exc):
                    self._breaker.failed(str(exc))
            if of_a_text and len(flights) > 1 and call.left > 0 and call.wanted:
                middle = len(flights) // 2
                await self._embed(call, flights[:middle])
                await self._embed(call, flights[middle:])
                return
            for flight in flights:
                self._land(flight, exc)
            return
        self._fault = None
        self._breaker.passed()
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
        self._cache[_key(flight.text)] = outcome
        while len(self._cache) > self._kept:
            self._cache.popitem(last=False)

    async def _probe(self) -> None:
        await self._embedder.embed([_HARMLESS], "query")
        self._fault = None

    @property
    def refusing(self) -> bool:
        """Whether texts that are not kept are refused at once."""
        return self._breaker.open

    async def fault(self) -> str | None:
        """Why no vectors can be had just now, in one sentence; None: they can."""
        if self._breaker.open:
            return str(self._breaker.refusal())
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
        if self._gathering is not None:
            self._gathering.cancel()
        for task in tasks:
            task.cancel()
        await self._breaker.close()
        await asyncio.gather(*tasks, return_exceptions=True)


def _key(text: str) -> str | bytes:
    """A text's, in the cache."""
    if len(text) <= _KEPT_CHARS:
        return text
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


def _is_outage(exc: TickmindError) -> bool:
    """Whether waiting is what a call would be. Limits and refused keys are told at once."""
    return isinstance(exc, EmbeddingUnavailable) and exc.kind in ("network", "server")


def _look(future: asyncio.Future[Vector]) -> None:
    """Every caller may have given up: an error nobody awaits is not an accident."""
    if not future.cancelled():
        future.exception()
