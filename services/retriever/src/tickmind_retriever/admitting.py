"""Which requests are begun: not those that waited too long to be answered in time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Admission"]

#: Of its deadline, what a request may have waited without being looked at any closer: less tells
#: of no overload.
_WAITED_SHARE = 0.1
#: How much one request changes what is expected of the next: much where it took longer, so that
#: twenty that are begun in vain are enough to learn from; little where it was quicker.
_RISE, _FALL = 0.2, 0.05


class Admission:
    """Where more is asked than can be answered, requests wait in the queue, which hands out the
    oldest first: those with the least time left. Begun all the same, nearly all would be cut off
    at their deadlines, with the work of each thrown away and hardly any answered. So one that has
    waited is begun only if it has as much time left as answers take just now, or if few are under
    way; else it is refused at once, which lets the younger ones behind it come in time.

    `free`: requests under way that keep the database busy; with fewer, any is begun.
    """

    def __init__(self, *, free: int) -> None:
        self._free = free
        self._under_way = 0
        self._expected_s = 0.0

    @property
    def expected_s(self) -> float:
        """How long answers take just now, rather more than less."""
        return self._expected_s

    def admits(self, *, left_s: float, waited_s: float) -> bool:
        """Whether to begin a request that has so much time left and waited so long before."""
        if self._under_way < self._free or waited_s < (left_s + waited_s) * _WAITED_SHARE:
            return True
        return left_s >= self._expected_s

    @contextmanager
    def begun(self) -> Iterator[None]:
        """For the length of a request that was admitted."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    def answered(self, after_s: float) -> None:
        """The first agent of a request was answered so long after it was begun."""
        self._learn(after_s)

    def cut_off(self, after_s: float) -> None:
        """No agent of a request was answered in that time: it would have taken longer."""
        self._learn(max(after_s, self._expected_s))

    def _learn(self, took_s: float) -> None:
        share = _RISE if took_s > self._expected_s else _FALL
        self._expected_s += share * (took_s - self._expected_s)
