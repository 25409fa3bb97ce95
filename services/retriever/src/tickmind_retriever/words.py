"""What the words of observations find, asked of the database while they are being embedded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tickmind.database import Database
from tickmind.store.lexical import Asked, agent_sizes, find
from tickmind.store.recall import Filters
from tickmind_retriever.sharing import Shared

__all__ = ["Words"]

#: How long an agent's size is taken as known; it enters a score as a logarithm.
_SIZES_S = 60.0
#: Sizes kept before they are counted afresh: 100 bytes each.
_MOST_SIZES = 100_000
#: Questions in one statement: 1 to 5 ms each.
_QUESTIONS_A_STATEMENT = 8


class Words:
    """Memories found by words; questions asked at the same time share statements.

    `parallel`: statements at once.
    """

    def __init__(self, database: Database, *, parallel: int) -> None:
        self._database = database
        self._asking = Shared(
            self._find, parallel=parallel, most=_QUESTIONS_A_STATEMENT, spread=True
        )
        self._sizes: dict[int, int] = {}
        self._sizes_until = 0.0

    @property
    def under_way(self) -> set[asyncio.Task[Sequence[dict[int, float]]]]:
        return self._asking.under_way

    async def find(
        self, questions: Sequence[tuple[int, str]], *, filters: Filters
    ) -> Sequence[dict[int, float]]:
        """For each (agent id, observation): memory ids with how well their words match.

        Raises what the database raises.
        """
        return await self._asking.ask(filters, questions)

    async def _find(
        self, filters: Filters, questions: Sequence[tuple[int, str]]
    ) -> list[dict[int, float]]:
        now = asyncio.get_running_loop().time()
        if now >= self._sizes_until or len(self._sizes) > _MOST_SIZES:
            self._sizes, self._sizes_until = {}, now + _SIZES_S
        async with self._database.reading() as session:
            unknown = [agent for agent, _ in questions if agent not in self._sizes]
            if unknown:
                self._sizes |= await agent_sizes(session, unknown)
            asked = [
                Asked(agent_id=agent, observation=observation, size=self._sizes.get(agent, 0))
                for agent, observation in questions
            ]
            return await find(session, asked, filters=filters)
