"""What is looked up when Prometheus asks, not before: gauges of things outside of the process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tickmind.errors import TickmindError
from tickmind.telemetry import log

__all__ = ["Watch", "Watching"]

_logger = logging.getLogger("tickmind.metrics")

#: What was looked up so lately is told again: several who scrape cost no more than one.
FRESH_S = 5.0
#: Longest that a scrape waits for it; Prometheus gives up after 10 s.
_MOST_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Watch:
    """`look` sets its gauges, and raises a TickmindError where it cannot; then `forget` takes them
    away, since what was so once is not told as if it were so now."""

    name: str
    look: Callable[[], Awaitable[None]]
    forget: Callable[[], None]


class Watching:
    """Looks at all of them, at most every FRESH_S seconds."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self._watches = watches
        self._lock = asyncio.Lock()
        self._fresh_until = float("-inf")
        self._unseen: set[str] = set()

    async def look(self) -> None:
        """Return once the gauges are at most FRESH_S old, or gone."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if now >= self._fresh_until:
                await asyncio.gather(*map(self._look, self._watches))
                self._fresh_until = now + FRESH_S

    async def _look(self, watch: Watch) -> None:
        try:
            async with asyncio.timeout(_MOST_S):
                await watch.look()
        except (TickmindError, TimeoutError) as exc:
            watch.forget()
            if watch.name not in self._unseen:  # said once, not at every scrape
                log(_logger, logging.WARNING, "not_seen", watch=watch.name, error=str(exc))
            self._unseen.add(watch.name)
        else:
            self._unseen.discard(watch.name)
