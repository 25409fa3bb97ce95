"""Deliveries gathered into batches, one transaction each, and acknowledged once it is committed."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from opentelemetry.context import Context

from tickmind.errors import PermanentError, TransientError
from tickmind.telemetry import log
from tickmind.topology import EVENTS, RECORDER_QUEUE
from tickmind.tracing import SpanKind, messaging, span
from tickmind_recorder.handler import Delivery, Handler

__all__ = ["Batcher", "Flushable", "Receipted"]

_logger = logging.getLogger("tickmind.recorder")

#: Waiting for a database that went away: at first, and at most, between two tries.
_RETRY_FIRST_S, _RETRY_MOST_S = 0.2, 5.0
#: A batch that takes longer waits for a connection that died without a word: it is tried again on
#: another. Measured: 1000 decisions take 30 ms.
STORE_TIMEOUT_S = 60.0
#: Transactions under way at once: one in the database while the next is being prepared.
_IN_FLIGHT = 2
#: A batch is full, too, with so many characters of memories. A speech counts once for everyone
#: who hears it, so that a message of 1 MiB can come to 50 MiB, and 400 of them to what neither
#: memory nor one statement (1 GiB) holds.
_BATCH_CHARS = 4 * 1024 * 1024


_PROCESSES = messaging("process", f"{EVENTS.name}:{RECORDER_QUEUE.name}")


class Flushable(Protocol):
    """Where deliveries are acknowledged, many at once."""

    def flush(self) -> Awaitable[None]: ...


class Receipted(Protocol):
    """A delivery with its way back: stored, or given up on (to the dead letters).

    `lost`: the way back is gone, and the delivery will come again on another. `trace`: the one it
    came with.
    """

    delivery: Delivery
    trace: Context | None

    @property
    def channel(self) -> Flushable: ...

    @property
    def lost(self) -> bool: ...

    def settle(self) -> None: ...

    def give_up(self) -> Awaitable[None]: ...


class _Stopped(Exception):
    """Told to stop while the database is away: what is unacknowledged is delivered to another."""


class Batcher:
    """Stores what is put in, N decisions or T milliseconds at a time, whichever comes first."""

    def __init__(
        self,
        handler: Handler,
        *,
        batch_decisions: int,
        batch_s: float,
        stored: Callable[[], None],
    ) -> None:
        self._handler = handler
        self._batch_decisions = batch_decisions
        self._batch_s = batch_s
        self._stored = stored
        self._waiting: deque[Receipted] = deque()
        self._arrived = asyncio.Event()
        self._closed = asyncio.Event()
        self._flights: set[asyncio.Task[None]] = set()
        self._fault: str | None = None

    async def check(self) -> str | None:
        """Why nothing could be stored when it was last tried, in one sentence; None: it was. A
        database may answer and let nobody write."""
        return self._fault

    @property
    def idle(self) -> bool:
        """Whether nothing is held unacknowledged."""
        return not self._waiting and all(flight.done() for flight in self._flights)

    def put(self, item: Receipted) -> None:
        self._waiting.append(item)
        self._arrived.set()

    def forget_lost(self) -> None:
        """Let go of what is delivered again: else each reconnect while the database is away would
        double what is held."""
        self._waiting = deque(item for item in self._waiting if not item.lost)

    def close(self) -> None:
        """No more comes: `run` returns once all is stored, or cannot be."""
        self._closed.set()
        self._arrived.set()

    async def run(self) -> None:
        """Store until closed. While the database is away, keeps what it has and tries again."""
        try:
            while batch := await self._gather():
                while len(self._flights) >= _IN_FLIGHT:
                    await self._land()
                self._flights.add(asyncio.create_task(self._store(batch)))
            while self._flights:
                await self._land()
        finally:
            for flight in self._flights:
                flight.cancel()

    async def _land(self) -> None:
        done, self._flights = await asyncio.wait(self._flights, return_when=asyncio.FIRST_COMPLETED)
        for flight in done:
            flight.result()

    async def _gather(self) -> list[Receipted]:
        """The next batch; empty: closed, and nothing is left."""
        while not self._waiting:
            if self._closed.is_set():
                return []
            await self._next()
        batch: list[Receipted] = []
        decisions = chars = 0
        loop = asyncio.get_running_loop()
        until = loop.time() + self._batch_s
        while decisions < self._batch_decisions and chars < _BATCH_CHARS:
            if self._waiting:
                item = self._waiting.popleft()
                batch.append(item)
                decisions += item.delivery.decisions
                chars += item.delivery.chars
                continue
            if self._closed.is_set() or loop.time() >= until:
                break
            try:
                async with asyncio.timeout_at(until):
                    await self._next()
            except TimeoutError:
                break
        return batch

    async def _next(self) -> None:
        self._arrived.clear()
        await self._arrived.wait()

    async def _store(self, batch: Sequence[Receipted]) -> None:
        with span(
            f"process {RECORDER_QUEUE.name}",
            kind=SpanKind.CONSUMER,
            joins=[item.trace for item in batch if item.trace is not None],
            attributes=_PROCESSES,
        ) as current:
            if current.is_recording():
                decisions = sum(item.delivery.decisions for item in batch)
                current.set_attribute("messaging.batch.message_count", len(batch))
                current.set_attribute("tickmind.decisions", decisions)
            await self._store_traced(batch)

    async def _store_traced(self, batch: Sequence[Receipted]) -> None:
        try:
            if await self._attempt(batch, self._handler.store) is None:
                for item in batch:
                    item.settle()
            else:
                for item in batch:
                    await self._store_alone(item)
        except _Stopped:
            log(_logger, logging.WARNING, "left_unacknowledged", messages=len(batch))
        for channel in {item.channel for item in batch}:
            await channel.flush()
        self._stored()

    async def _store_alone(self, item: Receipted) -> None:
        """Find the offender of a batch: it is rejected, its neighbours are stored."""
        why = await self._attempt([item], self._handler.store)
        if why is not None:
            why = await self._attempt([item], partial(self._handler.reject, why=why))
        if why is None:
            item.settle()
        else:
            log(_logger, logging.ERROR, "dead_lettered", reason=str(why))
            self._handler.gave_up()
            await item.give_up()

    async def _attempt(
        self, batch: Sequence[Receipted], store: Callable[[Sequence[Delivery]], Awaitable[None]]
    ) -> PermanentError | None:
        """Why it cannot be stored; None: it is. Waits as long as the database is away.

        Raises _Stopped.
        """
        delay = _RETRY_FIRST_S
        while True:
            try:
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    await store([item.delivery for item in batch if not item.lost])
            except (TransientError, TimeoutError) as exc:
                if isinstance(exc, TimeoutError):
                    self._handler.distrust()
                self._fault = str(exc) or f"storing did not end within {STORE_TIMEOUT_S:g} s"
                log(_logger, logging.WARNING, "store_waits", reason=self._fault, retry_s=delay)
                await self._wait(delay)
                delay = min(_RETRY_MOST_S, delay * 2)
                continue
            except PermanentError as exc:
                log(_logger, logging.WARNING, "refused", messages=len(batch), reason=str(exc))
                why: PermanentError | None = exc
            except Exception as exc:  # the boundary: no message may end the recorder for all
                _logger.exception("store_failed")
                why = PermanentError(f"storing it failed ({type(exc).__name__})")
            else:
                why = None
            self._fault = None
            return why

    async def _wait(self, delay: float) -> None:
        try:
            async with asyncio.timeout(delay):
                await self._closed.wait()
        except TimeoutError:
            return
        raise _Stopped
