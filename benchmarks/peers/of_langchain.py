"""langchain-postgres' PGVectorStore, as its documentation sets it up.

The pool of SQLAlchemy's defaults (5 and 10 more). The agent is a metadata column, as the
documentation advises for what is filtered by. No vector index: it makes none unless asked, and
searches exactly without. One tick is one call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from langchain_openai import OpenAIEmbeddings
from langchain_postgres import Column, PGEngine, PGVectorStore

from benchmarks.peers.driving import RESULTS, Given, drive


class _Store:
    def __init__(self, store: PGVectorStore) -> None:
        self._store = store

    async def write(self, tick: int, memories: Sequence[tuple[str, str]]) -> None:
        await self._store.aadd_texts(
            [text for _, text in memories],
            metadatas=[{"agent": agent, "tick": tick} for agent, _ in memories],
        )

    async def settled(self) -> None:
        return

    async def rested(self) -> None:
        return

    async def plan(self, agent: str, observation: str) -> None:
        return

    async def recall(self, agent: str, observation: str, *, patient: bool) -> list[str]:
        found = await self._store.asimilarity_search(
            observation, k=RESULTS, filter={"agent": agent}
        )
        return [document.page_content for document in found]


@asynccontextmanager
async def opened(given: Given) -> AsyncIterator[_Store]:
    engine = PGEngine.from_connection_string(
        given.database_url.replace("postgresql://", "postgresql+asyncpg://")
    )
    await engine.ainit_vectorstore_table(
        "memories", given.dimensions, metadata_columns=[Column("agent", "TEXT")]
    )
    embeddings = OpenAIEmbeddings(
        model=given.model,
        base_url=given.embedding_url,
        api_key="none",
        # Else it fetches OpenAI's tokenizer; the documentation has it off for other servers.
        check_embedding_ctx_length=False,
    )
    yield _Store(
        await PGVectorStore.create(engine, embeddings, "memories", metadata_columns=["agent"])
    )


if __name__ == "__main__":
    drive(opened, "langchain-postgres")
