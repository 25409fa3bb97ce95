"""Answers to observations that have no vector, where the request asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from tickmind.database import Database
from tickmind.memory import Scored
from tickmind.store.recall import Question, rank
from tickmind_retriever.chosen import chosen
from tickmind_retriever.ranking import Terms
from tickmind_retriever.sharing import Shared

__all__ = ["Fallback"]

#: Agents ranked by one statement.
_AGENTS_A_STATEMENT = 16


class Fallback:
    """Ranks by what can be known without a vector: words, recency and importance, of the memories
    that words found and of the newest."""

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
        self, terms: Terms, questions: Sequence[Question], *, with_core: Collection[int]
    ) -> list[list[Scored]]:
        """What comes back for each question. Raises DatabaseUnavailable and SQLAlchemyError."""
        return await chosen(self._rankings.ask, terms, questions, with_core=with_core)

    async def _rank_together(
        self, terms: Terms, questions: Sequence[Question]
    ) -> list[list[Scored]]:
        async with self._database.reading() as session:
            return await rank(
                session,
                questions,
                generation=None,
                tick=terms.tick,
                k=terms.k,
                filters=terms.filters,
                weights=terms.weights_without_vector,
                half_life_ticks=terms.half_life_ticks,
            )
