"""The embedder's loops: one that links and makes jobs, some that call the provider."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random

from tickmind.errors import TransientError
from tickmind.telemetry import log
from tickmind_embedder.handler import Handler, ProviderPaused

__all__ = ["Worker"]

_logger = logging.getLogger("tickmind.embedder")

#: After a failure: wait at first, and at most. Jittered, so that replicas do not come back as one.
_WAIT_FIRST_S, _WAIT_MOST_S = 0.5, 60.0
#: A full sweep may take this share of the time at most, however large the backlog.
_SWEEP_SHARE = 0.1


class _Backoff:
    """Waits that double while failures go on: full jitter between half and all of the delay."""

    def __init__(self) -> None:
        self._delay = _WAIT_FIRST_S

    def next(self) -> float:
        delay, self._delay = self._delay, min(_WAIT_MOST_S, self._delay * 2)
        return delay * (0.5 + random.random() / 2)

    def reset(self) -> None:
        self._delay = _WAIT_FIRST_S


class Worker:
    """Runs one handler until stopped; what is in flight then is finished."""

    def __init__(self, handler: Handler, *, concurrency: int, sweep_s: float) -> None:
        self._handler = handler
        self._concurrency = concurrency
        self._sweep_s = sweep_s
        self._hint = asyncio.Event()
        self._work = asyncio.Event()
        self._open = asyncio.Event()  # set while the provider takes calls
        self._open.set()
        self._backoff = _Backoff()

    def hint(self) -> None:
        """Something was recorded: look now."""
        self._hint.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop`. Raises ConfigurationError where the space is not the database's."""
        while not stop.is_set():
            try:
                await self._handler.generation()
                break
            except TransientError as exc:
                await self._wait_out(exc, stop)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._link(stop))
            for _ in range(self._concurrency):
                tasks.create_task(self._call(stop))

    async def _link(self, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        next_full = loop.time()
        while not stop.is_set():
            full = loop.time() >= next_full
            begun = loop.time()
            try:
                await self._handler.sweep(full=full)
            except TransientError as exc:
                await self._wait_out(exc, stop)
                continue
            if full:
                took = loop.time() - begun
                next_full = loop.time() + max(self._sweep_s, took / _SWEEP_SHARE)
            self._work.set()
            with contextlib.suppress(TimeoutError):
                await _first(self._hint, stop, timeout_s=max(0.0, next_full - loop.time()))
            self._hint.clear()
        self._work.set()  # for the callers to see that we stop

    async def _call(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await _first(self._work, stop)
            await _first(self._open, stop)
            if stop.is_set():
                return
            try:
                jobs = await self._handler.claim()
                if not jobs:
                    self._work.clear()
                    continue
                await self._handler.embed(jobs)
                self._backoff.reset()
            except ProviderPaused as exc:
                await self._pause(exc, stop)
            except TransientError as exc:
                await self._wait_out(exc, stop)

    async def _pause(self, pause: ProviderPaused, stop: asyncio.Event) -> None:
        """No calls from this process until the wait is over; linking goes on."""
        if not self._open.is_set():
            return  # another caller was told first and waits for all
        self._open.clear()
        wait_s = max(pause.wait_s or 0.0, self._backoff.next())
        log(
            _logger,
            logging.WARNING,
            "provider_paused",
            reason=pause.reason,
            wait_s=round(wait_s, 1),
        )
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), wait_s)
        finally:
            self._open.set()

    async def _wait_out(self, exc: TransientError, stop: asyncio.Event) -> None:
        wait_s = min(5.0, self._backoff.next())
        log(_logger, logging.WARNING, "waiting", reason=exc.reason, wait_s=round(wait_s, 1))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), wait_s)


async def _first(
    event: asyncio.Event, stop: asyncio.Event, *, timeout_s: float | None = None
) -> None:
    """Return once either is set. Raises TimeoutError."""
    if event.is_set() or stop.is_set():
        return
    waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(stop.wait())]
    try:
        done, _ = await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise TimeoutError
    finally:
        for wait in waits:
            wait.cancel()
