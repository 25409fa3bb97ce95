"""What the recorder can be told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from tickmind.settings import BrokerSettings, DatabaseSettings, HealthSettings

__all__ = ["RecorderSettings"]


class RecorderSettings(DatabaseSettings, BrokerSettings, HealthSettings):
    """The recorder's settings: database, broker, health, and its batches."""

    recorder_policy_file: Path | None = Field(
        None, description="what is worth remembering (YAML); none: the policy that ships"
    )
    recorder_batch_decisions: Annotated[int, Field(ge=1, le=100_000)] = Field(
        1000, description="a batch is stored once it holds this many decisions"
    )
    recorder_batch_ms: Annotated[int, Field(ge=0, le=60_000)] = Field(
        20, description="or once its first message has waited this long"
    )
    recorder_prefetch: Annotated[int, Field(ge=1, le=10_000)] = Field(
        400, description="messages held unacknowledged; bounds memory (1 MiB each at the most)"
    )
