"""A provider whose calls are counted: how long, how many tokens, what they cost, why not."""

from __future__ import annotations

import time
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram

from tickmind.embedding import Provider, Reply, Unmetered
from tickmind.errors import (
    ConfigurationError,
    EmbeddingFailed,
    EmbeddingUnavailable,
    TextRefused,
    TickmindError,
)
from tickmind.metering import begin_at_zero
from tickmind.pieces import estimate_tokens
from tickmind.settings import EmbeddingSettings
from tickmind.tracing import exemplar

__all__ = ["CallMeters", "MeasuredProvider", "measured"]

#: Hosted APIs take 0.2 to 0.5 s, local servers from 5 ms on, and the longest time-out is 600 s.
_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


_KINDS = ("network", "server", "rate_limit", "quota", "text", "answer", "refused")


class CallMeters:
    """What calls of one process to embedding APIs come to."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seconds = Histogram(
            "tickmind_embedding_call_seconds",
            "Calls to the embedding API, answered or not",
            buckets=_BUCKETS,
            registry=registry,
        )
        self.errors = Counter(
            "tickmind_embedding_errors",
            "Calls without vectors: network, server, rate_limit, quota; text, answer, refused",
            ["kind"],
            registry=registry,
        )
        begin_at_zero(self.errors, _KINDS)
        self.inputs = Counter(
            "tickmind_embedding_inputs",
            "Texts and pieces of texts that vectors came for",
            registry=registry,
        )
        self.tokens = Counter(
            "tickmind_embedding_tokens",
            "Their tokens, as the provider counts them, else as estimated",
            registry=registry,
        )
        self.cost = Counter(
            "tickmind_embedding_cost_dollars",
            "What they cost by TICKMIND_EMBEDDING_PRICE",
            registry=registry,
        )


class MeasuredProvider(Unmetered):
    """`price`: US dollars per million tokens."""

    def __init__(self, provider: Provider, meters: CallMeters, *, price: float) -> None:
        self._provider = provider
        self._meters = meters
        self._price = price

    async def call(self, texts: Sequence[str]) -> Reply:
        begun = time.perf_counter()
        try:
            reply = await self._provider.call(texts)
        except TickmindError as exc:
            self._meters.errors.labels(_kind(exc)).inc()
            raise
        finally:
            self._meters.seconds.observe(time.perf_counter() - begun, exemplar())
        tokens = reply.tokens
        if tokens is None:
            tokens = sum(map(estimate_tokens, texts))
        self._meters.inputs.inc(len(texts))
        self._meters.tokens.inc(tokens)
        self._meters.cost.inc(tokens * self._price / 1_000_000)
        return reply

    async def fault(self) -> str | None:
        return await self._provider.fault()

    async def close(self) -> None:
        await self._provider.close()


def measured(
    provider: Provider, meters: CallMeters | None, settings: EmbeddingSettings
) -> Provider:
    """The provider, counted; made-up vectors are no calls."""
    if meters is None or settings.embedding_provider == "hash":
        return provider
    return MeasuredProvider(provider, meters, price=settings.embedding_price)


def _kind(exc: TickmindError) -> str:
    """The kind of failure, in a word."""
    if isinstance(exc, EmbeddingUnavailable):
        return exc.kind
    for kind, error in (
        ("text", TextRefused),
        ("answer", EmbeddingFailed),
        ("refused", ConfigurationError),
    ):
        if isinstance(exc, error):
            return kind
    return exc.reason
