"""What `recall` measures on: a world of agents with memories, and what is asked of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg
from pgvector import HalfVector
from pgvector.asyncpg import register_vector

from tickmind.database import Database
from tickmind.hashed import hash_embed
from tickmind.identity import content_hash
from tickmind.store import recording
from tickmind.store.spaces import Generation, Space, active_generation, ensure_space, refresh_mean
from tickmind.words import digests, keys

__all__ = ["DIMENSIONS", "LAST_TICK", "WORLD", "World", "fill", "observation"]

WORLD = "bench"
DIMENSIONS = 1536
#: Recency halves every 500 ticks by default: the oldest memories are four half-lives old.
LAST_TICK = 2000
#: Share of the memories whose text is that agent's alone, as a talk's is; the others' are drawn
#: from common ones, as moves are. In the town of 25 agents 65 % are its agent's alone; a lower
#: share keeps all vectors (3 kB each) in PostgreSQL's cache, as the hot part of a database is.
_OWN_SHARE = 0.4
_COMMON_TEXTS = 1000
_WORDS_A_TEXT = 12
#: Some 30,000 English words are in common use; a town's talk has a tenth of them.
_VOCABULARY = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The agents by how many memories each has, and the generation they are recalled from."""

    agents: dict[int, list[str]]
    ids: dict[str, int]
    generation: Generation


def observation(source: random.Random) -> str:
    """What an agent sees: words of the memories' vocabulary, never twice the same."""
    return f"{_sentence(source)} {source.getrandbits(64):x}"


def _sentence(source: random.Random) -> str:
    return " ".join(f"word{source.randrange(_VOCABULARY)}" for _ in range(_WORDS_A_TEXT))


async def fill(database: Database, url: str, agents: dict[int, int]) -> World:
    """Fill an empty database with so many agents of so many memories (memories: agents), all
    embedded and indexed as the services would have done, the mean of the space learnt."""
    source = random.Random(3)
    async with database.writing() as session:
        generation = await ensure_space(session, Space(model="hash", dimensions=DIMENSIONS))
    names = {
        size: [f"agent-{size}-{number:03}" for number in range(count)]
        for size, count in agents.items()
    }
    ids = await _agent_ids(database, [name for some in names.values() for name in some])
    memories = list(_memories(source, names, ids))
    texts = dict.fromkeys(memory.text for memory in memories)
    connection = await asyncpg.connect(url)
    try:
        await register_vector(connection, schema="public")
        await connection.copy_records_to_table(
            "embedding",
            columns=["space_id", "content_hash", "vector"],
            records=[
                (
                    generation.space_id,
                    content_hash(text),
                    HalfVector(hash_embed(text, DIMENSIONS)),
                )
                for text in texts
            ],
        )
        await connection.copy_records_to_table(
            "memory",
            columns=[
                *("agent_id", "tick", "importance", "kind"),
                *("content", "content_hash", "event_key", "terms"),
            ],
            records=[
                (
                    memory.agent_id,
                    memory.tick,
                    memory.importance,
                    memory.kind,
                    memory.text,
                    content_hash(memory.text),
                    number.to_bytes(16, "big"),
                    keys(memory.agent_id, digests(memory.text)),
                )
                for number, memory in enumerate(memories)
            ],
        )
        await connection.execute(
            """
            INSERT INTO recall_index (memory_id, generation_id, importance, is_core, agent_id,
                                      tick, kind, content_hash)
            SELECT id, $1, importance, is_core, agent_id, tick, kind, content_hash FROM memory
            """,
            generation.id,
        )
        await connection.execute(
            "INSERT INTO tick_receipt (world_id, tick, decisions)"
            " SELECT id, generate_series(0, $2::bigint), 20 FROM world WHERE name = $1",
            WORLD,
            LAST_TICK,
        )
        # As autovacuum leaves a table that has come to rest.
        await connection.execute("VACUUM ANALYZE")
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()
    async with database.writing() as session:
        await refresh_mean(session, generation)
    async with database.reading() as session:
        learnt = await active_generation(session)
    assert learnt is not None
    return World(agents=names, ids=ids, generation=learnt)


async def _agent_ids(database: Database, names: Sequence[str]) -> dict[str, int]:
    async with database.writing() as session:
        world_id = (await recording.ensure_worlds(session, [WORLD]))[WORLD]
    async with database.writing() as session:
        found = await recording.ensure_agents(session, [(world_id, name) for name in names])
    return {name: id_ for (_, name), id_ in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memory:
    agent_id: int
    tick: int
    importance: int
    kind: str
    text: str


def _memories(
    source: random.Random, names: dict[int, list[str]], ids: dict[str, int]
) -> list[_Memory]:
    """In the order of their ticks, as agents that live side by side have them."""
    common = [_sentence(source) for _ in range(_COMMON_TEXTS)]
    memories = []
    for size, some in names.items():
        for name in some:
            for number in range(size):
                own = source.random() < _OWN_SHARE
                memories.append(
                    _Memory(
                        agent_id=ids[name],
                        tick=number * LAST_TICK // size,
                        importance=8 if own else 4,
                        kind="conversation" if own else "observation",
                        text=_sentence(source) if own else source.choice(common),
                    )
                )
    return sorted(memories, key=lambda memory: memory.tick)
