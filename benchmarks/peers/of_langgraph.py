"""LangGraph's AsyncPostgresStore, as its documentation sets it up.

A pool of 5 to 20 connections (the documentation's example), the index of its defaults (HNSW on
cosine, vectors of single precision), each agent a namespace. One tick is one batch of puts.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from langchain_openai import OpenAIEmbeddings
from langgraph.store.base import PutOp
from langgraph.store.postgres import AsyncPostgresStore

from benchmarks.peers.driving import RESULTS, Given, drive


class _Store:
    def __init__(self, store: AsyncPostgresStore) -> None:
        self._store = store
        self._numbers = itertools.count()

    async def write(self, tick: int, memories: Sequence[tuple[str, str]]) -> None:
        await self._store.abatch(
            [
                PutOp(("memories", agent), str(next(self._numbers)), {"text": text, "tick": tick})
                for agent, text in memories
            ]
        )

    async def settled(self) -> None:
        return

    async def rested(self) -> None:
        return

    async def plan(self, agent: str, observation: str) -> None:
        return

    async def recall(self, agent: str, observation: str, *, patient: bool) -> list[str]:
        found = await self._store.asearch(("memories", agent), query=observation, limit=RESULTS)
        return [item.value["text"] for item in found]


@asynccontextmanager
async def opened(given: Given) -> AsyncIterator[_Store]:
    embeddings = OpenAIEmbeddings(
        model=given.model,
        base_url=given.embedding_url,
        api_key="none",
        # Else it fetches OpenAI's tokenizer; the documentation has it off for other servers.
        check_embedding_ctx_length=False,
    )
    async with AsyncPostgresStore.from_conn_string(
        given.database_url,
        pool_config={"min_size": 5, "max_size": 20},
        index={"dims": given.dimensions, "embed": embeddings, "fields": ["text"]},
    ) as store:
        await store.setup()
        yield _Store(store)


if __name__ == "__main__":
    drive(opened, "langgraph-checkpoint-postgres")
