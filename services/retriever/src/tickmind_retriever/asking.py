"""A request under way: how long there is for what, and what is said of what went wrong."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from tickmind.errors import TickmindError
from tickmind_retriever.answers import Answers
from tickmind_retriever.ranking import Terms

__all__ = ["SHED", "Asking", "detail_of", "ms_since", "reason_of"]

#: What is said of what was not begun.
SHED = "more is asked than can be answered: there was no time left to answer this, too"


@dataclass(slots=True, kw_only=True)
class Asking:
    """A request under way, from `begun` to `until`. `spare_s`: kept of that time where more is
    asked than can be answered. `without_by`: when what can be done without is done without.
    `waited_s`: for a tick or a vector, which is no overload."""

    answers: Answers
    terms: Terms
    begun: float
    until: float
    spare_s: float
    without_by: float
    waited_s: float = 0.0

    def answer_by(self) -> float:
        """What has to wait for a place is asked for only if it would be answered by then. Of what
        others took of the time nothing is kept, or little would be left of a vector that is late.
        """
        whole_s = self.until - self.begun
        left = 1 - self.waited_s / whole_s if whole_s > 0 else 0.0
        return self.until - self.spare_s * max(0.0, left)


def ms_since(begun: float) -> float:
    """Milliseconds since a moment of the loop's clock."""
    return round((asyncio.get_running_loop().time() - begun) * 1000, 2)


def reason_of(exc: TickmindError) -> str:
    """The reply's word for what failed."""
    return "database" if exc.reason == "database" else "embedding"


def detail_of(exc: TickmindError | SQLAlchemyError) -> str:
    """What happened, without the statement and its parameters."""
    if isinstance(exc, TickmindError):
        return str(exc)
    return f"the database refused the statement ({type(exc).__name__})"
