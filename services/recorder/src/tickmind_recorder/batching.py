"""Deliveries gathered into batches, one transaction each, and acknowledged once it is committed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from tickmind.errors import TransientError
from tickmind.telemetry import log
from tickmind_recorder.handler import Delivery, Handler

__all__ = ["Batcher", "Receipted"]

_logger = logging.getLogger("tickmind.recorder")

#: Waiting for a database that went away: at first, and at most, between two tries.
_RETRY_FIRST_S, _RETRY_MOST_S = 0.2, 5.0
#: Transactions under way at once: one in the database while the next is being prepared.
_IN_FLIGHT = 2


class Receipted(Protocol):
    """A delivery that can be acknowledged, or given up on (to the dead letters)."""

    delivery: Delivery

    def done(self) -> Awaitable[None]: ...

    def give_up(self) -> Awaitable[None]: ...


class Batcher:
    """Stores what is put in, N decisions or T milliseconds at a time, whichever comes first."""

    def __init__(
        self,
        handler: Handler,
        *,
        batch_decisions: int,
        batch_s: float,
        stored: Callable[[], Awaitable[None]],
    ) -> None:
        self._handler = handler
        self._batch_decisions = batch_decisions
        self._batch_s = batch_s
        self._stored = stored
        self._queue: asyncio.Queue[Receipted | None] = asyncio.Queue()
        self._flights: set[asyncio.Task[None]] = set()

    def put(self, item: Receipted) -> None:
        self._queue.put_nowait(item)

    def close(self) -> None:
        """No more comes: `run` returns once all is stored."""
        self._queue.put_nowait(None)

    async def run(self) -> None:
        """Store until closed. While the database is away, keeps what it has and tries again."""
        try:
            while batch := await self._gather():
                while len(self._flights) >= _IN_FLIGHT:
                    await self._land()
                flight = asyncio.create_task(self._store(batch))
                self._flights.add(flight)
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
        first = await self._queue.get()
        if first is None:
            return []
        batch, decisions = [first], first.delivery.decisions
        loop = asyncio.get_running_loop()
        until = loop.time() + self._batch_s
        while decisions < self._batch_decisions:
            if self._queue.empty():
                left = until - loop.time()
                if left <= 0:
                    break
                try:
                    item = await asyncio.wait_for(self._queue.get(), left)
                except TimeoutError:
                    break
            else:
                item = self._queue.get_nowait()
            if item is None:
                self.close()  # for the next gathering to find
                break
            batch.append(item)
            decisions += item.delivery.decisions
        return batch

    async def _store(self, batch: Sequence[Receipted]) -> None:
        delay = _RETRY_FIRST_S
        while True:
            try:
                lost = await self._handler.store([item.delivery for item in batch])
            except TransientError as exc:
                log(_logger, logging.WARNING, "store_waits", reason=exc.reason, retry_s=delay)
                await asyncio.sleep(delay)
                delay = min(_RETRY_MOST_S, delay * 2)
            else:
                break
        for item in batch:
            if item.delivery in lost:
                await item.give_up()
            else:
                await item.done()
        with contextlib.suppress(TransientError):
            await self._stored()
