"""Which requests are begun where more is asked than can be answered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tickmind_retriever.expecting import Expected

__all__ = ["Admission"]

#: Of its deadline, what a request may have waited without being looked at any closer: less tells
#: of no overload.
_WAITED_SHARE = 0.1


class Admission:
    """Refuses at once what would be cut off at its deadline, so that others are answered.

    Requests wait in the queue, which hands out the oldest first: those with the least time left.
    Begun all the same, each would be cut off with its work thrown away. So one that has waited is
    begun only if it has as much time left as answers take. While none is under way, any is begun,
    to learn from.
    """

    def __init__(self) -> None:
        self._under_way = 0
        self._expected = Expected()

    def admits(self, *, left_s: float, waited_s: float) -> bool:
        """Whether to begin a request that has so much time left and waited so long before."""
        if not self._under_way:
            return True
        waited = waited_s >= (left_s + waited_s) * _WAITED_SHARE
        return not waited or left_s >= self._expected.seconds

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
        self._expected.took(after_s)
