"""Answers to observations that have no vector, where the request asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tickmind.database import Database
from tickmind.memory import Scored
from tickmind.store.unembedded import rank_by_recency_and_importance
from tickmind_retriever.chosen import chosen
from tickmind_retriever.ranking import Terms
from tickmind_retriever.sharing import Shared

__all__ = ["Fallback", "Unembedded"]

#: Agents ranked by one statement.
_AGENTS_A_STATEMENT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Unembedded:
    """One agent, and what it sees, in words alone."""

    agent_id: int
    observation: str


class Fallback:
    """Ranks by what can be known without a vector: recency and importance.

    The observation's words are at hand here, and count once there is an index of words.
    """

    def __init__(self, database: Database, *, parallel: int) -> None:
        self._database = database
        self._rankings = Shared(
            self._rank_together, parallel=parallel, most=_AGENTS_A_STATEMENT, spread=True
        )

    @property
    def under_way(self) -> set[asyncio.Task[Sequence[list[Scored]]]]:
        """Statements that have not ended."""
        return self._rankings.under_way

    async def rank(
        self, terms: Terms, questions: Sequence[Unembedded], *, with_core: Collection[int]
    ) -> list[list[Scored]]:
        """What comes back for each question. Raises DatabaseUnavailable and SQLAlchemyError."""
        return await chosen(self._rankings.ask, terms, questions, with_core=with_core)

    async def _rank_together(
        self, terms: Terms, questions: Sequence[Unembedded]
    ) -> list[list[Scored]]:
        async with self._database.reading() as session:
            return await rank_by_recency_and_importance(
                session,
                [question.agent_id for question in questions],
                tick=terms.tick,
                k=terms.k,
                filters=terms.filters,
                weights=terms.weights_without_vector,
                half_life_ticks=terms.half_life_ticks,
            )
