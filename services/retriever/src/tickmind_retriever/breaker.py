"""Not to wait for an embedding API that does not answer: a circuit breaker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tickmind.errors import EmbeddingUnavailable, TickmindError
from tickmind.telemetry import log

__all__ = ["Breaker"]

_logger = logging.getLogger("tickmind.retriever")

#: Failures in a row, no call having passed between, after which calls are not waited for. One is
#: any network's; two may be one restart, seen twice.
_FAILURES = 3
#: Between two probes: at first, and at most, doubled from one to the next. A text every 8 s costs
#: nothing, and is how long recalls go without after the API is back.
_PROBE_FIRST_S, _PROBE_MOST_S = 0.5, 8.0
#: A probe is one short text: what takes longer is no help to a recall.
_PROBE_S = 5.0


class Breaker:
    """Open after failures in a row; while it is, one probe after the other until one passes.

    Nobody waits for a probe, and none needs a request to come: the first recall after the API is
    back finds it closed. `probe` makes a call, and raises TickmindError where it fails; anything
    else closes the breaker, and calls tell.
    """

    def __init__(self, probe: Callable[[], Awaitable[object]]) -> None:
        self._probe = probe
        self._failures = 0
        self._told = ""
        self._since = 0.0
        self._probing: asyncio.Task[None] | None = None

    @property
    def open(self) -> bool:
        return self._probing is not None and not self._probing.done()

    def refusal(self) -> EmbeddingUnavailable:
        """What who asks meanwhile is told."""
        for_s = asyncio.get_running_loop().time() - self._since
        return EmbeddingUnavailable(
            f"the embedding API has failed for {for_s:.0f} s, and is tried again by itself;"
            f" lately: {self._told}"
        )

    def passed(self) -> None:
        """A call was answered."""
        self._failures = 0
        if self._probing is not None:
            self._probing.cancel()
            self._probing = None

    def failed(self, what: str) -> None:
        """A call was not, for a reason that lies in no text."""
        self._told = what
        self._failures += 1
        if self._failures >= _FAILURES and not self.open:
            self._since = asyncio.get_running_loop().time()
            self._probing = asyncio.create_task(self._probe_until_passed())
            self._probing.add_done_callback(_tell)

    async def _probe_until_passed(self) -> None:
        pause_s = _PROBE_FIRST_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(_PROBE_MOST_S, pause_s * 2)
            try:
                async with asyncio.timeout(_PROBE_S):
                    await self._probe()
            except TimeoutError:
                self._told = f"no answer within {_PROBE_S:.0f} s"
            except TickmindError as exc:
                self._told = str(exc)
            else:
                self._failures = 0
                return

    async def close(self) -> None:
        """End the probes."""
        probing, self._probing = self._probing, None
        if probing is not None:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)


def _tell(probing: asyncio.Task[None]) -> None:
    """Nobody awaits the probes: what ended them is told here."""
    if not probing.cancelled() and (exc := probing.exception()) is not None:
        log(_logger, logging.ERROR, "probe_failed", error=type(exc).__name__)
