"""Two spaces compared on what comes to mind."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tickmind.agreement import agree
from tickmind.budget import Budget
from tickmind.clean import is_blank
from tickmind.cli.output import progress
from tickmind.cli.servers import CommandFailed, open_database
from tickmind.cli.spaces import find, the_active
from tickmind.database import Database
from tickmind.embedding import Embedder, provider_of
from tickmind.metered import MeteredProvider
from tickmind.serving import settings_of
from tickmind.settings import DatabaseSettings, EmbeddingSettings, load
from tickmind.store import comparing as store
from tickmind.store.changing import SpaceState
from tickmind.store.comparing import Sample
from tickmind.store.spaces import Generation, filled_generations

__all__ = ["Compared", "Comparison", "compared"]

#: An agent's latest texts that take part: 2 x 2,000 vectors of 1,536 are 25 MB.
_TEXTS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One query: how many of the best are shared, and what is best in one space alone."""

    content: str
    shared: int
    only_active: list[str]
    only_other: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All queries. `overlap`: the mean share of the best `k` that the other space has, too."""

    active: SpaceState
    other: SpaceState
    k: int
    queries: list[Compared]

    @property
    def overlap(self) -> float:
        return sum(query.shared for query in self.queries) / (self.k * len(self.queries))

    def by_shared(self) -> list[tuple[int, int]]:
        """How many queries share how many, the most first."""
        counts = Counter(query.shared for query in self.queries)
        return sorted(counts.items(), reverse=True)

    def least(self, most: int) -> list[Compared]:
        """The queries that agree least."""
        apart = [query for query in self.queries if query.shared < self.k]
        return sorted(apart, key=lambda query: query.shared)[:most]

    def as_json(self, *, least: int) -> dict[str, Any]:
        return {
            "active": self.active.id,
            "compared": self.other.id,
            "pending": self.other.pending,
            "k": self.k,
            "queries": len(self.queries),
            "overlap": round(self.overlap, 4),
            "by_shared": {str(shared): count for shared, count in self.by_shared()},
            "least": [asdict(query) for query in self.least(least)],
        }


async def compared(
    database: DatabaseSettings, named: str | None, *, queries: int, k: int
) -> Comparison:
    """Raises CommandFailed where there is nothing to compare, and as a provider does."""
    async with open_database(database) as pool:
        other, active = await find(pool, named), await the_active(pool)
        if active is None or active.id == other.id:
            raise CommandFailed(f"space {other.id} is the one recalls use: name another")
        async with pool.reading() as session:
            generations = {g.space_id: g for g in await filled_generations(session)}
            if other.id not in generations:
                raise CommandFailed(f"space {other.id} is {other.status}, and not being filled")
            one, two = generations[active.id], generations[other.id]
            found = await store.samples(session, one.id, two.id, k=k, most=queries)
        found = [sample for sample in found if not is_blank(sample.content)]
        if not found:
            raise CommandFailed(
                f"no agent has more than {k + 1} texts in both spaces: `tickmind space backfill`"
            )
        texts = [sample.content for sample in found]
        with progress("Comparing", total=2 * len(found)) as bar:
            asked = await _embedded(pool, one, texts)
            bar.to(len(found))
            asked_two = await _embedded(pool, two, texts)
        results = [
            await _one(pool, one, two, sample, query, query_two, k=k)
            for sample, query, query_two in zip(found, asked, asked_two, strict=True)
        ]
        return Comparison(active=active, other=other, k=k, queries=results)


async def _embedded(
    pool: Database, generation: Generation, texts: Sequence[str]
) -> NDArray[np.float32]:
    """Texts as observations in a generation's space, (n, d)."""
    settings = settings_of(generation.space, generation.served, load(EmbeddingSettings))
    rows = []
    async with _embedder(pool, settings) as embedder:
        left = list(texts)
        while left:
            count = embedder.fitting(left)
            rows.append(await embedder.embed(left[:count], "query"))
            left = left[count:]
    return np.concatenate(rows)


@asynccontextmanager
async def _embedder(pool: Database, settings: EmbeddingSettings) -> AsyncIterator[Embedder]:
    """Within the fleet's budget, like any other."""
    provider = provider_of(settings)
    if settings.embedding_provider != "hash":
        budget = Budget(pool, settings.budget_name(), settings.limits())
        provider = MeteredProvider(provider, budget)
    async with Embedder(settings, provider) as embedder:
        yield embedder


async def _one(
    pool: Database,
    one: Generation,
    two: Generation,
    sample: Sample,
    query: NDArray[np.float32],
    query_two: NDArray[np.float32],
    *,
    k: int,
) -> Compared:
    async with pool.reading() as session:
        among = await store.candidates(session, one.id, two.id, sample.agent_id, most=_TEXTS)
    itself = [place for place, hash_ in enumerate(among.hashes) if hash_ == sample.content_hash]
    found = agree(
        query, among.vectors, one.mean, query_two, among.others, two.mean, k=k, without=itself
    )
    both = {*found.best} & {*found.other_best}
    return Compared(
        content=sample.content,
        shared=len(both),
        only_active=[among.contents[place] for place in found.best if place not in both],
        only_other=[among.contents[place] for place in found.other_best if place not in both],
    )
