"""mem0's AsyncMemory on pgvector with `infer=False`, as its documentation sets it up.

Its defaults: HNSW, a pool of up to 5 connections. Each agent is an `agent_id`. It embeds and
stores one message at a time, so a tick is as many calls at once. `threshold` is 0, its lowest: the
default of .1 is made for real models and would leave out made-up vectors. The language models of
its hybrid search are an extra that is not installed, so words are compared as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from mem0 import AsyncMemory

from benchmarks.peers.driving import RESULTS, Given, drive


class _Memory:
    def __init__(self, memory: AsyncMemory) -> None:
        self._memory = memory

    async def write(self, tick: int, memories: Sequence[tuple[str, str]]) -> None:
        await asyncio.gather(
            *(
                self._memory.add(text, agent_id=agent, metadata={"tick": tick}, infer=False)
                for agent, text in memories
            )
        )

    async def settled(self) -> None:
        return

    async def rested(self) -> None:
        return

    async def plan(self, agent: str, observation: str) -> None:
        return

    async def recall(self, agent: str, observation: str, *, patient: bool) -> list[str]:
        found = await self._memory.search(
            observation, top_k=RESULTS, filters={"agent_id": agent}, threshold=0.0
        )
        return [item["memory"] for item in found["results"]]


@asynccontextmanager
async def opened(given: Given) -> AsyncIterator[_Memory]:
    provider = {"api_key": "none", "openai_base_url": given.embedding_url}
    memory = AsyncMemory.from_config(
        {
            "vector_store": {
                "provider": "pgvector",
                "config": {
                    "connection_string": given.database_url,
                    "embedding_model_dims": given.dimensions,
                },
            },
            "embedder": {"provider": "openai", "config": {"model": given.model, **provider}},
            # Never asked with `infer=False`, but it must be there.
            "llm": {"provider": "openai", "config": provider},
            "history_db_path": str(given.state_dir / "mem0-history.db"),
        }
    )
    # Made at the first use, which fails where several first ones come at once.
    await asyncio.to_thread(memory.vector_store.create_col)
    yield _Memory(memory)


if __name__ == "__main__":
    drive(opened, "mem0ai")
