"""The embedder's loops: one that links and makes jobs, some that call the provider."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager

from opentelemetry.context import Context, get_current
from opentelemetry.trace import get_current_span

from tickmind.errors import ConfigurationError, TransientError
from tickmind.store.embedding import Swept
from tickmind.store.jobs import Job
from tickmind.telemetry import log
from tickmind.topology import EMBEDDER_QUEUE, EVENTS, RECORDED_KEY
from tickmind.tracing import SpanKind, finished, messaging, span
from tickmind_embedder.handler import Handler, ProviderPaused

__all__ = ["Worker"]

_logger = logging.getLogger("tickmind.embedder")

#: After a failure: wait at first, and at most. Jittered, so that replicas do not come back as one.
_WAIT_FIRST_S, _WAIT_MOST_S = 0.5, 60.0
#: The database is asked again sooner: nothing else can be done meanwhile.
_DATABASE_WAIT_MOST_S = 5.0
#: A full sweep may take this share of the time at most, however large the backlog.
_SWEEP_SHARE = 0.1
#: For so much at most each of its chunks counts there (measured: 40 ms on two busy cores). One that
#: took longer waited for others, which is no reason to look less often.
_CHUNK_S = 0.2
#: Jobs are looked for this often though nobody announced any: those of a worker that died, and
#: those whose time to be tried again has come.
_LOOK_S = 2.0
#: Callers that were told to come back at the same moment do so spread over this share of the wait.
_SPREAD = 0.1
#: While others go first, whether they still do is looked up this often.
_YIELD_S = 0.5


#: Traces that one batch is said to work for.
_MOST_TRACES = 64
_HINTED = f"{EVENTS.name}:{RECORDED_KEY}:{EMBEDDER_QUEUE.name}"


async def _nobody() -> bool:
    return False


def _woken(wakings: Sequence[Context]) -> AbstractContextManager[object]:
    """A sweep's span, where a hint with a trace asked for it."""
    if not wakings:
        return contextlib.nullcontext()
    return span(
        f"process {EMBEDDER_QUEUE.name}",
        kind=SpanKind.CONSUMER,
        joins=wakings,
        attributes=messaging("process", _HINTED),
    )


class _Backoff:
    """Waits that double while failures go on: full jitter between half and all of the delay."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._delay = _WAIT_FIRST_S

    def next(self) -> float:
        delay, self._delay = self._delay, min(self._most_s, self._delay * 2)
        return delay * (0.5 + random.random() / 2)

    def reset(self) -> None:
        self._delay = _WAIT_FIRST_S


class Worker:
    """Runs one handler until stopped; what is in flight then is finished.

    `fault`: why the provider is not called for now; None: it is. `stalled`: why the database lets
    nothing be linked, when that was last tried; None: it did. `others_first`: whether others have
    something to claim, and we wait; linking goes on.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        concurrency: int,
        sweep_s: float,
        others_first: Callable[[], Awaitable[bool]] = _nobody,
    ) -> None:
        self.fault: str | None = None
        self.stalled: str | None = None
        self._handler = handler
        self._others_first = others_first
        self._under_way = 0
        self._found_nothing = False
        self._concurrency = concurrency
        self._sweep_s = sweep_s
        self._hint = asyncio.Event()
        self._wakings: deque[Context] = deque(maxlen=_MOST_TRACES)
        #: Traces of the sweeps that made jobs, until there was nothing left to claim.
        self._causes: deque[Context] = deque(maxlen=_MOST_TRACES)
        self._work = asyncio.Event()
        self._work.set()  # what the last process left
        self._open = asyncio.Event()  # set while the provider takes calls
        self._open.set()
        self._backoff = _Backoff(_WAIT_MOST_S)

    def hint(self, trace: Context | None = None) -> None:
        """Something was recorded: look now. `trace`: whose wake-up it is."""
        if trace is not None:
            self._wakings.append(trace)
        self._hint.set()

    @property
    def idle(self) -> bool:
        """Whether there was nothing to claim when last looked for, and no call is under way."""
        return self._found_nothing and not self._under_way

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop`. Raises ConfigurationError where the space is not the database's."""
        backoff = _Backoff(_DATABASE_WAIT_MOST_S)
        while not stop.is_set():
            try:
                await self._handler.generation()
                break
            except TransientError as exc:
                await _wait_out(exc, backoff, stop)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._link(stop))
                for _ in range(self._concurrency):
                    tasks.create_task(self._call(stop))
        except ExceptionGroup as group:
            wrong = [exc for exc in group.exceptions if isinstance(exc, ConfigurationError)]
            if wrong:
                raise wrong[0] from group
            raise

    async def _link(self, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        backoff = _Backoff(_DATABASE_WAIT_MOST_S)
        next_full = begun = loop.time()
        cost_s = 0.0

        def chunk(swept: Swept) -> bool:
            nonlocal begun, cost_s
            now = loop.time()
            cost_s += min(_CHUNK_S, now - begun)
            begun = now
            if swept.jobs:
                self._work.set()
                if get_current_span().is_recording():
                    self._causes.append(get_current())
            return not stop.is_set()

        while not stop.is_set():
            self._hint.clear()
            full = loop.time() >= next_full
            begun, cost_s = loop.time(), 0.0
            wakings = list(self._wakings)
            self._wakings.clear()
            try:
                with _woken(wakings):
                    await self._handler.sweep(full=full, go_on=chunk)
            except TransientError as exc:
                self.stalled = str(exc)
                await _wait_out(exc, backoff, stop)
                continue
            self.stalled = None
            backoff.reset()
            if full:
                next_full = loop.time() + max(self._sweep_s, cost_s / _SWEEP_SHARE)
            await _first(self._hint, stop, timeout_s=max(0.0, next_full - loop.time()))

    async def _call(self, stop: asyncio.Event) -> None:
        backoff = _Backoff(_DATABASE_WAIT_MOST_S)
        probing = False  # the provider is closed for all, and we are to see whether it still is
        while not stop.is_set():
            if not probing:
                await _first(self._open, stop)
            await _first(self._work, stop, timeout_s=_LOOK_S)
            if stop.is_set() or not (probing or self._open.is_set()):
                continue
            try:
                if await self._others_first():
                    await _first(stop, stop, timeout_s=_YIELD_S)
                    continue
                # Before the claim: what is announced during it is looked for again.
                self._work.clear()
                begun_ns = time.time_ns()
                jobs = await self._handler.claim(most=1 if probing else None)
                self._found_nothing = not jobs
                if not jobs:
                    self._causes.clear()
                else:
                    self._work.set()  # there may be more
                    if stop.is_set():
                        await self._handler.give_back(jobs)
                        return
                    with span("embed", joins=list(self._causes), begun_ns=begun_ns):
                        finished("claim", begun_ns=begun_ns)
                        await self._embed(jobs)
            except ProviderPaused as exc:
                self._work.set()
                if probing or self._open.is_set():  # else another caller waits for all
                    probing = True
                    await self._pause(exc, stop)
                continue
            except TransientError as exc:
                self._work.set()
                await _wait_out(exc, backoff, stop)
                continue
            backoff.reset()
            if probing or (jobs and self._open.is_set()):
                probing = False
                self.fault = None
                self._backoff.reset()
                self._open.set()

    async def _embed(self, jobs: Sequence[Job]) -> None:
        self._under_way += 1
        try:
            await self._handler.embed(jobs)
        finally:
            self._under_way -= 1

    async def _pause(self, pause: ProviderPaused, stop: asyncio.Event) -> None:
        """No calls from this process until the wait is over; linking goes on."""
        self._open.clear()
        self.fault = pause.reason
        told_s = (pause.wait_s or 0.0) * (1 + _SPREAD * random.random())
        wait_s = max(told_s, self._backoff.next())
        log(
            _logger,
            logging.WARNING,
            "provider_paused",
            reason=pause.reason,
            wait_s=round(wait_s, 1),
        )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), wait_s)


async def _wait_out(exc: TransientError, backoff: _Backoff, stop: asyncio.Event) -> None:
    wait_s = backoff.next()
    log(_logger, logging.WARNING, "waiting", reason=exc.reason, wait_s=round(wait_s, 1))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), wait_s)


async def _first(
    event: asyncio.Event, stop: asyncio.Event, *, timeout_s: float | None = None
) -> None:
    """Return once either is set, or the time is over."""
    if event.is_set() or stop.is_set():
        return
    waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(stop.wait())]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
