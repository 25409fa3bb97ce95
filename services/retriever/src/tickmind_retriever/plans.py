"""How an agent is ranked: all of its memories exactly, or the best by their signatures first, or by
an HNSW index where it has one."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tickmind.database import Database
from tickmind.messages import Explained, PlanName
from tickmind.store.hnsw import MOST_NEAREST, NEAREST, Hnsw, kept
from tickmind.store.recall_signature import CANDIDATES, RAW_FACTOR, Prefilter, rows_of
from tickmind.store.signing import Signers
from tickmind.store.spaces import Generation
from tickmind_retriever.ranking import Terms

__all__ = ["EXACT", "SIGNATURES", "Plan", "Plans"]

#: Agents whose size is remembered: some 270 bytes each.
_MOST_AGENTS = 100_000
#: For so long an agent's size is taken as known. A small one may grow over the bound meanwhile,
#: which costs it time, not memories; a large one hardly ever shrinks.
_SMALL_S, _LARGE_S = 60.0, 600.0
#: How often it is looked up which HNSW indexes there are. One that is dropped meanwhile costs those
#: who count on it time, not memories: PostgreSQL sorts then.
_HNSW_S = 10.0
#: Candidates for each memory wanted, where that is more than by default.
_CANDIDATES_A_RESULT = 10
#: An HNSW index is not asked for more: a quarter of what it can give.
_MOST_OF_HNSW = MOST_NEAREST // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """Rows, counted no further than the bound that matters; `until`: by the loop's clock."""

    rows: int
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How an agent is ranked; `hnsw`: the index of its own that is asked."""

    name: PlanName
    hnsw: Hnsw | None = None


EXACT, SIGNATURES = Plan(name="exact"), Plan(name="signatures")


class Plans:
    """Which agents are ranked by which plan, in which generation.

    `signatures_from`: rows of an agent from which it is ranked by signatures; 0: none is.
    """

    def __init__(self, database: Database, *, signatures_from: int) -> None:
        self._database = database
        self._from = signatures_from
        self._sizes: OrderedDict[tuple[int, int], _Size] = OrderedDict()
        self._signers = Signers()
        self._reading = asyncio.Lock()
        self._hnsw: Mapping[tuple[int, int], Hnsw] = {}
        self._hnsw_at = float("-inf")

    async def of(
        self, generation: Generation, agent_ids: Collection[int], terms: Terms
    ) -> dict[int, Plan]:
        """The plan for each of these agents. Raises DatabaseUnavailable."""
        large = await self._large(generation, agent_ids)
        plans = {id_: SIGNATURES if id_ in large else EXACT for id_ in agent_ids}
        if large:
            indexes = await self._indexes()
            for id_ in large:
                hnsw = indexes.get((generation.id, id_))
                if hnsw is not None and _answers(hnsw, terms):
                    plans[id_] = Plan(name="hnsw", hnsw=hnsw)
        return plans

    async def _indexes(self) -> Mapping[tuple[int, int], Hnsw]:
        """HNSW indexes by generation and agent; of several, the newest."""
        now = asyncio.get_running_loop().time()
        if self._hnsw_at + _HNSW_S < now:
            self._hnsw_at = now  # the others go by the old ones meanwhile
            async with self._database.reading() as session:
                found = [index.hnsw for index in await kept(session) if index.hnsw is not None]
            found.sort(key=lambda hnsw: hnsw.before)
            self._hnsw = {(hnsw.generation_id, hnsw.agent_id): hnsw for hnsw in found}
        return self._hnsw

    async def _large(self, generation: Generation, agent_ids: Collection[int]) -> set[int]:
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

    async def prefilter(
        self, generation: Generation, k: int, plan: Plan = SIGNATURES
    ) -> Prefilter | None:
        """What ranks by this plan; None: exactly, as where the generation has no signatures, or is
        gone. Raises DatabaseUnavailable."""
        if plan.name == "exact" or not generation.signed:
            return None
        signer = self._signers.known(generation.id)
        if signer is None:
            # Up to 5 MB: read once, however many ask at a start.
            async with self._reading, self._database.reading() as session:
                signer = await self._signers.of(session, generation.id)
        if signer is None:
            return None
        return Prefilter(signer=signer, most=_candidates(k), hnsw=plan.hnsw, nearest=_nearest(k))

    async def explained(
        self,
        generation: Generation,
        used: Sequence[tuple[int, Plan, int]],
        *,
        by_relevance: bool,
        ms: Sequence[dict[str, float]],
    ) -> list[Explained]:
        """How these were ranked: an agent's id, its plan, and how many memories were asked for;
        `ms`: what each step took. Raises DatabaseUnavailable."""
        agent_ids = sorted({agent_id for agent_id, _, _ in used})
        factor = RAW_FACTOR if by_relevance else 1
        async with self._database.reading() as session:
            rows = await rows_of(session, generation.id, agent_ids, most=None)
        return [
            Explained(
                plan=plan.name,
                rows=rows[agent_id],
                scored=rows[agent_id]
                if plan.name == "exact"
                else min(rows[agent_id], _candidates(k) * factor),
                ms=took,
            )
            for (agent_id, plan, k), took in zip(used, ms, strict=True)
        ]


def _candidates(k: int) -> int:
    return max(CANDIDATES, k * _CANDIDATES_A_RESULT)


def _nearest(k: int) -> int:
    return min(MOST_NEAREST, max(NEAREST, k * _CANDIDATES_A_RESULT))


def _answers(hnsw: Hnsw, terms: Terms) -> bool:
    """Whether the index knows the best in these terms: it filters nothing, and its bits can weigh
    so much only."""
    filters = terms.filters
    unfiltered = (
        filters.kinds is None
        and filters.min_importance is None
        and filters.from_tick is None
        and not filters.core_only
        and (filters.as_of_tick is None or filters.as_of_tick >= hnsw.before - 1)
    )
    if terms.weights is None or terms.k > _MOST_OF_HNSW or not unfiltered:
        return False
    return hnsw.weighs(terms.weights, tick=terms.tick, half_life_ticks=terms.half_life_ticks)
