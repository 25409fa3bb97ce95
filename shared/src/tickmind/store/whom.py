"""Who is asked: the ids of agents by name, and what is known of them before they are ranked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.driver import fetch, numbered
from tickmind.memory import Watermarks
from tickmind.store.watermarks import reaching

__all__ = ["Whom", "whom"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Whom:
    """Ids of the agents asked for that exist, by name, and how far their world's memory reaches.

    `with_core`: ids of those among them that have core memories.
    """

    agents: dict[str, int]
    watermarks: Watermarks
    with_core: frozenset[int] = frozenset()


_WHOM = numbered("""
    SELECT recorded.tick AS recorded,
           (SELECT min(p.tick) FROM pending_embedding p
            WHERE p.world_id = w.id AND p.space_id = :space_id AND NOT p.parked) AS first_pending,
           ARRAY(SELECT a.name FROM agent a
                 WHERE a.world_id = w.id AND a.name = ANY(CAST(:names AS text[]))
                 ORDER BY a.name) AS names,
           ARRAY(SELECT a.id FROM agent a
                 WHERE a.world_id = w.id AND a.name = ANY(CAST(:names AS text[]))
                 ORDER BY a.name) AS ids,
           ARRAY(SELECT a.id FROM agent a
                 WHERE a.world_id = w.id AND a.name = ANY(CAST(:names AS text[]))
                   AND EXISTS (SELECT FROM memory m WHERE m.agent_id = a.id AND m.is_core)
           ) AS with_core
    FROM world w
    CROSS JOIN LATERAL (SELECT max(tick) AS tick FROM tick_receipt WHERE world_id = w.id) recorded
    WHERE w.name = :world
""")


async def whom(session: AsyncSession, world: str, names: Sequence[str], *, space_id: int) -> Whom:
    """Find the agents of one world by name. A world that does not exist has none."""
    parameters = {"world": world, "names": sorted(set(names)), "space_id": space_id}
    rows = await fetch(session, _WHOM, parameters)
    if not rows:
        return Whom(agents={}, watermarks=Watermarks())
    recorded, first_pending, found, ids, with_core = rows[0]
    return Whom(
        agents=dict(zip(found, ids, strict=True)),
        watermarks=reaching(recorded, first_pending),
        with_core=frozenset(with_core),
    )
