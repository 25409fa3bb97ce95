"""How long something took of the time that this process was given."""

from __future__ import annotations

import asyncio
import time
from weakref import ref

__all__ = ["SLACK_S", "Clock"]

#: How much longer than its bound something may take, by `Clock`: tests say whether a bound is kept
#: at all, where otherwise nothing would end for half a minute; benchmarks say how well.
SLACK_S = 5.0

#: Between two beats; one that comes later than twice that shows that others had the machine.
_BEAT_S = 0.01


class Clock:
    """Begins when it is made.

    A deadline of hundredths of a second cannot be watched by a clock on the wall: others on the
    machine stop this process for longer than that now and then, and what it promises is not about
    them. So a timer beats beside what is measured. A beat that is late counts as one beat and
    what this process computed meanwhile; a wait of its own is counted whole, since the timer beats
    on while it lasts.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun = self._last = self._loop.time()
        self._computed = time.thread_time()
        self._given_s = 0.0
        _beat(ref(self))

    @property
    def s(self) -> float:
        """Seconds that this process had: for what must not take longer."""
        self._count()
        return self._given_s

    @property
    def wall_s(self) -> float:
        """Seconds that passed: for what must take so long."""
        return self._loop.time() - self._begun

    def _count(self) -> None:
        now, computed = self._loop.time(), time.thread_time()
        passed_s = now - self._last
        if passed_s > 2 * _BEAT_S:
            passed_s = min(passed_s, _BEAT_S + computed - self._computed)
        self._given_s += passed_s
        self._last, self._computed = now, computed


def _beat(clock: ref[Clock]) -> None:
    """Beats on as long as somebody has the clock."""
    found = clock()
    if found is not None:
        found._count()
        found._loop.call_later(_BEAT_S, _beat, clock)
