"""tickmind called in process, as the peers are: recorder, embedder and retriever without a broker.

Default settings. One tick is one message.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from benchmarks.in_process import Recorder, embedding, recording, retrieving
from benchmarks.peers.driving import Given, drive
from benchmarks.peers.resting import rested
from benchmarks.peers.wording import LAST_TICK, WORLD, asked, decisions, embedding_settings
from tickmind.database import Database
from tickmind.messages import AgentReply
from tickmind.topology import tick_ended_key
from tickmind_embedder.settings import EmbedderSettings
from tickmind_recorder.settings import RecorderSettings
from tickmind_retriever.handler import Handler
from tickmind_retriever.settings import RetrieverSettings

_LOOK_S = 0.02


class _Memory:
    def __init__(
        self,
        database: Database,
        recorder: Recorder,
        retriever: Handler,
        given: Given,
    ) -> None:
        self._given = given
        self._asked = asked(given)
        self._database = database
        self._recorder = recorder
        self._retriever = retriever

    async def write(self, tick: int, memories: Sequence[tuple[str, str]]) -> None:
        body = json.dumps({"world": WORLD, "tick": tick, "decisions": decisions(memories)})
        await self._recorder.record(body.encode(), tick_ended_key(WORLD))

    async def settled(self) -> None:
        async with self._database.engine.connect() as connection:
            while (
                await connection.exec_driver_sql("SELECT EXISTS (SELECT FROM pending_embedding)")
            ).scalar_one():
                await connection.rollback()
                await asyncio.sleep(_LOOK_S)

    async def rested(self) -> None:
        await rested(self._given.database_url)

    async def plan(self, agent: str, observation: str) -> tuple[str, int] | None:
        how = (await self._recall(agent, observation, deadline_ms=60_000, explain=True)).explain
        return (how.plan, how.scored) if how is not None else None

    async def recall(self, agent: str, observation: str, *, patient: bool) -> list[str]:
        options = {"deadline_ms": 60_000} if patient else {}
        answer = await self._recall(agent, observation, **options)
        return [memory.content for memory in answer.memories]

    async def _recall(self, agent: str, observation: str, **options: object) -> AgentReply:
        request: dict[str, object] = {
            "world": WORLD,
            "tick": LAST_TICK,
            "queries": [{"agent": agent, "observation": observation}],
            **self._asked,
            **options,
        }
        reply = await self._retriever.recall(json.dumps(request).encode())
        assert reply is not None
        return reply.replies[0]


@asynccontextmanager
async def opened(given: Given) -> AsyncIterator[_Memory]:
    told = {"database_url": given.database_url, **embedding_settings(given)}
    settings = RetrieverSettings(**told)
    writing = Database(settings, application="bench-recorder", vectors=False)
    filling = Database(settings, application="bench-embedder")
    reading = Database(settings, application="bench-retriever", lookups=True)
    try:
        async with (
            embedding(filling, EmbedderSettings(**told)) as lanes,
            recording(
                writing, RecorderSettings(database_url=given.database_url), lanes
            ) as recorder,
            retrieving(reading, settings) as retriever,
        ):
            yield _Memory(reading, recorder, retriever, given)
    finally:
        for database in (writing, filling, reading):
            await database.dispose()


if __name__ == "__main__":
    drive(opened)
