"""A retriever's handler driven by hand, without a broker."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from tickmind.database import Database
from tickmind.messages import RecallReply
from tickmind.settings import DatabaseSettings
from tickmind_retriever.handler import Handler
from tickmind_retriever.metrics import Metrics
from tickmind_retriever.ranking import load_ranking
from tickmind_retriever.settings import RetrieverSettings
from tickmind_retriever.spaces import Spaces

__all__ = ["Retriever", "body", "contents", "retriever_settings", "retrieving"]


def retriever_settings(
    database: DatabaseSettings, base_url: str | None = None, **options: Any
) -> RetrieverSettings:
    """Settings of a retriever on vectors of 64, from hashes or from `base_url`."""
    given: dict[str, Any] = {
        "database_url": database.database_url,
        "embedding_dimensions": 64,
        "embedding_provider": "hash" if base_url is None else "openai",
        "embedding_model": "test",
        "health_port": 0,
    }
    if base_url is not None:
        given["embedding_base_url"] = base_url
    return RetrieverSettings(**(given | options))


def body(*queries: tuple[Any, Any], **options: Any) -> bytes:
    """A request for (agent, observation) each, in the world `town` at tick 100."""
    asked = [{"agent": agent, "observation": observation} for agent, observation in queries]
    request = {"world": "town", "tick": 100, "queries": asked, "deadline_ms": 5000}
    return json.dumps(request | options).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Retriever:
    """A handler with what a test asks it for."""

    handler: Handler
    registry: CollectorRegistry
    spaces: Spaces

    async def recall(self, *queries: tuple[Any, Any], **options: Any) -> RecallReply:
        reply = await self.handler.recall(body(*queries, **options))
        assert reply is not None
        return reply

    def counted(self, status: str, reason: str = "") -> float:
        labels = {"status": status, "reason": reason}
        return self.registry.get_sample_value("tickmind_recalls_total", labels) or 0.0


@asynccontextmanager
async def retrieving(
    database: Database, settings: RetrieverSettings, *, reserve_s: float = 0.0
) -> AsyncIterator[Retriever]:
    registry = CollectorRegistry()
    spaces = Spaces(
        database,
        settings,
        kept=settings.retriever_cached_texts,
        gather_s=settings.retriever_gather_ms / 1000,
    )
    handler = Handler(
        database,
        spaces,
        Metrics(registry),
        ranking=load_ranking(
            settings.retriever_ranking_file, half_life_ticks=settings.retriever_half_life_ticks
        ),
        reserve_s=reserve_s,
        parallel=max(1, settings.database_pool_size - 1),
        signatures_from=settings.retriever_signatures_from,
        audit_one_in=settings.retriever_audit_one_in,
    )
    try:
        yield Retriever(handler=handler, registry=registry, spaces=spaces)
    finally:
        await spaces.close()
        await handler.close()


def contents(reply: RecallReply) -> Sequence[list[str]]:
    """What each agent remembered."""
    return [[memory.content for memory in answer.memories] for answer in reply.replies]
