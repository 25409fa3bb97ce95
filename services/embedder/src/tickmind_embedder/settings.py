"""What the embedder can be told."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tickmind.settings import (
    MOST,
    BrokerSettings,
    DatabaseSettings,
    EmbeddingSettings,
    HealthSettings,
)

__all__ = ["EmbedderSettings"]


class EmbedderSettings(DatabaseSettings, BrokerSettings, EmbeddingSettings, HealthSettings):
    """The embedder's settings: database, broker, provider, health, and its pace."""

    embedder_concurrency: Annotated[int, Field(ge=1, le=64)] = Field(
        2, description="API calls under way at once in this process"
    )
    embedder_lease_s: Annotated[float, Field(gt=1, le=3600)] = Field(
        120.0, description="a batch whose worker died is free again after this long"
    )
    embedder_max_attempts: Annotated[int, Field(ge=1, le=100)] = Field(
        5, description="a text is parked after this many attempts that were its own fault"
    )
    embedder_sweep_s: Annotated[float, Field(gt=0, le=600)] = Field(
        2.0, description="pending texts are looked for this often, hints or none"
    )
    embedder_collect_s: Annotated[float, Field(ge=0, le=MOST)] = Field(
        3600.0, description="when idle, vectors no memory uses are deleted this often; 0: never"
    )
    embedder_listen: bool = Field(True, description="false: no hints from the broker, sweep only")
    embedder_signatures_from: Annotated[int, Field(ge=0, le=MOST)] = Field(
        8192,
        description="distinct vectors from which a space is given signatures, in the background;"
        " 0: only by `tickmind space reindex`",
    )
