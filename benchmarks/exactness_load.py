"""What `exactness` ranks: vectors of real texts and made ones, in agents of several sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import asyncpg
import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector
from pgvector.asyncpg import register_vector

from benchmarks.real_vectors import RealVectors
from tickmind.database import Database
from tickmind.reindexing import Reindexing
from tickmind.store import recording
from tickmind.store.spaces import Generation, Space, active_generation, ensure_space

__all__ = ["LAST_TICK", "Load", "fill", "made", "mixed"]

Vectors = NDArray[np.float32]

#: Recency halves every 500 ticks by default: the oldest memories are four half-lives old.
LAST_TICK = 2000
_WORLD = "bench"
#: Agents of few memories beside those measured: where all there are is four of them, PostgreSQL
#: expects any to be large, and reads whole tables for a small one.
_OTHERS, _OTHERS_MEMORIES = 500, 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Load:
    """Distinct texts' vectors, (n, d), and for each memory its text; what is asked: (m, d)."""

    texts: Vectors
    of_memory: NDArray[np.int64]
    queries: Vectors


def mixed(real: RealVectors, *, memories: int, seed: int = 21) -> Load:
    """Real texts, each once, then half said again and half new: one text with a fifth of another
    in it, as what is said of two things. All lie in the model's own cone."""
    random = np.random.default_rng(seed)
    count = len(real.texts)
    more = max(0, memories - count)
    pairs = random.integers(0, count, size=(2, more // 2))
    blends = _unit(0.8 * real.texts[pairs[0]] + 0.2 * real.texts[pairs[1]])
    texts = np.concatenate([real.texts, blends])
    rest = np.concatenate(
        [np.arange(count, len(texts)), random.integers(0, count, size=more - len(blends))]
    )
    of_memory = np.concatenate([random.permutation(count), random.permutation(rest)])
    return Load(texts=texts, of_memory=of_memory[:memories], queries=real.queries)


#: Topics, and how unevenly they are spoken of (Zipf's exponent).
_TOPICS, _ZIPF = 600, 1.0
#: Lengths of the parts of a made vector: what all have in common, its topic, its own.
_COMMON, _TOPIC, _OWN = 0.5, 0.5, 0.7
#: A vector's own part is spread over the axes as 1 / (axis + this): some hundred of them matter, as
#: with vectors of models.
_SPECTRUM = 30.0
#: Vectors made at once, in double precision.
_BLOCK = 10_000


def made(dimensions: int, *, memories: int, queries: int, seed: int = 22) -> Load:
    """Clustered vectors: a common direction, one of 600 topics (of Zipf's sizes), and an own part
    of a falling spectrum in rotated axes. A question is a memory's topic with another own part,
    mixed half and half with that memory's."""
    random = np.random.default_rng(seed)
    axes = np.linalg.qr(random.normal(size=(dimensions, dimensions)))[0]
    spread = 1 / (np.arange(dimensions) + _SPECTRUM)
    common = _COMMON * _unit(random.normal(size=(1, dimensions)))

    def own(count: int) -> Vectors:
        blocks = [
            random.normal(size=(min(_BLOCK, count - first), dimensions)) * spread @ axes
            for first in range(0, count, _BLOCK)
        ]
        return np.concatenate([_unit(block) for block in blocks])

    topics = own(_TOPICS)
    share = 1 / np.arange(1, _TOPICS + 1) ** _ZIPF
    topic = random.choice(_TOPICS, size=memories, p=share / share.sum())
    parts = own(memories)
    topics *= np.float32(_TOPIC)
    texts = _unit(common + topics[topic] + np.float32(_OWN) * parts)
    meant = random.integers(0, memories, size=queries)
    asked = _unit(0.5 * parts[meant] + 0.5 * own(queries))
    return Load(
        texts=texts,
        of_memory=random.permutation(memories),
        queries=_unit(common + topics[topic[meant]] + np.float32(_OWN) * asked),
    )


def _unit(rows: NDArray[np.floating]) -> Vectors:
    unit: Vectors = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit


async def fill(
    database: Database, url: str, load: Load, sizes: Sequence[int]
) -> tuple[Generation, dict[int, int]]:
    """Fill an empty database: an agent of the first so many memories for each size; its index
    built with signatures as an embedder would. The generation, and the agents' ids by size."""
    async with database.writing() as session:
        generation = await ensure_space(
            session, Space(model="bench", dimensions=load.texts.shape[1])
        )
        world_id = (await recording.ensure_worlds(session, [_WORLD]))[_WORLD]
    async with database.writing() as session:
        names = {f"agent-{size}": size for size in sizes}
        names |= {f"other-{number}": _OTHERS_MEMORIES for number in range(_OTHERS)}
        ids = await recording.ensure_agents(session, [(world_id, name) for name in names])
    agents = {size: ids[world_id, f"agent-{size}"] for size in sizes}
    rows = {id_: names[name] for (_, name), id_ in ids.items()}
    connection = await asyncpg.connect(url)
    try:
        await register_vector(connection, schema="public")
        await connection.copy_records_to_table(
            "embedding",
            columns=["space_id", "content_hash", "vector"],
            records=(
                (generation.space_id, _hash(text), HalfVector(vector))
                for text, vector in enumerate(load.texts)
            ),
        )
        await connection.copy_records_to_table(
            "memory",
            columns=[
                *("agent_id", "tick", "importance", "kind"),
                *("content", "content_hash", "event_key"),
            ],
            records=_memories(load, rows),
        )
        await connection.execute(
            """
            INSERT INTO recall_index (memory_id, generation_id, importance, is_core, agent_id,
                                      tick, kind, content_hash)
            SELECT id, $1, importance, is_core, agent_id, tick, kind, content_hash FROM memory
            """,
            generation.id,
        )
        assert await Reindexing(database.writing).build() is not None
        # As autovacuum leaves a table that has come to rest.
        await connection.execute("DELETE FROM recall_index WHERE generation_id = $1", generation.id)
        await connection.execute("VACUUM ANALYZE")
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()
    async with database.reading() as session:
        built = await active_generation(session)
    assert built is not None
    assert built.signed
    return built, agents


def _hash(text: int) -> bytes:
    # Spread as hashes are: what is stored side by side need not be near each other.
    return (text * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "big") + text.to_bytes(24, "big")


def _memories(load: Load, agents: dict[int, int]) -> Iterator[tuple[object, ...]]:
    """In the order of their ticks, as agents that live side by side have them."""
    random = np.random.default_rng(23)
    rows = []
    for agent_id, size in agents.items():
        ticks = np.sort(random.integers(0, LAST_TICK + 1, size=size))
        importances = random.choice([4, 8], size=size, p=[0.6, 0.4])
        for number, text in enumerate(load.of_memory[:size]):
            rows.append((int(ticks[number]), agent_id, number, int(importances[number]), int(text)))
    for tick, agent_id, number, importance, text in sorted(rows):
        kind = "conversation" if importance == 8 else "observation"
        key = number.to_bytes(16, "big")
        yield (agent_id, tick, importance, kind, f"text {text}", _hash(text), key)
