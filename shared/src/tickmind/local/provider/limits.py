"""Rate limits as providers enforce them: pure arithmetic over an injected clock."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

__all__ = ["DAY_S", "MINUTE_S", "Admission", "Algorithm", "Limit", "RateLimiter", "sub_window"]

MINUTE_S = 60.0
DAY_S = 86_400.0

Unit = Literal["call", "text", "token"]
Algorithm = Literal["sliding", "fixed", "bucket"]

# A request this much early is on time: far below any network delay, far above the rounding of
# clock readings (about 1e-9 s for a machine that is up for months).
_TOLERANCE_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """At most `amount` calls, texts or tokens in `window_s` seconds.

    `sliding`: never more than `amount` in any span of `window_s` (span open at its start).
    `fixed`: the count starts anew at every multiple of `window_s` of the clock.
    `bucket`: holds `burst` (`amount` where None), refilled evenly by `amount` per `window_s`.
    `count_rejected`: a refused request uses the limit up too, as some providers do.
    Raises ValueError when a number is not positive.
    """

    unit: Unit
    amount: int
    window_s: float = MINUTE_S
    algorithm: Algorithm = "sliding"
    burst: int | None = None
    count_rejected: bool = False

    def __post_init__(self) -> None:
        if self.amount < 1 or not 0 < self.window_s < math.inf:
            raise ValueError("a limit needs an amount of at least 1 and a window above 0 seconds")
        if self.burst is not None and (self.burst < 1 or self.algorithm != "bucket"):
            raise ValueError("burst must be at least 1 and belongs to the bucket algorithm")


def sub_window(limit: Limit, window_s: float) -> Limit:
    """The same rate over a shorter window, rounded up: 100 a minute is 17 in 10 s."""
    return replace(
        limit, window_s=window_s, amount=math.ceil(limit.amount * window_s / limit.window_s)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Whether a request may pass.

    `wait_s`: seconds until the same request would pass if nothing else came; 0 when admitted,
    infinite when it is larger than a limit ever allows. `limit`: the one with the longest wait.
    """

    admitted: bool
    wait_s: float = 0.0
    limit: Limit | None = None


class RateLimiter:
    """Any combination of limits; a request passes only when it fits all, and then counts in all.

    `clock`: seconds, never going back. `time_scale`: seconds of that clock per second of the
    limits, so 0.1 runs a minute in 6 s; waits are told in seconds of the clock.
    """

    def __init__(
        self,
        limits: Iterable[Limit] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
        time_scale: float = 1.0,
    ) -> None:
        self.limits = tuple(limits)
        self._clock = clock
        self._time_scale = time_scale
        now = clock() / time_scale
        self._counters = [_counter(limit, now) for limit in self.limits]

    def admit(self, *, texts: int, tokens: int) -> Admission:
        """Count one call of so many texts and tokens, or say how long it must wait."""
        if not self.limits:
            return Admission(admitted=True)
        now = self._clock() / self._time_scale
        cost = {"call": 1, "text": texts, "token": tokens}
        counted = [
            (limit, counter, cost[limit.unit])
            for limit, counter in zip(self.limits, self._counters, strict=True)
        ]
        admitted = all(counter.wait_s(now, amount) == 0 for _, counter, amount in counted)
        for limit, counter, amount in counted:
            if admitted or limit.count_rejected:
                counter.add(now, amount)
        if admitted:
            return Admission(admitted=True)
        waits = [(counter.wait_s(now, amount), limit) for limit, counter, amount in counted]
        wait_s, slowest = max(waits, key=lambda pair: pair[0])
        return Admission(admitted=False, wait_s=wait_s * self._time_scale, limit=slowest)


class _Counter(Protocol):
    """What one limit has counted so far; times in seconds of the limit."""

    def wait_s(self, now: float, cost: int) -> float:
        """Seconds until `cost` fits; 0 when it fits now, infinite when it never will."""

    def add(self, now: float, cost: int) -> None:
        """Count it, whether it fits or not."""


def _counter(limit: Limit, now: float) -> _Counter:
    match limit.algorithm:
        case "sliding":
            return _SlidingWindow(limit)
        case "fixed":
            return _FixedWindow(limit)
        case "bucket":
            return _TokenBucket(limit, now)


class _SlidingWindow:
    """An exact log of what was admitted in the last window."""

    def __init__(self, limit: Limit) -> None:
        self._amount = limit.amount
        self._window_s = limit.window_s
        self._log: deque[tuple[float, int]] = deque()
        self._total = 0

    def wait_s(self, now: float, cost: int) -> float:
        if cost > self._amount:
            return math.inf
        while self._log and now - self._log[0][0] >= self._window_s - _TOLERANCE_S:
            self._total -= self._log.popleft()[1]
        over = self._total + cost - self._amount
        if over <= 0:
            return 0.0
        for at, counted in self._log:
            over -= counted
            if over <= 0:
                return at + self._window_s - now
        raise AssertionError("an empty log holds nothing back")

    def add(self, now: float, cost: int) -> None:
        self._log.append((now, cost))
        self._total += cost


class _FixedWindow:
    """A count that starts anew at every multiple of the window."""

    def __init__(self, limit: Limit) -> None:
        self._amount = limit.amount
        self._window_s = limit.window_s
        self._number = -1
        self._total = 0

    def wait_s(self, now: float, cost: int) -> float:
        if cost > self._amount:
            return math.inf
        self._enter(now)
        if self._total + cost <= self._amount:
            return 0.0
        return (self._number + 1) * self._window_s - now

    def add(self, now: float, cost: int) -> None:
        self._enter(now)
        self._total += cost

    def _enter(self, now: float) -> None:
        number = math.floor((now + _TOLERANCE_S) / self._window_s)
        if number != self._number:
            self._number, self._total = number, 0


class _TokenBucket:
    """A level that refills evenly and is drawn from; refused requests may push it below 0."""

    def __init__(self, limit: Limit, now: float) -> None:
        self._burst = limit.burst or limit.amount
        self._per_s = limit.amount / limit.window_s
        self._level = float(self._burst)
        self._at = now

    def wait_s(self, now: float, cost: int) -> float:
        if cost > self._burst:
            return math.inf
        self._refill(now)
        wait_s = (cost - self._level) / self._per_s
        return wait_s if wait_s > _TOLERANCE_S else 0.0

    def add(self, now: float, cost: int) -> None:
        self._refill(now)
        self._level -= cost

    def _refill(self, now: float) -> None:
        self._level = min(self._burst, self._level + (now - self._at) * self._per_s)
        self._at = now
