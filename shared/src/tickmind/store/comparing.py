"""What two spaces are compared on: memories that both have indexed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

__all__ = ["Candidates", "Sample", "candidates", "samples"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A memory whose text is put to both spaces as what its agent sees."""

    agent_id: int
    content_hash: bytes
    content: str


# In an order that is the same each time and has nothing to do with the texts. Where an agent has
# no more texts than are compared, two spaces agree whatever they think.
_SAMPLES = text("""
    WITH in_both AS (
        SELECT r.agent_id, r.content_hash, min(r.memory_id) AS memory_id,
               count(*) OVER (PARTITION BY r.agent_id) AS texts,
               hashtextextended(encode(r.content_hash, 'hex') || r.agent_id, 0) AS place
        FROM recall_index r
        WHERE r.generation_id = :generation_id
          AND EXISTS (SELECT FROM recall_index other WHERE other.memory_id = r.memory_id
                      AND other.generation_id + 0 = :other_id OFFSET 0)
        GROUP BY r.agent_id, r.content_hash
    ), chosen AS MATERIALIZED (
        SELECT * FROM in_both WHERE texts > :k + 1 ORDER BY place, agent_id LIMIT :most
    )
    SELECT c.agent_id, c.content_hash,
           (SELECT m.content FROM memory m WHERE m.id = c.memory_id) AS content
    FROM chosen c ORDER BY c.place, c.agent_id
""")


async def samples(
    session: AsyncSession, generation_id: int, other_id: int, *, k: int, most: int
) -> list[Sample]:
    """At most `most` memories indexed in both generations, of agents with more than `k` other
    texts in them; the same each time while nothing is added."""
    rows = await session.execute(
        _SAMPLES, {"generation_id": generation_id, "other_id": other_id, "k": k, "most": most}
    )
    return [Sample(**row._asdict()) for row in rows.all()]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidates:
    """An agent's distinct texts, and their vectors in two spaces: (n, d) and (n, d') float32."""

    hashes: list[bytes]
    contents: list[str]
    vectors: NDArray[np.float32]
    others: NDArray[np.float32]


_CANDIDATES = text("""
    SELECT t.content_hash, m.content, a.vector AS vector, b.vector AS other
    FROM (
        SELECT r.content_hash, max(r.memory_id) AS memory_id
        FROM recall_index r
        WHERE r.generation_id = :generation_id AND r.agent_id = :agent_id
          AND EXISTS (SELECT FROM recall_index other WHERE other.memory_id = r.memory_id
                      AND other.generation_id + 0 = :other_id OFFSET 0)
        GROUP BY r.content_hash
        ORDER BY max(r.tick) DESC, r.content_hash
        LIMIT :most
    ) AS t
    CROSS JOIN LATERAL (SELECT content FROM memory WHERE id = t.memory_id OFFSET 0) AS m
    CROSS JOIN LATERAL (
        SELECT vector FROM embedding WHERE content_hash = t.content_hash
          AND space_id = (SELECT space_id FROM index_generation WHERE id = :generation_id)
        OFFSET 0
    ) AS a
    CROSS JOIN LATERAL (
        SELECT vector FROM embedding WHERE content_hash = t.content_hash
          AND space_id = (SELECT space_id FROM index_generation WHERE id = :other_id)
        OFFSET 0
    ) AS b
    ORDER BY t.content_hash
""")


async def candidates(
    session: AsyncSession, generation_id: int, other_id: int, agent_id: int, *, most: int
) -> Candidates:
    """What an agent might remember in both generations: its latest distinct texts, by hash."""
    rows = (
        await session.execute(
            _CANDIDATES,
            {
                "generation_id": generation_id,
                "other_id": other_id,
                "agent_id": agent_id,
                "most": most,
            },
        )
    ).all()
    return Candidates(
        hashes=[row.content_hash for row in rows],
        contents=[row.content for row in rows],
        vectors=np.array([row.vector.to_numpy() for row in rows], dtype=np.float32),
        others=np.array([row.other.to_numpy() for row in rows], dtype=np.float32),
    )
