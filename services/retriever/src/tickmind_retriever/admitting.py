"""Which requests are begun where more is asked than can be answered."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Admission"]

#: Of its deadline, what a request may have waited without being looked at any closer: less tells
#: of no overload.
_WAITED_SHARE = 0.1
#: How much one answer changes what is expected of the next.
_LEARNT = 0.1
#: How many may be under way: less by so much with each request that was begun in vain, more by one
#: whenever as many as are allowed were answered (additive increase, multiplicative decrease; Chiu
#: and Jain 1989).
_DECREASE = 0.9


class Admission:
    """Refuses at once what would be cut off at its deadline, so that others are answered.

    Requests wait in the queue, which hands out the oldest first: those with the least time left.
    Begun all the same, each would be cut off with its work thrown away. So one that has waited is
    begun only if it has as much time left as answers take; and no more are under way than end in
    time.

    `free`: requests under way that keep the database busy: so many may be. While none is, any is
    begun, to learn from.
    """

    def __init__(self, *, free: int) -> None:
        self._free = free
        self._under_way = 0
        self._limit = math.inf
        self._expected_s = 0.0

    def admits(self, *, left_s: float, waited_s: float) -> bool:
        """Whether to begin a request that has so much time left and waited so long before."""
        if not self._under_way:
            return True
        if self._under_way >= self._limit:
            return False
        waited = waited_s >= (left_s + waited_s) * _WAITED_SHARE
        return not waited or left_s >= self._expected_s

    @contextmanager
    def begun(self) -> Iterator[None]:
        """For the length of a request that was admitted."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    def answered(self, *, after_s: float) -> None:
        """The first agent of a request was answered so long after it was begun."""
        self._expected_s += _LEARNT * (after_s - self._expected_s)
        self._limit += 1 / self._limit

    def cut_off(self, *, after_s: float) -> None:
        """No agent of a request was answered in that time. What had less than answers take tells of
        its own deadline, not of us."""
        if after_s >= self._expected_s:
            most = min(self._limit, self._under_way + 1)
            self._limit = max(self._free, most * _DECREASE)
