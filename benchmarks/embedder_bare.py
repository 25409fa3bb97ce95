"""The least that could embed what is pending: the floor that one embedder is compared with.

Bare httpx2 and asyncpg: it reads all pending rows at once, sends them in batches of the same size
with as many calls under way, and writes each answer in one transaction: vectors in, index rows in,
pending rows out. It does without jobs and leases (so a second one would send the same texts
again), checks nothing of an answer but its order, and is lost where anything fails.

Then it waits to be ended.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence

import asyncpg
import httpx2
import numpy as np
from pgvector import HalfVector
from pgvector.asyncpg import register_vector
from pydantic_core import from_json

_PENDING = """
    SELECT m.id, p.space_id, m.importance, m.is_core, m.agent_id, m.tick, m.kind, m.content_hash,
           m.content
    FROM pending_embedding p JOIN memory m ON m.id = p.memory_id ORDER BY m.id
"""
_VECTORS = """
    INSERT INTO embedding (space_id, content_hash, vector)
    SELECT $1, * FROM unnest($2::bytea[], $3::halfvec[])
"""
_INDEX = """
    INSERT INTO recall_index (generation_id, memory_id, importance, is_core, agent_id, tick, kind,
                              content_hash)
    SELECT $1, * FROM unnest($2::bigint[], $3::smallint[], $4::boolean[], $5::bigint[],
                             $6::bigint[], $7::text[], $8::bytea[])
"""
_DONE = "DELETE FROM pending_embedding WHERE space_id = $1 AND memory_id = ANY($2::bigint[])"

_Rows = Sequence[asyncpg.Record]

_open: list[asyncpg.Connection[asyncpg.Record]] = []


async def _embed(client: httpx2.AsyncClient, model: str, texts: Sequence[str]) -> list[HalfVector]:
    response = await client.post("embeddings", json={"model": model, "input": texts})
    response.raise_for_status()
    vectors = np.asarray(
        [item["embedding"] for item in from_json(response.content)["data"]], dtype=np.float32
    )
    return [HalfVector(vector) for vector in vectors]


async def _caller(
    batches: Iterator[_Rows], client: httpx2.AsyncClient, options: argparse.Namespace
) -> None:
    connection = await asyncpg.connect(options.database)
    await register_vector(connection)
    generation = await connection.fetchval("SELECT id FROM index_generation")
    statements = [await connection.prepare(sql) for sql in (_VECTORS, _INDEX, _DONE)]
    for batch in batches:
        ids, spaces, importances, cores, agents, ticks, kinds, hashes, texts = map(
            list, zip(*batch, strict=True)
        )
        vectors = await _embed(client, options.model, texts)
        async with connection.transaction():
            await statements[0].fetch(spaces[0], hashes, vectors)
            await statements[1].fetch(
                generation, ids, importances, cores, agents, ticks, kinds, hashes
            )
            await statements[2].fetch(spaces[0], ids)
    # Its connection stays open: the server's clocks are read after.
    _open.append(connection)


async def _run(options: argparse.Namespace) -> None:
    connection = await asyncpg.connect(options.database)
    rows = await connection.fetch(_PENDING)
    await connection.close()
    batches = iter([rows[at : at + options.batch] for at in range(0, len(rows), options.batch)])
    async with (
        httpx2.AsyncClient(base_url=options.base_url, timeout=30, trust_env=False) as client,
        asyncio.TaskGroup() as callers,
    ):
        for _ in range(options.in_flight):
            callers.create_task(_caller(batches, client, options))
    await asyncio.Event().wait()  # whoever measures us reads our clocks


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", required=True)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch", type=int, required=True, help="texts")
    parser.add_argument("--in-flight", type=int, required=True, help="calls")
    asyncio.run(_run(parser.parse_args()))
