"""What the words of observations find, asked of the database while they are being embedded."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.database import Database
from tickmind.store.lexical import Asked, agent_sizes, find
from tickmind.store.recall import Filters
from tickmind_retriever.sharing import Shared

__all__ = ["Words"]

#: So many memories are taken as a second's at most: an agent of n is counted anew after n of these
#: seconds, when it may have doubled. A size enters a score as a logarithm, and decides which words
#: are too frequent to count.
_GROWTH_A_S = 100
#: Within these bounds: one that has only begun is not counted for each recall, and a large one,
#: which takes 20 ms, is counted at all.
_KEPT_LEAST_S, _KEPT_MOST_S = 1.0, 60.0
#: Agents whose size is remembered: some 200 bytes each.
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
        #: By agent: its size, and until when that is taken as known.
        self._sizes: OrderedDict[int, tuple[int, float]] = OrderedDict()

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
        async with self._database.reading() as session:
            sizes = await self._of(session, {agent for agent, _ in questions})
            asked = [
                Asked(agent_id=agent, observation=observation, size=sizes[agent])
                for agent, observation in questions
            ]
            return await find(session, asked, filters=filters)

    async def _of(self, session: AsyncSession, agents: Collection[int]) -> dict[int, int]:
        """How many memories these agents have, more or less."""
        now = asyncio.get_running_loop().time()
        kept = {agent: self._sizes[agent] for agent in agents if agent in self._sizes}
        sizes = {agent: size for agent, (size, until) in kept.items() if now < until}
        unknown = [agent for agent in agents if agent not in sizes]
        if unknown:
            counted = await agent_sizes(session, unknown)
            for agent, size in counted.items():
                kept_s = min(_KEPT_MOST_S, max(_KEPT_LEAST_S, size / _GROWTH_A_S))
                self._sizes[agent] = size, now + kept_s
                self._sizes.move_to_end(agent)
            while len(self._sizes) > _MOST_SIZES:
                self._sizes.popitem(last=False)
            sizes |= counted
        return sizes
