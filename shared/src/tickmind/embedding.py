"""Texts to vectors: of any length, through whichever provider the embedding space has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Literal, Self

import numpy as np

from tickmind.caps import RequestCaps
from tickmind.clean import is_blank
from tickmind.errors import ConfigurationError, ParameterRefused, TextRefused
from tickmind.hashed import hash_embed_many
from tickmind.pieces import estimate_tokens, fit, pool, split
from tickmind.providers import CallFailed, Provider, Reply, Unmetered, Vectors
from tickmind.serving import space_of
from tickmind.settings import EmbeddingSettings

__all__ = [
    "CallFailed",
    "Embedder",
    "HashProvider",
    "Provider",
    "Purpose",
    "Reply",
    "Unmetered",
    "Vectors",
    "provider_of",
    "space_of",
]

Purpose = Literal["document", "query"]

#: A piece this short that is refused is refused for what it says, not for its length: it is half
#: of the shortest limit in common use (512 tokens of e5 and its kin) at a token a character.
_SMALLEST_CHARS = 250
#: More tokens than any character is estimated at: four bytes, half a token each.
_MOST_TOKENS = 2


class HashProvider(Unmetered):
    """Vectors from hashes, for load tests: real shapes, no meaning, no call, no cost."""

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions

    async def call(self, texts: Sequence[str]) -> Reply:
        return Reply(vectors=hash_embed_many(texts, self._dimensions))

    async def fault(self) -> str | None:
        return None

    async def close(self) -> None:
        pass


def provider_of(settings: EmbeddingSettings) -> Provider:
    """The provider these settings name. Raises ConfigurationError for what no request can hold."""
    if settings.embedding_provider == "hash":
        return HashProvider(settings.embedding_dimensions)
    # Its SDK takes longer to import than the rest of a service: whoever calls no API is spared it.
    from tickmind.embedding_api import OpenAIProvider

    return OpenAIProvider(settings)


class Embedder:
    """Texts of any length into one space: prefixed, cut into pieces, checked, pooled."""

    def __init__(self, settings: EmbeddingSettings, provider: Provider | None = None) -> None:
        """Raises ConfigurationError for settings that no text could be embedded with."""
        self.space = space_of(settings)
        self._caps = RequestCaps(
            inputs=settings.embedding_max_inputs,
            tokens=settings.embedding_max_tokens,
            size=settings.embedding_max_bytes,
        )
        self._max_chars = settings.embedding_max_chars
        # A prefix takes its share.
        prefixes = (self.space.document_prefix, self.space.query_prefix)
        spare = settings.embedding_max_text_tokens - max(map(estimate_tokens, prefixes))
        self._max_text_tokens = max(1, spare) if settings.embedding_max_text_tokens else 0
        self._overlap_chars = settings.embedding_overlap_chars
        if self._overlap_chars > self._max_chars // 2:
            msg = (
                f"TICKMIND_EMBEDDING_OVERLAP_CHARS is {self._overlap_chars}: at most half of"
                f" TICKMIND_EMBEDDING_MAX_CHARS ({self._max_chars}) makes pieces"
            )
            raise ConfigurationError(msg)
        self._provider = provider or provider_of(settings)

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

    @property
    def max_inputs(self) -> int:
        """Most inputs of one request, as far as is known."""
        return self._caps.inputs

    def inputs_of(self, text: str) -> list[str]:
        """What is sent for one text, without its prefix: itself, or its pieces."""
        return self._pieces(text, self._max_chars, self._overlap_chars)

    def _pieces(self, text: str, max_chars: int, overlap_chars: int) -> list[str]:
        pieces = split(text, max_chars=max_chars, overlap_chars=overlap_chars)
        if self._max_text_tokens:
            pieces = [part for piece in pieces for part in self._short_enough(piece)]
        return [piece for piece in pieces if not is_blank(piece)]

    def _short_enough(self, piece: str) -> list[str]:
        """A piece, or parts of it that the model takes whole; many cut off the rest in silence."""
        tokens = estimate_tokens(piece) if len(piece) * _MOST_TOKENS > self._max_text_tokens else 0
        if tokens <= self._max_text_tokens or len(piece) < 2:
            return [piece]
        size = max(1, len(piece) * self._max_text_tokens // tokens)
        parts = split(piece, max_chars=size, overlap_chars=min(self._overlap_chars, size // 4))
        return [short for part in parts for short in self._short_enough(part)]

    def fitting(self, texts: Sequence[str]) -> int:
        """How many of these texts, in their order, one request takes with all their pieces; at
        least one, which may take several requests."""
        return self._caps.fitting(self._measured(text) for text in texts)

    def _measured(self, text: str) -> tuple[int, int, int]:
        """Inputs, tokens and bytes of a text."""
        pieces = self.inputs_of(text)
        # JSON's own marks, and a prefix; what is escaped takes more and is found out.
        extra = len(self.space.document_prefix.encode()) + 4
        size = sum(len(piece.encode(errors="replace")) + extra for piece in pieces)
        return len(pieces), sum(map(estimate_tokens, pieces)), size

    def taken_in_parts(self, texts: Sequence[str]) -> None:
        """A request with these was refused, and each of them taken since: it was too large."""
        measured = [self._measured(text) for text in texts]
        self._caps.too_large(
            inputs=sum(inputs for inputs, _, _ in measured),
            tokens=sum(tokens for _, tokens, _ in measured),
        )

    @asynccontextmanager
    async def turn(self, texts: Sequence[str]) -> AsyncIterator[int]:
        """Wait for a call; with how many of these texts, in their order, it may be made: at least
        one."""
        prefix = self.space.document_prefix
        inputs = [[prefix + piece for piece in self.inputs_of(text)] for text in texts]
        flat = [piece for of_text in inputs for piece in of_text][: self.max_inputs]
        async with self._provider.batch(flat) as room:
            count = 0
            for of_text in inputs:
                room -= len(of_text)
                if room < 0:
                    break
                count += 1
            yield max(1, count)

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
        """Vectors of pieces, (len(pieces), dimensions), in as many calls as are needed."""
        rows = np.empty((len(pieces), self.space.dimensions), dtype=np.float32)
        first = 0
        while first < len(pieces):
            part = pieces[first : first + self._caps.inputs]
            try:
                reply = await self._provider.call([prefix + piece for piece in part])
            except ParameterRefused:
                continue
            except TextRefused as exc:
                if exc.max_inputs is not None:
                    self._caps.take_at_most(exc.max_inputs)
                raise
            rows[first : first + len(part)] = fit(reply.vectors, self.space.dimensions)
            self._caps.passed(inputs=len(part), tokens=sum(map(estimate_tokens, part)))
            first += len(part)
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
            except TextRefused as exc:
                if exc.max_inputs is not None and exc.max_inputs < len(part):
                    together, refused = exc.max_inputs, exc.max_inputs + 1
                    continue  # what one request takes is known now
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
