"""What an embedding provider is and gives, whichever it is: without the client of any."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tickmind.errors import EmbeddingUnavailable

__all__ = ["CallFailed", "Provider", "Reply", "Unmetered", "Vectors"]

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reply:
    """Vectors, (n, w) float32, row i for text i; the tokens the provider counted, if it says."""

    vectors: Vectors
    tokens: int | None = None


class CallFailed(EmbeddingUnavailable):
    """The call broke down on the provider's side (5xx, time-out, a connection or answer cut off).

    An outage, most likely; or one of its texts, which others can show: then it does not pass.
    """


class Provider(Protocol):
    """One call: texts in, vectors out."""

    async def call(self, texts: Sequence[str]) -> Reply:
        """Embed texts, none blank: vectors (len(texts), w), w what it gives.

        Raises EmbeddingUnavailable (try again: ParameterRefused at once; CallFailed where a text
        may be the cause), TextRefused (one of these texts is not taken), EmbeddingFailed (the
        answer breaks its contract) or ProviderRefused (key, model).
        """
        ...

    def batch(self, texts: Sequence[str]) -> AbstractAsyncContextManager[int]:
        """A turn for one call, made within: with how many of these texts, in their order."""
        ...

    async def fault(self) -> str | None:
        """Why it cannot be reached, in one sentence; None: it answers. Costs nothing."""
        ...

    async def close(self) -> None: ...


class Unmetered:
    """A provider that may be called at any time."""

    @asynccontextmanager
    async def batch(self, texts: Sequence[str]) -> AsyncIterator[int]:
        yield len(texts)
