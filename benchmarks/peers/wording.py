"""What tickmind is told, in process and over the queue alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.peers.driving import RESULTS, Given

__all__ = ["LAST_TICK", "WORLD", "asked", "decisions", "embedding_settings"]

WORLD = "bench"
#: After every tick that is written.
LAST_TICK = 1_000_000


def asked(given: Given) -> dict[str, Any]:
    """Options of a recall: the nearest by cosine, as the others are asked for (`relevance`), or
    the default, which also weighs when and how important (`blended`)."""
    return {"k": RESULTS, "ranking": given.ranking}


def decisions(memories: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """One tick's memories (agent, text) as decisions that are remembered word for word."""
    return [{"agent": agent, "action": "observe", "text": text} for agent, text in memories]


def embedding_settings(given: Given) -> dict[str, Any]:
    """The provider that everyone uses, as OpenAI's own, without limits to keep."""
    return {
        "embedding_profile": "text-embedding-3-small",
        "embedding_base_url": given.embedding_url,
        "embedding_model": given.model,
        "embedding_dimensions": given.dimensions,
        "embedding_limits": "",
    }
