"""Answers to observations that have no vector, where the request asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tickmind.database import Database
from tickmind.memory import Scored
from tickmind.store.recall import Question, rank
from tickmind_retriever.chosen import chosen
from tickmind_retriever.ranking import Terms
from tickmind_retriever.sharing import Shared
from tickmind_retriever.words import Words

__all__ = ["Fallback", "Unembedded"]

#: Agents ranked by one statement.
_AGENTS_A_STATEMENT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Unembedded:
    """One agent, and what it sees, in words alone."""

    agent_id: int
    observation: str


class Fallback:
    """Ranks by what can be known without a vector: words, recency and importance, of the memories
    that words find and of the newest."""

    def __init__(self, database: Database, words: Words, *, parallel: int) -> None:
        self._database = database
        self._words = words
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
        words = await self._words.find(
            [(question.agent_id, question.observation) for question in questions],
            filters=terms.filters,
        )
        async with self._database.reading() as session:
            return await rank(
                session,
                [
                    Question(agent_id=question.agent_id, vector=None, words=found)
                    for question, found in zip(questions, words, strict=True)
                ],
                generation=None,
                tick=terms.tick,
                k=terms.k,
                filters=terms.filters,
                weights=terms.weights_without_vector,
                half_life_ticks=terms.half_life_ticks,
            )
