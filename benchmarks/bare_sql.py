"""The ranking statement as the retriever sends it, executed by bare asyncpg."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg
from pgvector.asyncpg import register_vector

from benchmarks.recall_load import DIMENSIONS, LAST_TICK, World
from tickmind.database import Database
from tickmind.hashed import hash_embed
from tickmind.memory import Weights
from tickmind.store.recall import Filters, Question, rank
from tickmind_retriever.settings import RetrieverSettings

__all__ = ["BareSql", "ranking"]


async def ranking(
    database: Database, world: World, asked: Sequence[tuple[str, str]]
) -> tuple[str, list[tuple[Any, ...]]]:
    """What the retriever would send for each (agent, observation): the statement, and the
    parameters of each. Listened in on, so it is the product's own statement, whatever that is."""
    heard: list[tuple[str, tuple[Any, ...]]] = []

    def hear(logged: Any) -> None:
        if "recall_index" in logged.query:  # else the driver asks what types there are, once
            heard.append((logged.query, tuple(logged.args)))

    async with database.reading() as session:
        connection = (await (await session.connection()).get_raw_connection()).driver_connection
        assert connection is not None
        with connection.query_logger(hear):
            for agent, observation in asked:
                await rank(
                    session,
                    [
                        Question(
                            agent_id=world.ids[agent],
                            vector=hash_embed(observation, DIMENSIONS),
                        )
                    ],
                    generation=world.generation,
                    tick=LAST_TICK,
                    k=5,
                    filters=Filters(),
                    weights=Weights(),
                    half_life_ticks=RetrieverSettings().retriever_half_life_ticks,
                )
            await asyncio.sleep(0)  # the driver tells in the next turn
    if len(heard) != len(asked) or len({sql for sql, _ in heard}) != 1:
        msg = f"ranking {len(asked)} agents took {len(heard)} statements: the same one was expected"
        raise RuntimeError(msg)
    return heard[0][0], [parameters for _, parameters in heard]


class BareSql:
    """Connections of asyncpg, each with the statement prepared; a caller takes a free one."""

    def __init__(self, connections: Sequence[asyncpg.Connection[asyncpg.Record]]) -> None:
        self._connections = connections
        self._free: asyncio.Queue[asyncpg.prepared_stmt.PreparedStatement[asyncpg.Record]]
        self._free = asyncio.Queue()

    @classmethod
    async def connect(cls, url: str, sql: str, *, connections: int) -> BareSql:
        """Connect and prepare."""
        bare = cls([await asyncpg.connect(url) for _ in range(connections)])
        for connection in bare._connections:
            await register_vector(connection, schema="public")
            bare._free.put_nowait(await connection.prepare(sql))
        return bare

    async def fetch(self, parameters: Sequence[Any]) -> int:
        """Execute once; how many rows came."""
        prepared = await self._free.get()
        try:
            return len(await prepared.fetch(*parameters))
        finally:
            self._free.put_nowait(prepared)

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()
