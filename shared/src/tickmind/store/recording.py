"""What the recorder writes: worlds and agents, memories with what waits for a vector, receipts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.conversation import text_to_embed
from tickmind.decoding import Rejected
from tickmind.identity import KEY_BYTES, content_hash, reject_key
from tickmind.memory import Memory
from tickmind.store.lookups import by_index
from tickmind.words import array, digests, keys

__all__ = [
    "AgentId",
    "Receipt",
    "RejectRow",
    "ensure_agents",
    "ensure_worlds",
    "insert_memories",
    "insert_receipts",
    "insert_rejects",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentId:
    """Where an agent's rows hang."""

    id: int
    world_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One message of one tick: that it came, and how many decisions it held."""

    world_id: int
    tick: int
    decisions: int
    sim_time: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectRow:
    """Refused input as it is kept. `key`: what tells it apart, where its body is kept in part."""

    rejected: Rejected
    routing_key: str
    world: str | None
    key: bytes | None = None


# ON CONFLICT DO NOTHING returns only new rows; the names are few and cached by the caller, so a
# second statement finds the rest. Sorted, so that two writers never wait for each other in turn.
_INSERT_WORLDS = text("""
    INSERT INTO world (name) SELECT unnest(CAST(:names AS text[])) ON CONFLICT (name) DO NOTHING
""")
_WORLDS = text("SELECT name, id FROM world WHERE name = ANY(CAST(:names AS text[]))")

_INSERT_AGENTS = text("""
    INSERT INTO agent (world_id, name)
    SELECT * FROM unnest(CAST(:world_ids AS bigint[]), CAST(:names AS text[]))
    ON CONFLICT (world_id, name) DO NOTHING
""")
_AGENTS = text("""
    SELECT wanted.world_id, wanted.name, a.id
    FROM unnest(CAST(:world_ids AS bigint[]), CAST(:names AS text[])) AS wanted (world_id, name)
    CROSS JOIN LATERAL (
        SELECT id FROM agent WHERE world_id = wanted.world_id AND name = wanted.name OFFSET 0
    ) AS a
""")


async def ensure_worlds(session: AsyncSession, names: Iterable[str]) -> dict[str, int]:
    """Ids of these worlds, made where they are new."""
    wanted = sorted(set(names))
    found = await _worlds(session, wanted)
    while missing := [name for name in wanted if name not in found]:
        await session.execute(_INSERT_WORLDS, {"names": missing})
        # One that somebody else has made, and somebody deleted before we look, is made again.
        found |= await _worlds(session, missing)
    return found


async def _worlds(session: AsyncSession, names: Sequence[str]) -> dict[str, int]:
    rows = (await session.execute(_WORLDS, {"names": names})).all()
    return {row.name: row.id for row in rows}


async def ensure_agents(
    session: AsyncSession, names: Iterable[tuple[int, str]]
) -> dict[tuple[int, str], int]:
    """Ids of these agents, keyed by (world id, name), made where they are new."""
    wanted = sorted(set(names))
    await by_index(session)

    async def lookup(pairs: Sequence[tuple[int, str]]) -> dict[tuple[int, str], int]:
        columns = {"world_ids": [w for w, _ in pairs], "names": [n for _, n in pairs]}
        rows = (await session.execute(_AGENTS, columns)).all()
        return {(world_id, name): id_ for world_id, name, id_ in rows}

    found = await lookup(wanted)
    while missing := [pair for pair in wanted if pair not in found]:
        columns = {"world_ids": [w for w, _ in missing], "names": [n for _, n in missing]}
        await session.execute(_INSERT_AGENTS, columns)
        found |= await lookup(missing)
    return found


# One statement: the memory and what waits for its vector stand or fall together. Which spaces
# want vectors is read by the same statement (see `spaces.ensure_space` for its lock).
#
# The driver asks of each value of an array whether it is an array, too, which is half of what a
# row costs it. So numbers come as PostgreSQL writes an array, and hashes one behind the other.
_INSERT_MEMORIES = text("""
    WITH new AS (
        INSERT INTO memory (agent_id, tick, speaker_id, importance, is_core, kind, content,
                            context, content_hash, event_key, terms)
        SELECT agent_id, tick, speaker_id, importance, is_core,
               (CAST(:kinds AS text[]))[kind], content, context,
               substr(CAST(:content_hashes AS bytea), place * :key_bytes + 1, :key_bytes),
               substr(CAST(:event_keys AS bytea), place * :key_bytes + 1, :key_bytes),
               CAST(terms AS bigint[])
        FROM unnest(
            CAST(CAST(:places AS text) AS integer[]),
            CAST(CAST(:agent_ids AS text) AS bigint[]), CAST(CAST(:ticks AS text) AS bigint[]),
            CAST(CAST(:speaker_ids AS text) AS bigint[]),
            CAST(CAST(:importances AS text) AS smallint[]),
            CAST(CAST(:cores AS text) AS boolean[]),
            CAST(CAST(:kind_places AS text) AS smallint[]), CAST(:contents AS text[]),
            CAST(:contexts AS text[]), CAST(:terms AS text[]))
            AS r (place, agent_id, tick, speaker_id, importance, is_core, kind, content, context,
                  terms)
        ON CONFLICT (agent_id, event_key) DO NOTHING
        RETURNING id, agent_id, tick, importance, content_hash
    ), pending AS (
        INSERT INTO pending_embedding (memory_id, world_id, tick, space_id, importance,
                                       content_hash)
        SELECT new.id, a.world_id, new.tick, s.space_id, new.importance, new.content_hash
        FROM new
        JOIN unnest(CAST(CAST(:owners AS text) AS bigint[]),
                    CAST(CAST(:world_ids AS text) AS bigint[])) AS a (id, world_id)
            ON a.id = new.agent_id
        CROSS JOIN unnest(ARRAY(
            SELECT DISTINCT space_id FROM index_generation
            WHERE status IN ('building', 'active'))) AS s (space_id)
    )
    SELECT count(*) FROM new
""")


async def insert_memories(
    session: AsyncSession,
    memories: Sequence[tuple[AgentId, int | None, Memory]],
    contexts: Sequence[str | None] | None = None,
) -> int:
    """Store memories (agent, speaker's id, memory) with their words and mark them pending; how many
    were new. `contexts`: what each of them answers; None: as they say themselves.

    A memory whose event is stored already changes nothing. Raises IntegrityError (foreign key)
    where an agent was deleted meanwhile.
    """
    if contexts is None:
        contexts = [memory.context for _, _, memory in memories]
    rows = sorted(
        zip(memories, contexts, strict=True), key=lambda row: (row[0][0].id, row[0][2].event_key)
    )
    agents = [agent.id for (agent, _, _), _ in rows]
    told = [memory for (_, _, memory), _ in rows]
    answered = [context for _, context in rows]
    owners = {agent.id: agent.world_id for agent, _, _ in memories}
    kinds = {kind: place for place, kind in enumerate({memory.kind for memory in told}, start=1)}
    result = await session.execute(
        _INSERT_MEMORIES,
        {
            "places": array(range(len(rows))),
            "owners": array(owners.keys()),
            "world_ids": array(owners.values()),
            "agent_ids": array(agents),
            "ticks": array(memory.tick for memory in told),
            "speaker_ids": array(speaker for (_, speaker, _), _ in rows),
            "importances": array(memory.importance for memory in told),
            "cores": array(memory.is_core for memory in told),
            "kinds": list(kinds),
            "kind_places": array(kinds[memory.kind] for memory in told),
            "contents": [memory.content for memory in told],
            "contexts": answered,
            "content_hashes": b"".join(
                content_hash(text_to_embed(memory, context))
                for memory, context in zip(told, answered, strict=True)
            ),
            "event_keys": b"".join(memory.event_key for memory in told),
            "key_bytes": KEY_BYTES,
            "terms": [
                array(keys(agent, digests(memory.content, context)))
                for agent, memory, context in zip(agents, told, answered, strict=True)
            ],
        },
    )
    return int(result.scalar_one())


_INSERT_RECEIPTS = text("""
    INSERT INTO tick_receipt AS r (world_id, tick, decisions, sim_time)
    SELECT * FROM unnest(CAST(:world_ids AS bigint[]), CAST(:ticks AS bigint[]),
                         CAST(:decisions AS integer[]), CAST(:sim_times AS timestamptz[]))
    ON CONFLICT (world_id, tick) DO UPDATE
    SET decisions = greatest(r.decisions, excluded.decisions),
        sim_time = coalesce(r.sim_time, excluded.sim_time),
        last_received = excluded.last_received
""")


async def insert_receipts(session: AsyncSession, receipts: Iterable[Receipt]) -> None:
    """Note that these ticks came; the same tick again changes no count."""
    merged: dict[tuple[int, int], Receipt] = {}
    for receipt in receipts:
        key = (receipt.world_id, receipt.tick)
        known = merged.get(key)
        if known is None or receipt.decisions > known.decisions:
            merged[key] = receipt
    if not merged:
        return
    rows = [merged[key] for key in sorted(merged)]
    await session.execute(
        _INSERT_RECEIPTS,
        {
            "world_ids": [row.world_id for row in rows],
            "ticks": [row.tick for row in rows],
            "decisions": [row.decisions for row in rows],
            "sim_times": [row.sim_time for row in rows],
        },
    )


_INSERT_REJECTS = text("""
    INSERT INTO reject AS r (reject_key, times, reason, detail, routing_key, world, body)
    SELECT * FROM unnest(CAST(:keys AS bytea[]), CAST(:times AS bigint[]),
                         CAST(:reasons AS text[]), CAST(:details AS text[]),
                         CAST(:routing_keys AS text[]), CAST(:worlds AS text[]),
                         CAST(:bodies AS bytea[]))
    ON CONFLICT (reject_key) DO UPDATE
    SET times = r.times + excluded.times, last_received = excluded.last_received
""")


async def insert_rejects(session: AsyncSession, rejects: Iterable[RejectRow]) -> None:
    """Keep refused input with its reason, each distinct one once, counting its returns."""
    merged: dict[bytes, RejectRow] = {}
    times: Counter[bytes] = Counter()
    for row in rejects:
        key = row.key or reject_key(row.rejected.reason, row.world, row.rejected.body)
        merged[key] = row
        times[key] += 1
    if not merged:
        return
    keys = sorted(merged)
    rows = [merged[key] for key in keys]
    await session.execute(
        _INSERT_REJECTS,
        {
            "keys": keys,
            "times": [times[key] for key in keys],
            "reasons": [row.rejected.reason for row in rows],
            # PostgreSQL's text takes no NUL and no lone surrogate, whatever a key may hold.
            "details": [_sayable(row.rejected.detail) for row in rows],
            "routing_keys": [_sayable(row.routing_key) for row in rows],
            "worlds": [row.world for row in rows],
            "bodies": [row.rejected.body for row in rows],
        },
    )


def _sayable(text_: str) -> str:
    return text_.replace("\x00", "\ufffd").encode(errors="replace").decode()
