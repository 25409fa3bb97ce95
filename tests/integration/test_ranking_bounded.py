"""A large agent ranked by signatures: what is left out early is never among the best."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.remembering import known, remember, signed
from tickmind.database import Database
from tickmind.memory import Scored, Weights
from tickmind.store.recall import Filters, Question, rank
from tickmind.store.recall_signature import Prefilter
from tickmind.store.spaces import Space
from tickmind.store.whom import whom

_SPACE = Space(model="test", dimensions=64)
#: More than the newest ones that are looked at first.
_MEMORIES = 900
_LAST_TICK = 2000


@pytest.mark.parametrize(
    ("weights", "k", "filters"),
    [
        (Weights(), 5, Filters()),
        (Weights(), 20, Filters(kinds=("reflection",))),
        (Weights(), 1, Filters(as_of_tick=1500)),
        # What is old and important, though it means little, is the best.
        (Weights(importance=3), 5, Filters()),
        (Weights(relevance=0), 5, Filters()),
        (Weights(relevance=0.01, recency=0), 20, Filters()),
        (None, 5, Filters()),
        (None, 20, Filters(min_importance=2)),
        # More than there are among the newest.
        (Weights(), 600, Filters()),
    ],
)
async def test_best_of_a_large_agent_are_those_of_the_exact_ranking(
    database: Database, weights: Weights | None, k: int, filters: Filters
) -> None:
    """The newest lie near each other and matter little; what is meant, or matters, is old."""
    random = np.random.default_rng(17)
    mean = np.zeros(64, dtype=np.float32)
    mean[0] = 0.8
    parts = random.normal(size=(_MEMORIES, 64)) / 8
    vectors = _unit(mean + 0.6 * parts)
    importances = np.where(np.arange(_MEMORIES) < 100, random.integers(5, 11, size=_MEMORIES), 1)
    importances[300::2] = 2
    kinds = [("observation", "conversation", "reflection")[i % 3] for i in range(_MEMORIES)]
    texts = [f"text {i}" for i in range(_MEMORIES)]
    await known(database, {}, _SPACE)
    await remember(
        database,
        texts,
        tick=[i * _LAST_TICK // _MEMORIES for i in range(_MEMORIES)],
        importance=list(map(int, importances)),
        kind=kinds,
    )
    by_text = dict(zip(texts, vectors, strict=True))
    generation = replace(await known(database, by_text, _SPACE), mean=mean)
    prefilter = await signed(database, generation, most=max(200, 10 * k))
    async with database.reading() as session:
        agent_id = (await whom(session, "town", ["alice"], space_id=1)).agents["alice"]

        async def best(query: NDArray[np.float32], by: Prefilter | None) -> list[Scored]:
            (found,) = await rank(
                session,
                [Question(agent_id=agent_id, vector=query)],
                generation=generation,
                tick=_LAST_TICK,
                k=k,
                filters=filters,
                weights=weights,
                half_life_ticks=500.0,
                prefilter=by,
            )
            return found

        for meant in (3, 150, 301, 890):
            query = _unit(mean + 0.4 * parts[meant] + 0.05 * random.normal(size=64))
            found, exact = await best(query, prefilter), await best(query, None)
            assert [memory.id for memory in found] == [memory.id for memory in exact]


def _unit(rows: NDArray[np.floating]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    unit: NDArray[np.float32] = (rows / lengths).astype(np.float32)
    return unit
