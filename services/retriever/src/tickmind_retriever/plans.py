"""How an agent is ranked: all of its memories exactly, or by their signatures first."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tickmind.database import Database
from tickmind.messages import Explained
from tickmind.store.recall_signature import CANDIDATES, RAW_FACTOR, Prefilter, rows_of
from tickmind.store.signing import Signers
from tickmind.store.spaces import Generation

__all__ = ["Plans"]

#: Agents whose size is remembered: some 100 bytes each.
_MOST_AGENTS = 100_000
#: For so long an agent's size is taken as known. A small one may grow over the bound meanwhile,
#: which costs it time, not memories; a large one hardly ever shrinks.
_SMALL_S, _LARGE_S = 60.0, 600.0
#: Candidates for each memory wanted, where that is more than by default.
_CANDIDATES_A_RESULT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """Rows, counted no further than the bound that matters; `until`: by the loop's clock."""

    rows: int
    until: float


class Plans:
    """Which agents are ranked by signatures, in which generation.

    `signatures_from`: rows of an agent from which it is; 0: none is.
    """

    def __init__(self, database: Database, *, signatures_from: int) -> None:
        self._database = database
        self._from = signatures_from
        self._sizes: OrderedDict[tuple[int, int], _Size] = OrderedDict()
        self._signers = Signers()
        self._reading = asyncio.Lock()

    async def large(self, generation: Generation, agent_ids: Collection[int]) -> set[int]:
        """Those of these agents that are ranked by signatures. Raises DatabaseUnavailable."""
        if not self._from or not generation.signed:
            return set()
        now = asyncio.get_running_loop().time()
        known = {id_: self._sizes.get((generation.id, id_)) for id_ in set(agent_ids)}
        asked = sorted(id_ for id_, size in known.items() if size is None or size.until < now)
        rows = {id_: size.rows for id_, size in known.items() if size is not None}
        if asked:
            async with self._database.reading() as session:
                found = await rows_of(session, generation.id, asked, most=self._from)
            for id_, count in found.items():
                until = now + (_LARGE_S if count >= self._from else _SMALL_S)
                self._sizes[generation.id, id_] = _Size(rows=count, until=until)
                self._sizes.move_to_end((generation.id, id_))
            while len(self._sizes) > _MOST_AGENTS:
                self._sizes.popitem(last=False)
            rows |= found
        return {id_ for id_, count in rows.items() if count >= self._from}

    async def prefilter(self, generation: Generation, k: int) -> Prefilter | None:
        """What ranks by a generation's signatures; None: it has none, or is gone. Raises
        DatabaseUnavailable."""
        if not generation.signed:
            return None
        signer = self._signers.known(generation.id)
        if signer is None:
            # Up to 5 MB: read once, however many ask at a start.
            async with self._reading, self._database.reading() as session:
                signer = await self._signers.of(session, generation.id)
        if signer is None:
            return None
        return Prefilter(signer=signer, most=_candidates(k))

    async def explained(
        self,
        generation: Generation,
        agent_ids: Sequence[int],
        *,
        k: int,
        by_relevance: bool,
        ms: Sequence[dict[str, float]],
    ) -> list[Explained]:
        """How each of these agents was ranked just now; `ms`: what each step took. Raises
        DatabaseUnavailable."""
        large = await self.large(generation, agent_ids)
        most = _candidates(k) * (RAW_FACTOR if by_relevance else 1)
        async with self._database.reading() as session:
            rows = await rows_of(session, generation.id, sorted(set(agent_ids)), most=None)
        return [
            Explained(
                plan="signatures" if id_ in large else "exact",
                rows=rows[id_],
                scored=min(rows[id_], most) if id_ in large else rows[id_],
                ms=took,
            )
            for id_, took in zip(agent_ids, ms, strict=True)
        ]


def _candidates(k: int) -> int:
    return max(CANDIDATES, k * _CANDIDATES_A_RESULT)
