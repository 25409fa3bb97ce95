"""What a town's database and broker hold, read for the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np
from sqlalchemy import text

from tests.chaos.ledger import Found, Remembered, Stored
from tickmind.connecting import connect
from tickmind.database import Database
from tickmind.hashed import hash_embed
from tickmind.identity import content_hash
from tickmind.settings import BrokerSettings
from tickmind.store.inspection import audit
from tickmind.topology import DEAD_LETTER_QUEUE, RECORDER_QUEUE

__all__ = ["WIDTH", "found", "unsettled"]

#: Numbers in a vector of a town's space.
WIDTH = 64
#: halfvec keeps 11 bits of each number: two roundings of one vector differ by 1e-3 at most.
_SAME = 0.999

_STORED = text("""
    SELECT m.id, w.name AS world, a.name AS agent, m.tick, m.kind, m.content, m.importance,
           m.is_core, s.name AS speaker
    FROM memory m JOIN agent a ON a.id = m.agent_id JOIN world w ON w.id = a.world_id
    LEFT JOIN agent s ON s.id = m.speaker_id ORDER BY m.id
""")
_COUNTS = text("""
    SELECT (SELECT count(*) FROM pending_embedding WHERE NOT parked) AS pending,
           (SELECT count(*) FROM pending_embedding WHERE parked) AS parked,
           (SELECT count(*) FROM reject) AS rejects
""")
_VECTORS = text("SELECT content_hash, vector::vector::real[] AS vector FROM embedding")
_RECEIVED = text("""
    SELECT count(*) FROM tick_receipt r JOIN world w ON w.id = r.world_id
    WHERE w.name = :world AND r.tick = ANY(CAST(:ticks AS bigint[]))
""")
_PENDING = text("""
    SELECT count(*) FROM pending_embedding p JOIN world w ON w.id = p.world_id
    WHERE w.name = :world AND NOT p.parked AND p.tick = ANY(CAST(:ticks AS bigint[]))
""")


async def unsettled(database: Database, confirmed: Mapping[str, Set[int]]) -> int:
    """Of these ticks by world: those not recorded, and the memories of theirs that still wait for
    a vector. Raises DatabaseUnavailable."""
    left = 0
    async with database.reading() as session:
        for world, ticks in confirmed.items():
            asked = {"world": world, "ticks": sorted(ticks)}
            left += len(ticks) - (await session.execute(_RECEIVED, asked)).scalar_one()
            left += (await session.execute(_PENDING, asked)).scalar_one()
    return left


async def found(database: Database, broker: BrokerSettings) -> Found:
    """Everything the ledger asks for."""
    async with database.reading() as session:
        stored = [
            Stored(id=row["id"], memory=Remembered(**{k: row[k] for k in row if k != "id"}))
            for row in (await session.execute(_STORED)).mappings()
        ]
        counts = (await session.execute(_COUNTS)).one()
        vectors = {row.content_hash: row.vector for row in await session.execute(_VECTORS)}
        audited = await audit(session)
    return Found(
        stored=stored,
        audit=audited,
        pending=counts.pending,
        parked=counts.parked,
        rejects=counts.rejects,
        mispaired=_mispaired({row.memory.content for row in stored}, vectors),
        dead_letters=await _left_in(broker, DEAD_LETTER_QUEUE.name),
        left=await _left_in(broker, RECORDER_QUEUE.name),
    )


def _mispaired(contents: Set[str], vectors: Mapping[bytes, list[float]]) -> int:
    """Texts whose vector is not the provider's for that text."""
    wrong = 0
    for content in contents:
        vector = vectors.get(content_hash(content))
        if vector is not None:
            wrong += not float(np.asarray(vector) @ hash_embed(content, WIDTH)) > _SAME
    return wrong


async def _left_in(broker: BrokerSettings, queue: str) -> int:
    async with await connect(broker, name="chaos") as connection:
        channel = await connection.channel()
        declared = await channel.declare_queue(queue, passive=True)
        return int(declared.declaration_result.message_count or 0)
