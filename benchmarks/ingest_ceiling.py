"""The least that could store a tick's rows: the ceiling of `ingest`, as a process.

Bare aio-pika and bare asyncpg, and nothing of tickmind's in between: it takes as many messages of
the same length from the same queue, which hold the rows ready to be inserted (so it neither checks
nor grades nor hashes, it only unpacks), inserts memories, pending rows and receipts by `unnest` in
batches of the same size with as many transactions under way, and acknowledges a batch in one
frame. It does without what makes a repeated delivery harmless (ON CONFLICT) and without the
sorting that keeps two writers from waiting for each other.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from itertools import chain

import aio_pika
import asyncpg
from aio_pika.abc import AbstractIncomingMessage

from benchmarks.ingest_load import DECISIONS, unpacked

_MEMORIES = """
    WITH new AS (
        INSERT INTO memory (agent_id, tick, speaker_id, importance, is_core, kind, content,
                            content_hash, event_key, context, terms)
        SELECT agent, tick, speaker, importance, core, kind, content, hash, key, context,
               terms::bigint[]
        FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::smallint[], $5::boolean[],
                    $6::text[], $7::text[], $8::bytea[], $9::bytea[], $10::text[], $11::text[])
            AS r (agent, tick, speaker, importance, core, kind, content, hash, key, context, terms)
        RETURNING id, tick, importance, content_hash
    )
    INSERT INTO pending_embedding (memory_id, world_id, tick, space_id, importance, content_hash)
    SELECT id, $12, tick, $13, importance, content_hash FROM new
"""
_RECEIPTS = """
    INSERT INTO tick_receipt (world_id, tick, decisions) SELECT $1, unnest($2::bigint[]), $3
"""


class _Ceiling:
    def __init__(self, *, batch: int, world_id: int, space_id: int) -> None:
        self._batch = batch
        self._world_id = world_id
        self._space_id = space_id
        self._messages: list[AbstractIncomingMessage] = []
        self._full: asyncio.Queue[list[AbstractIncomingMessage]] = asyncio.Queue()
        self._acknowledged: asyncio.Future[None] | None = None

    async def take(self, message: AbstractIncomingMessage) -> None:
        self._messages.append(message)
        if len(self._messages) == self._batch:
            self._full.put_nowait(self._messages)
            self._messages = []

    async def store(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        """Store one batch after the other; several of these run at once."""
        memories = await connection.prepare(_MEMORIES)
        receipts = await connection.prepare(_RECEIPTS)
        while True:
            batch = await self._full.get()
            earlier, ours = self._acknowledged, asyncio.get_running_loop().create_future()
            self._acknowledged = ours
            rows = [unpacked(message.body) for message in batch]
            columns = [list(chain.from_iterable(parts)) for parts in zip(*rows, strict=True)]
            ticks = [columns_[1][0] for columns_ in rows]
            async with connection.transaction():
                await memories.fetch(*columns, self._world_id, self._space_id)
                await receipts.fetch(self._world_id, ticks, DECISIONS)
            if earlier is not None:
                await earlier  # one frame acknowledges everything before it too
            await batch[-1].ack(multiple=True)
            ours.set_result(None)


async def _run(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    ceiling = _Ceiling(
        batch=options.batch,
        world_id=options.world_id,
        space_id=options.space_id,
    )
    connections = [await asyncpg.connect(options.database) for _ in range(options.in_flight)]
    storing = [asyncio.create_task(ceiling.store(connection)) for connection in connections]
    broker = await aio_pika.connect(options.amqp)
    channel = await broker.channel()
    await channel.set_qos(prefetch_count=options.prefetch)
    queue = await channel.get_queue(options.queue, ensure=False)
    await queue.consume(ceiling.take)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({stopping, *storing}, return_when=asyncio.FIRST_COMPLETED)
    for task in storing:
        if task.done():
            task.result()  # raises why
        task.cancel()
    await broker.close()
    for connection in connections:
        await connection.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--amqp", required=True)
    parser.add_argument("--database", required=True)
    parser.add_argument("--queue", required=True)
    parser.add_argument("--batch", type=int, required=True, help="messages")
    parser.add_argument("--in-flight", type=int, required=True, help="transactions")
    parser.add_argument("--prefetch", type=int, required=True)
    parser.add_argument("--world-id", type=int, required=True)
    parser.add_argument("--space-id", type=int, required=True)
    asyncio.run(_run(parser.parse_args()))
