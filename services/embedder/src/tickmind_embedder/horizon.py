"""From where a sweep of the pending rows may begin without missing one that was committed late."""

from __future__ import annotations

from collections import deque

from tickmind.store.embedding import Swept

__all__ = ["Horizon"]

#: Ends of sweeps kept while a long transaction holds them all up; the latest replace each other.
_MOST_MARKS = 16


class Horizon:
    """The memory id below which everything has been seen.

    Ids are given out before their transactions commit, so a row may appear below ids that were
    seen already. It belongs to a transaction that had begun by then: once those are over, whoever
    sweeps past their ids has seen them all.
    """

    def __init__(self) -> None:
        self.start = 0
        self._marks: deque[Swept] = deque()

    def swept(self, first: Swept, last: Swept) -> None:
        """A sweep from `start` or before went through to the end; its first and last chunk."""
        self._marks.append(last)
        while self._marks and self._marks[0].begun_until <= first.running_from:
            self.start = max(self.start, self._marks.popleft().highest)
        if len(self._marks) > _MOST_MARKS:
            del self._marks[-2]
