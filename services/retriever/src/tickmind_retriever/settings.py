"""What the retriever can be told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from tickmind.settings import (
    MOST,
    BrokerSettings,
    DatabaseSettings,
    EmbeddingSettings,
    HealthSettings,
)
from tickmind.store.recall_signature import PAYS_FROM

__all__ = ["RetrieverSettings"]


class RetrieverSettings(DatabaseSettings, BrokerSettings, EmbeddingSettings, HealthSettings):
    """The retriever's settings: database, broker, provider, health, and its ranking."""

    retriever_concurrency: Annotated[int, Field(ge=1, le=1000)] = Field(
        32, description="requests answered at once; the others wait in the queue, where they expire"
    )
    retriever_half_life_ticks: Annotated[float, Field(ge=1e-3, le=1e15, allow_inf_nan=False)] = (
        Field(500.0, description="ticks after which recency has halved")
    )
    retriever_ranking_file: Path | None = Field(
        None, description="half-life, weights, near-duplicates and core memories, by world"
    )
    retriever_reserve_ms: Annotated[int, Field(ge=0, le=1000)] = Field(
        15, description="kept of each deadline for the way back"
    )
    retriever_cached_texts: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        2000, description="vectors of observations kept (6 kB each at 1536 dimensions)"
    )
    retriever_gather_ms: Annotated[int, Field(ge=0, le=1000)] = Field(
        3, description="how long an observation waits for others to share its embedding call"
    )
    retriever_signatures_from: Annotated[int, Field(ge=0, le=MOST)] = Field(
        PAYS_FROM,
        description="an agent of so many memories is ranked by signatures first; 0: none is",
    )
    retriever_audit_one_in: Annotated[int, Field(ge=0, le=MOST)] = Field(
        100,
        description="of recalls ranked by signatures one in so many is checked against the exact"
        " ranking, when idle; 0: none is",
    )
