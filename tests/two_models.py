"""Two models of the same width that understand nothing of each other, each on its own server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tickmind.embedding import Reply
from tickmind.embedding_api import OpenAIProvider
from tickmind.hashed import hash_embed
from tickmind.local.provider.running import Provider
from tickmind.serving import ExplicitSettings

__all__ = ["NEW", "OLD", "mirrored", "space_settings", "vector_of"]

OLD, NEW = "old-model", "new-model"


def vector_of(model: str, text: str, dimensions: int = 64) -> NDArray[np.float32]:
    """What the model thinks of a text: the new one's vectors are the old one's, backwards."""
    vector = hash_embed(text, dimensions)
    return vector[::-1] if model == NEW else vector


def mirrored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every answer to a call for the new model turned into its vectors."""
    call = OpenAIProvider.call

    async def turned(self: OpenAIProvider, texts: Sequence[str]) -> Reply:
        reply = await call(self, texts)
        if self._body["model"] != NEW:
            return reply
        return replace(reply, vectors=np.ascontiguousarray(reply.vectors[:, ::-1]))

    monkeypatch.setattr(OpenAIProvider, "call", turned)


def space_settings(model: str, provider: Provider, **options: Any) -> ExplicitSettings:
    """How a model's space is reached; vectors of 64, no limit."""
    given: dict[str, Any] = {
        "embedding_profile": "openai-compatible",
        "embedding_base_url": provider.base_url,
        "embedding_model": model,
        "embedding_dimensions": 64,
    }
    return ExplicitSettings(**(given | options))
