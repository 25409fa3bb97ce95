"""Embedding spaces and the generations of the recall index built over them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.store.locking import lock_out_links, lock_out_recorders

__all__ = [
    "MEAN_FROM",
    "MEAN_UNTIL",
    "Generation",
    "Space",
    "Status",
    "active_generation",
    "ensure_space",
    "filled_generations",
    "insert_space",
    "keep_served",
    "refresh_mean",
]

#: `active`: recalls are answered from it; `building`: it is filled beside it; `retired`: it is kept
#: as it was when another took its place, and gets nothing more; `dropping`: it is being deleted.
Status = Literal["active", "building", "retired", "dropping"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A model, a width and the prefixes texts get: vectors of two spaces are never compared."""

    model: str
    dimensions: int
    document_prefix: str = ""
    query_prefix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generation:
    """One build of the recall index. `mean`: (dimensions,) float32; None while too young.

    `served`: how its space is reached, as `tickmind.serving` keeps it; None: nothing was kept.
    `signed`: it has signatures, so its mean is fixed.
    """

    id: int
    space_id: int
    space: Space
    mean: NDArray[np.float32] | None
    mean_over: int
    status: Status = "active"
    served: Mapping[str, Any] | None = None
    signed: bool = False


_GENERATION = """
    SELECT g.id, g.space_id, g.status, g.mean, g.mean_over, g.basis IS NOT NULL AS signed,
           s.model, s.dimensions, s.document_prefix, s.query_prefix,
           CAST(s.served AS text) AS served
    FROM index_generation g JOIN embedding_space s ON s.id = g.space_id
"""
_ACTIVE = text(_GENERATION + "WHERE g.status = 'active'")
# 'active' stands before 'building' in the alphabet, too. A space whose index is being built anew
# has both.
_FILLED = text(
    f"SELECT * FROM ({_GENERATION}"  # noqa: S608 (a constant)
    """
        WHERE g.id IN (SELECT DISTINCT ON (space_id) id FROM index_generation
                       WHERE status IN ('active', 'building') ORDER BY space_id, status, id)
    ) AS filled ORDER BY status, id
    """
)


def _generation(row: Row[Any]) -> Generation:
    return Generation(
        id=row.id,
        space_id=row.space_id,
        space=Space(
            model=row.model,
            dimensions=row.dimensions,
            document_prefix=row.document_prefix,
            query_prefix=row.query_prefix,
        ),
        mean=np.frombuffer(row.mean, dtype="<f4").astype(np.float32) if row.mean else None,
        mean_over=row.mean_over,
        status=row.status,
        served=json.loads(row.served) if row.served else None,
        signed=row.signed,
    )


async def active_generation(session: AsyncSession) -> Generation | None:
    """What recalls are answered from; None: no embedder has named a space yet."""
    row = (await session.execute(_ACTIVE)).one_or_none()
    return _generation(row) if row is not None else None


async def filled_generations(session: AsyncSession) -> list[Generation]:
    """One of each space that memories are embedded for, the active one first."""
    return [_generation(row) for row in (await session.execute(_FILLED)).all()]


_INSERT_SPACE = text("""
    INSERT INTO embedding_space AS s (model, dimensions, document_prefix, query_prefix, served)
    VALUES (:model, :dimensions, :document_prefix, :query_prefix, CAST(:served AS jsonb))
    ON CONFLICT (model, dimensions, document_prefix, query_prefix)
    DO UPDATE SET served = coalesce(excluded.served, s.served)
    RETURNING id
""")
_KEEP_SERVED = text("""
    UPDATE embedding_space SET served = CAST(:served AS jsonb)
    WHERE model = :model AND dimensions = :dimensions
      AND document_prefix = :document_prefix AND query_prefix = :query_prefix
      AND served IS DISTINCT FROM CAST(:served AS jsonb)
""")
_INSERT_ACTIVE = text("""
    INSERT INTO index_generation (space_id, status, activated_at)
    VALUES (:space_id, 'active', now())
""")
_BACKFILL = text("""
    INSERT INTO pending_embedding (memory_id, world_id, tick, space_id, importance, content_hash)
    SELECT m.id, (SELECT a.world_id FROM agent a WHERE a.id = m.agent_id), m.tick,
           CAST(:space_id AS integer), m.importance, m.content_hash
    FROM memory m
    ON CONFLICT DO NOTHING
""")


def _columns(space: Space, served: Mapping[str, Any] | None) -> dict[str, object]:
    return {
        "model": space.model,
        "dimensions": space.dimensions,
        "document_prefix": space.document_prefix,
        "query_prefix": space.query_prefix,
        "served": json.dumps(served) if served is not None else None,
    }


async def insert_space(
    session: AsyncSession, space: Space, served: Mapping[str, Any] | None
) -> int:
    """The space's id, made where it is new; `served` replaces what was kept, unless None."""
    return int((await session.execute(_INSERT_SPACE, _columns(space, served))).scalar_one())


async def keep_served(
    session: AsyncSession, space: Space, served: Mapping[str, Any] | None
) -> None:
    """Keep how a space is reached, where the space is there and `served` is known."""
    if served is not None:
        await session.execute(_KEEP_SERVED, _columns(space, served))


async def ensure_space(
    session: AsyncSession, space: Space, served: Mapping[str, Any] | None = None
) -> Generation:
    """The active generation; a database without one gets `space`, and all it holds as pending.

    A memory committed before is backfilled here, one committed after reads the new generation in
    its own insert, so none falls between.
    """
    found = await active_generation(session)
    if found is not None:
        return found
    await lock_out_links(session)  # nobody deletes what is being marked
    await lock_out_recorders(session)
    found = await active_generation(session)  # another embedder may have been faster
    if found is not None:
        return found
    space_id = await insert_space(session, space, served)
    await session.execute(_INSERT_ACTIVE, {"space_id": space_id})
    await session.execute(_BACKFILL, {"space_id": space_id})
    made = await active_generation(session)
    assert made is not None
    return made


_COUNT = text("""
    SELECT count(*) FROM (SELECT FROM embedding WHERE space_id = :space_id LIMIT :most) AS counted
""")
# Zero vectors stand for texts without a meaning: they say nothing of where the others lie.
_SAMPLE = text("""
    SELECT avg(vector)::vector::real[] AS mean, count(*) AS over
    FROM (SELECT vector FROM embedding
          WHERE space_id = :space_id AND l2_norm(vector) > 0 LIMIT :most) AS sample
""")
_SET_MEAN = text("""
    UPDATE index_generation SET mean = :mean, mean_over = :over
    WHERE id = :id AND mean_over < :over AND basis IS NULL
""")

#: A mean of fewer vectors is mostly those vectors themselves.
MEAN_FROM = 32
#: Beyond this many the mean moves less than half precision can tell (standard error 1/sqrt(n)
#: of a component's spread, 0.05 for unit vectors of 384: 0.0005).
MEAN_UNTIL = 8192


async def refresh_mean(session: AsyncSession, generation: Generation) -> bool:
    """Learn a young space's mean, again at each doubling until it no longer moves.

    Only a generation without signatures may change its mean: nothing stored depends on it.
    """
    if generation.mean_over >= MEAN_UNTIL or generation.signed:
        return False
    # The last time is not a doubling: more than it is taken of would be waited for in vain, and
    # the sample read again with every answer.
    wanted = min(MEAN_UNTIL, max(MEAN_FROM, 2 * generation.mean_over))
    parameters = {"space_id": generation.space_id, "most": wanted}
    if (await session.execute(_COUNT, parameters)).scalar_one() < wanted:
        return False
    row = (
        await session.execute(_SAMPLE, {"space_id": generation.space_id, "most": MEAN_UNTIL})
    ).one()
    if row.over < wanted:
        return False
    mean = np.asarray(row.mean, dtype="<f4").tobytes()
    await session.execute(_SET_MEAN, {"id": generation.id, "mean": mean, "over": row.over})
    return True
