"""The OpenAI-compatible embedding API: one call, and every check of what it answers."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
from collections.abc import Container, Sequence
from datetime import UTC, datetime
from typing import Any

import httpx2
import numpy as np
import openai
from opentelemetry.trace import Span
from pydantic_core import from_json

from tickmind.bounded_answers import BoundedClient, most_bytes
from tickmind.errors import (
    ConfigurationError,
    EmbeddingFailed,
    EmbeddingUnavailable,
    ParameterRefused,
    TextRefused,
    TickmindError,
)
from tickmind.providers import CallFailed, Reply, Unmetered, Vectors
from tickmind.refusals import error_in, refusal, refused_parameter
from tickmind.settings import EmbeddingSettings
from tickmind.telemetry import log
from tickmind.tracing import SpanKind, span

__all__ = ["OpenAIProvider", "read_reply"]

_logger = logging.getLogger("tickmind.embedding")

#: More than any request holds: what says more has not counted.
_MOST_TOKENS = 2**31 - 1

#: Longest wait for a sign of life: a readiness probe gives up after a few seconds.
_REACHABLE_S = 2.0


class OpenAIProvider(Unmetered):
    """Any endpoint that speaks OpenAI's POST /embeddings. Never retries: the caller knows when."""

    def __init__(self, settings: EmbeddingSettings) -> None:
        """Raises ConfigurationError for a URL or key that no request can hold."""
        key = settings.embedding_api_key.get_secret_value()
        if not key.isascii():
            msg = "TICKMIND_EMBEDDING_API_KEY holds a character that no HTTP header can: paste it"
            raise ConfigurationError(f"{msg} again")
        try:
            url = httpx2.URL(settings.embedding_base_url)
        except httpx2.InvalidURL:
            url = httpx2.URL()
        if url.scheme not in ("http", "https") or not url.host:
            msg = "TICKMIND_EMBEDDING_BASE_URL must look like https://host/v1"
            raise ConfigurationError(msg)
        self._host = url.netloc.decode()
        self._timeout_s = settings.embedding_timeout_s
        self._called = _attributes(url, settings.embedding_model)
        self._client = openai.AsyncOpenAI(
            # Local servers take any key, and the SDK takes no empty one.
            api_key=key or "none",
            base_url=settings.embedding_base_url,
            max_retries=0,
            timeout=settings.embedding_timeout_s,
            http_client=BoundedClient(most=most_bytes(settings.embedding_max_inputs)),
        )
        self._body: dict[str, Any] = {"model": settings.embedding_model}
        if settings.embedding_encoding_format != "omit":
            self._body["encoding_format"] = settings.embedding_encoding_format
        if settings.embedding_send_dimensions:
            self._body["dimensions"] = settings.embedding_dimensions

    async def call(self, texts: Sequence[str]) -> Reply:
        with span("POST /embeddings", kind=SpanKind.CLIENT, attributes=self._called) as current:
            return await self._call(texts, current)

    async def _call(self, texts: Sequence[str], current: Span) -> Reply:
        body = {**self._body, "input": list(texts)}
        current.set_attribute("tickmind.texts", len(texts))
        try:
            # The client's own timeout begins anew with each byte of a dripping answer.
            async with asyncio.timeout(self._timeout_s):
                # The raw reply: the SDK's own model drops what a check needs (a missing index, an
                # error body under status 200).
                response = await self._client.post(
                    "/embeddings", body=body, cast_to=httpx2.Response
                )
        except openai.APIStatusError as exc:
            current.set_attribute("http.response.status_code", exc.status_code)
            raise self._refused(exc.status_code, exc.response, texts, body) from exc
        except (TimeoutError, openai.APITimeoutError) as exc:
            msg = f"the embedding API did not answer within {self._timeout_s:g} s"
            raise CallFailed(msg) from exc
        except (openai.APIError, httpx2.HTTPError) as exc:
            cause = type(exc.__cause__ or exc).__name__
            msg = f"the connection to the embedding API at {self._host} failed ({cause})"
            raise CallFailed(msg) from exc
        current.set_attribute("http.response.status_code", response.status_code)
        # Looked for first: reading an answer of a hundred vectors twice takes longer than the rest.
        error = error_in(response.content) if b'"error"' in response.content else None
        code = error.get("code") if error else None
        if isinstance(code, int) and code >= 400:  # an error under status 200
            raise self._refused(code, response, texts, body)
        reply = read_reply(response.content, expected=len(texts))
        if reply.tokens is not None:
            current.set_attribute("gen_ai.usage.input_tokens", reply.tokens)
        return reply

    def _refused(
        self, status: int, response: httpx2.Response, texts: Sequence[str], sent: Container[str]
    ) -> TickmindError:
        """What an answer other than vectors stands for; `sent`: the fields of the request."""
        now = datetime.now(UTC)
        error = refusal(
            status, response.headers, response.content, sent=len(texts), texts=texts, now=now
        )
        if isinstance(error, EmbeddingUnavailable) and error.kind == "server":
            return CallFailed(str(error), kind="server", retry_after_s=error.retry_after_s)
        if isinstance(error, TextRefused):
            name = refused_parameter(response.content, texts)
            # Both can be done without: either format is read, and a width is made here.
            if name is not None and name in sent:
                if self._body.pop(name, None) is not None:
                    log(_logger, logging.WARNING, "parameter_left_out", parameter=name)
                return ParameterRefused(f"the embedding API does not take {name}: left out now")
        return error

    async def fault(self) -> str | None:
        try:
            async with asyncio.timeout(_REACHABLE_S):
                await self._client.get("/models", cast_to=httpx2.Response)
        except openai.APIStatusError:
            return None  # a refusal is an answer: not every server lists its models
        except (TimeoutError, openai.APIError, httpx2.HTTPError, RuntimeError) as exc:
            cause = type(exc.__cause__ or exc).__name__  # RuntimeError: we are closed already
            return f"the embedding API at {self._host} cannot be reached ({cause})"
        return None

    async def close(self) -> None:
        await self._client.close()


def _read_json(body: bytes) -> Any:
    """Ten times as fast as Python's own reader, which takes some bodies (a byte-order mark) that
    this one does not. Raises ValueError, RecursionError."""
    try:
        return from_json(body)
    except ValueError:
        return json.loads(body)


def _attributes(url: httpx2.URL, model: str) -> dict[str, str | int]:
    """Of a call's span, by the conventions for HTTP clients and for models."""
    shown = url.copy_with(username=None, password=None, query=None, fragment=None)
    return {
        "http.request.method": "POST",
        "url.full": f"{str(shown).rstrip('/')}/embeddings",
        "server.address": url.host,
        "server.port": url.port or (443 if url.scheme == "https" else 80),
        "gen_ai.operation.name": "embeddings",
        "gen_ai.request.model": model,
    }


def _usage(reply: Any) -> int | None:
    """Tokens that the provider says it counted."""
    usage = reply.get("usage") if isinstance(reply, dict) else None
    if not isinstance(usage, dict):
        return None
    for name in ("total_tokens", "prompt_tokens"):
        tokens = usage.get(name)
        if type(tokens) is int and 0 < tokens <= _MOST_TOKENS:
            return tokens
    return None


def read_reply(body: bytes, *, expected: int) -> Reply:
    """Vectors of a reply, (expected, w) float32, in the order of the texts.

    Paired by `index`; where it is missing or null, by position, and where one alone is missing, by
    what is left (Gemini leaves out index 0, wherever it stands). Raises EmbeddingFailed for another
    count, indices that are no permutation, uneven widths, or what is no number: such a reply is
    worth nothing as a whole, since no vector in it can be trusted to belong to its text. Raises
    CallFailed for what is no reply at all: a proxy's page, an error under status 200.
    """
    try:
        reply = _read_json(body)
    except (ValueError, RecursionError) as exc:
        msg = "the embedding API's answer is not JSON"
        raise CallFailed(msg) from exc
    data = reply.get("data") if isinstance(reply, dict) else None
    if not isinstance(data, list):
        msg = "the embedding API's answer has no data"
        raise CallFailed(msg)
    if len(data) != expected:
        msg = f"the embedding API sent {len(data)} vectors for {expected} texts"
        raise EmbeddingFailed(msg)
    vectors: dict[int, Vectors] = {}
    for position, (index, item) in enumerate(zip(_indices(data), data, strict=True)):
        vectors[index] = _row(item.get("embedding"), position)
    widths = {len(row) for row in vectors.values()}
    if len(widths) > 1:
        msg = f"the vectors of the answer have different widths: {sorted(widths)}"
        raise EmbeddingFailed(msg)
    return Reply(
        vectors=np.stack([vectors[index] for index in range(expected)]), tokens=_usage(reply)
    )


def _indices(data: Sequence[Any]) -> list[int]:
    """Which text each item belongs to. Raises EmbeddingFailed unless they are each text once."""
    indices: list[Any] = []
    for position, item in enumerate(data):
        if not isinstance(item, dict):
            msg = f"vector {position} of the answer is not an object"
            raise EmbeddingFailed(msg)
        indices.append(item.get("index"))
    if indices.count(None) == 1:
        known = {index for index in indices if type(index) is int}
        left = [index for index in range(len(data)) if index not in known]
        indices[indices.index(None)] = left[0] if left else None
    indices = [place if index is None else index for place, index in enumerate(indices)]
    if any(type(index) is not int for index in indices) or set(indices) != set(range(len(data))):
        msg = f"the indices of the answer are not 0..{len(data) - 1}, each once"
        raise EmbeddingFailed(msg)
    return indices


def _row(value: Any, position: int) -> Vectors:
    """One vector, given as numbers or as base64 of little-endian float32, whichever was asked."""
    msg = f"vector {position} of the answer is neither numbers nor base64 of float32"
    try:
        if isinstance(value, str):
            row = np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4")
            return row.astype(np.float32)
        row = np.asarray(value)
    except (binascii.Error, ValueError) as exc:
        raise EmbeddingFailed(msg) from exc
    if row.ndim != 1 or row.dtype.kind not in "iuf":  # words, null, numbers beyond any float
        raise EmbeddingFailed(msg)
    with np.errstate(over="ignore"):  # too large for float32: infinite, which no check lets pass
        return row.astype(np.float32)
