"""tickmind as engines use it: `MemoryClient`, with the services as processes of their own.

A tick is written once it is confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from benchmarks.peers.driving import Given, drive
from benchmarks.peers.resting import rested
from benchmarks.peers.wording import LAST_TICK, WORLD, asked, decisions
from tickmind import MemoryClient

_LOOK_S = 0.02


class _Memory:
    def __init__(
        self,
        client: MemoryClient,
        database: asyncpg.Connection[asyncpg.Record],
        given: Given,
    ) -> None:
        self._given = given
        self._asked = asked(given)
        self._client = client
        self._database = database
        self._ticks = 0

    async def write(self, tick: int, memories: Sequence[tuple[str, str]]) -> None:
        receipt = await self._client.publish_tick(WORLD, tick, decisions(memories))
        if not receipt.confirmed:
            msg = f"a tick was not confirmed ({receipt.reason})"
            raise RuntimeError(msg)
        self._ticks += 1

    async def settled(self) -> None:
        unfinished = (
            "SELECT (SELECT count(*) FROM tick_receipt) < $1"
            " OR EXISTS (SELECT FROM pending_embedding)"
        )
        while True:
            if not await self._database.fetchval(unfinished, self._ticks):
                return
            await asyncio.sleep(_LOOK_S)

    async def rested(self) -> None:
        await rested(self._given.database_url)

    async def plan(self, agent: str, observation: str) -> tuple[str, int] | None:
        answer = await self._client.recall(
            WORLD, agent, observation, tick=LAST_TICK, timeout_s=60.0, explain=True, **self._asked
        )
        how = answer.explain
        return (how["plan"], how["scored"]) if how is not None else None

    async def recall(self, agent: str, observation: str, *, patient: bool) -> list[str]:
        options: dict[str, Any] = {**self._asked, **({"timeout_s": 60.0} if patient else {})}
        answer = await self._client.recall(WORLD, agent, observation, tick=LAST_TICK, **options)
        return [memory["content"] for memory in answer.memories]


@asynccontextmanager
async def opened(given: Given) -> AsyncIterator[_Memory]:
    database = await asyncpg.connect(given.database_url)
    try:
        async with MemoryClient(given.amqp_url) as client:
            yield _Memory(client, database, given)
    finally:
        await database.close()


if __name__ == "__main__":
    drive(opened)
