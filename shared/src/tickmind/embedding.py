"""Texts to vectors: of any length, through whichever provider the embedding space has."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Literal, Protocol, Self

import numpy as np

from tickmind.clean import is_blank
from tickmind.embedding_api import CallFailed, OpenAIProvider, Vectors
from tickmind.errors import TextRefused
from tickmind.hashed import hash_embed_many
from tickmind.pieces import fit, pool, split
from tickmind.settings import EmbeddingSettings
from tickmind.store.spaces import Space

__all__ = [
    "CallFailed",
    "Embedder",
    "HashProvider",
    "OpenAIProvider",
    "Provider",
    "Purpose",
    "Vectors",
    "space_of",
]

Purpose = Literal["document", "query"]

#: A piece this short that is refused is refused for what it says, not for its length: it is half
#: of the shortest limit in common use (512 tokens of e5 and its kin) at a token a character.
_SMALLEST_CHARS = 250


class Provider(Protocol):
    """One call: texts in, vectors out."""

    async def call(self, texts: Sequence[str]) -> Vectors:
        """Embed texts, none blank: (len(texts), w) float32, row i for text i, w what it gives.

        Raises EmbeddingUnavailable (try again; CallFailed where a text may be the cause),
        TextRefused (one of these texts is not taken), EmbeddingFailed (the answer breaks its
        contract) or ConfigurationError (key, model).
        """
        ...

    async def fault(self) -> str | None:
        """Why it cannot be reached, in one sentence; None: it answers. Costs nothing."""
        ...

    async def close(self) -> None: ...


class HashProvider:
    """Vectors from hashes, for load tests: real shapes, no meaning, no call, no cost."""

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions

    async def call(self, texts: Sequence[str]) -> Vectors:
        return hash_embed_many(texts, self._dimensions)

    async def fault(self) -> str | None:
        return None

    async def close(self) -> None:
        pass


def space_of(settings: EmbeddingSettings) -> Space:
    """The embedding space these settings name."""
    return Space(
        model=settings.embedding_model if settings.embedding_provider == "openai" else "hash",
        dimensions=settings.embedding_dimensions,
        document_prefix=settings.embedding_document_prefix,
        query_prefix=settings.embedding_query_prefix,
    )


class Embedder:
    """Texts of any length into one space: prefixed, cut into pieces, checked, pooled."""

    def __init__(self, settings: EmbeddingSettings, provider: Provider | None = None) -> None:
        """Raises ConfigurationError for settings that no text could be embedded with."""
        self.space = space_of(settings)
        self.max_inputs = settings.embedding_max_inputs
        self._max_chars = settings.embedding_max_chars
        self._overlap_chars = settings.embedding_overlap_chars
        self.inputs_of("")  # bounds that make no pieces are told now
        self._provider = provider or (
            HashProvider(self.space.dimensions)
            if settings.embedding_provider == "hash"
            else OpenAIProvider(settings)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._provider.close()

    async def fault(self) -> str | None:
        """Why the provider cannot be reached, in one sentence; None: it answers."""
        return await self._provider.fault()

    def inputs_of(self, text: str) -> list[str]:
        """What is sent for one text, without its prefix: itself, or its pieces."""
        return self._pieces(text, self._max_chars, self._overlap_chars)

    def _pieces(self, text: str, max_chars: int, overlap_chars: int) -> list[str]:
        pieces = split(text, max_chars=max_chars, overlap_chars=overlap_chars)
        return [piece for piece in pieces if not is_blank(piece)]

    async def embed(self, texts: Sequence[str], purpose: Purpose) -> Vectors:
        """Vectors of texts, none blank: (len(texts), dimensions) float32, unit length.

        Raises as `Provider.call`; nothing is given of an answer that fails a check. A text alone
        that is refused is tried in smaller requests and smaller pieces before TextRefused is
        raised (at most a dozen calls where it is refused in every form).
        """
        prefix = self.space.document_prefix if purpose == "document" else self.space.query_prefix
        pieces = [self.inputs_of(text) for text in texts]
        if len(pieces) == 1:
            taken, rows = await self._insist(pieces[0], prefix)
            pieces = [taken]
        else:
            rows = await self._call([piece for of_text in pieces for piece in of_text], prefix)
        vectors = np.empty((len(texts), self.space.dimensions), dtype=np.float32)
        first = 0
        for position, of_text in enumerate(pieces):
            part = rows[first : first + len(of_text)]
            first += len(of_text)
            weights = [len(piece) for piece in of_text]
            vectors[position] = part[0] if len(part) == 1 else pool(part, weights)
        return vectors

    async def _call(self, pieces: Sequence[str], prefix: str) -> Vectors:
        """Vectors of pieces, (len(pieces), dimensions), in as many calls as `max_inputs` asks."""
        rows = np.empty((len(pieces), self.space.dimensions), dtype=np.float32)
        for first in range(0, len(pieces), self.max_inputs):
            part = pieces[first : first + self.max_inputs]
            answer = await self._provider.call([prefix + piece for piece in part])
            rows[first : first + len(part)] = fit(answer, self.space.dimensions)
        return rows

    async def _insist(self, pieces: list[str], prefix: str) -> tuple[list[str], Vectors]:
        """Vectors of one text's pieces, and the pieces as they were taken in the end.

        What is refused is sent in smaller requests, then in smaller pieces; what was learned by it
        holds for the rest of the text. The first piece that is refused at the smallest size ends
        it: a text is embedded whole or not.
        """
        taken: list[str] = []
        rows: list[Vectors] = []
        together, refused = self.max_inputs, len(pieces) + self.max_inputs
        while pieces:
            part = pieces[:together]
            try:
                rows.append(await self._call(part, prefix))
            except TextRefused:
                if len(part) > 1:
                    together, refused = len(part) // 2, len(part)
                    continue
                # Not the request's size, then: the piece's own, or what it says.
                size = -(-len(part[0]) // 2)
                if size < _SMALLEST_CHARS:
                    raise
                pieces = [less for piece in pieces for less in self._pieces(piece, size, 0)]
                refused = len(pieces) + self.max_inputs
                continue
            taken += part
            pieces = pieces[len(part) :]
            together = max(1, min(2 * together, refused - 1, self.max_inputs))
        return taken, np.concatenate(rows)
