"""Texts to vectors: the provider behind the embedding space, and every check of what it answers."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import httpx2
import numpy as np
import openai
from numpy.typing import NDArray

from tickmind.errors import (
    ConfigurationError,
    EmbeddingFailed,
    EmbeddingUnavailable,
    TextRefused,
)
from tickmind.hashed import hash_embed_many
from tickmind.pieces import fit, pool, split
from tickmind.settings import EmbeddingSettings
from tickmind.store.spaces import Space

__all__ = ["Embedder", "HashProvider", "OpenAIProvider", "Provider", "space_of"]

Vectors = NDArray[np.float32]
Purpose = Literal["document", "query"]


class Provider(Protocol):
    """One call: texts in, vectors out."""

    async def call(self, texts: Sequence[str]) -> Vectors:
        """Embed texts, none blank: (len(texts), w) float32, row i for text i, w what it gives.

        Raises EmbeddingUnavailable (try again), TextRefused (one of these texts is not taken),
        EmbeddingFailed (the answer breaks its contract) or ConfigurationError (key, model).
        """
        ...

    async def close(self) -> None: ...


class HashProvider:
    """Vectors from hashes, for load tests: real shapes, no meaning, no call, no cost."""

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions

    async def call(self, texts: Sequence[str]) -> Vectors:
        return hash_embed_many(texts, self._dimensions)

    async def close(self) -> None:
        pass


class OpenAIProvider:
    """Any endpoint that speaks OpenAI's POST /embeddings. Never retries: the caller knows when."""

    def __init__(self, settings: EmbeddingSettings) -> None:
        key = settings.embedding_api_key.get_secret_value()
        self._client = openai.AsyncOpenAI(
            # Local servers take any key, and the SDK takes no empty one.
            api_key=key or "none",
            base_url=settings.embedding_base_url,
            max_retries=0,
            timeout=settings.embedding_timeout_s,
        )
        self._body: dict[str, Any] = {"model": settings.embedding_model}
        if settings.embedding_encoding_format != "omit":
            self._body["encoding_format"] = settings.embedding_encoding_format
        if settings.embedding_send_dimensions:
            self._body["dimensions"] = settings.embedding_dimensions

    async def call(self, texts: Sequence[str]) -> Vectors:
        try:
            # The raw reply: the SDK's own model drops what a check needs (a missing index, an
            # error body under status 200).
            response = await self._client.post(
                "/embeddings",
                body={**self._body, "input": list(texts)},
                cast_to=httpx2.Response,
            )
        except openai.APIStatusError as exc:
            raise _refused(exc) from exc
        except openai.APIError as exc:
            msg = f"the embedding API did not answer: {type(exc).__name__}"
            raise EmbeddingUnavailable(msg) from exc
        except httpx2.HTTPError as exc:  # while reading the body
            msg = f"the embedding API broke off its answer: {type(exc).__name__}"
            raise EmbeddingUnavailable(msg) from exc
        return read_vectors(response.content, expected=len(texts))

    async def close(self) -> None:
        await self._client.close()


def _refused(exc: openai.APIStatusError) -> Exception:
    status = exc.status_code
    if status in (400, 413, 422):
        return TextRefused(f"the embedding API refused the request ({status})")
    if status in (401, 403, 404):
        hint = "check TICKMIND_EMBEDDING_API_KEY, _BASE_URL and _MODEL"
        return ConfigurationError(f"the embedding API refused us ({status}): {hint}")
    return EmbeddingUnavailable(
        f"the embedding API answered {status}", retry_after_s=_retry_after(exc.response)
    )


def _retry_after(response: httpx2.Response) -> float | None:
    """Seconds the provider asked to wait, where it said so as a number."""
    for header, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(response.headers[header]) * scale
        except (KeyError, ValueError):
            continue
        if 0 <= seconds < 86_400:
            return seconds
    return None


def read_vectors(body: bytes, *, expected: int) -> Vectors:
    """Vectors of a reply, (expected, w) float32, in the order of the texts.

    Paired by `index`, by position where it is missing (Gemini leaves out index 0). Raises
    EmbeddingFailed for another count, indices that are no permutation, uneven widths, or what is
    no number: such a reply is worth nothing as a whole, since no vector in it can be trusted to
    belong to its text.
    """
    try:
        reply = json.loads(body)
    except ValueError as exc:
        msg = "the embedding API's answer is not JSON"
        raise EmbeddingUnavailable(msg) from exc  # a proxy's page, most likely
    data = reply.get("data") if isinstance(reply, dict) else None
    if not isinstance(data, list):
        msg = "the embedding API's answer has no data"
        raise EmbeddingUnavailable(msg)
    if len(data) != expected:
        msg = f"the embedding API sent {len(data)} vectors for {expected} texts"
        raise EmbeddingFailed(msg)
    rows: list[Vectors | None] = [None] * expected
    for position, item in enumerate(data):
        if not isinstance(item, dict):
            msg = f"vector {position} of the answer is not an object"
            raise EmbeddingFailed(msg)
        index = item.get("index", position)
        if type(index) is not int or not 0 <= index < expected or rows[index] is not None:
            msg = f"the indices of the answer are not 0..{expected - 1}, each once"
            raise EmbeddingFailed(msg)
        rows[index] = _row(item.get("embedding"), position)
    widths = {len(row) for row in rows if row is not None}
    if len(widths) > 1:
        msg = f"the vectors of the answer have different widths: {sorted(widths)}"
        raise EmbeddingFailed(msg)
    return np.stack([row for row in rows if row is not None])


def _row(value: Any, position: int) -> Vectors:
    """One vector, given as numbers or as base64 of little-endian float32, whichever was asked."""
    try:
        if isinstance(value, str):
            row = np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4")
            return row.astype(np.float32)
        row = np.asarray(value, dtype=np.float32)
    except (binascii.Error, TypeError, ValueError) as exc:
        msg = f"vector {position} of the answer is neither numbers nor base64 of float32"
        raise EmbeddingFailed(msg) from exc
    if row.ndim != 1:
        msg = f"vector {position} of the answer is not a list of numbers"
        raise EmbeddingFailed(msg)
    return row


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
        self.space = space_of(settings)
        self.max_inputs = settings.embedding_max_inputs
        self._max_chars = settings.embedding_max_chars
        self._overlap_chars = settings.embedding_overlap_chars
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

    def inputs_of(self, text: str) -> list[str]:
        """What is sent for one text, without its prefix: itself, or its pieces."""
        pieces = split(text, max_chars=self._max_chars, overlap_chars=self._overlap_chars)
        return [piece for piece in pieces if piece.strip()]

    async def embed(self, texts: Sequence[str], purpose: Purpose) -> Vectors:
        """Vectors of texts, none blank: (len(texts), dimensions) float32, unit length.

        Raises as `Provider.call`; nothing is given of an answer that fails a check.
        """
        prefix = self.space.document_prefix if purpose == "document" else self.space.query_prefix
        pieces = [self.inputs_of(text) for text in texts]
        inputs = [prefix + piece for of_text in pieces for piece in of_text]
        answers = [
            fit(
                await self._provider.call(inputs[first : first + self.max_inputs]),
                self.space.dimensions,
            )
            for first in range(0, len(inputs), self.max_inputs)
        ]
        rows = (
            np.concatenate(answers)
            if answers
            else np.empty((0, self.space.dimensions), dtype=np.float32)
        )
        vectors = np.empty((len(texts), self.space.dimensions), dtype=np.float32)
        first = 0
        for position, of_text in enumerate(pieces):
            part = rows[first : first + len(of_text)]
            first += len(of_text)
            weights = [len(piece) for piece in of_text]
            vectors[position] = part[0] if len(part) == 1 else pool(part, weights)
        return vectors
