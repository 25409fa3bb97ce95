"""A provider that is only called within the budget; what it says of limits, all replicas learn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar

from tickmind.budget import Budget, Reserved
from tickmind.database import Database
from tickmind.database_errors import DatabaseUnavailable
from tickmind.embedding import Provider, Reply, Unmetered
from tickmind.errors import EmbeddingUnavailable, ParameterRefused, ProviderRefused, TextRefused
from tickmind.settings import EmbeddingSettings
from tickmind.slices import Slices

__all__ = ["MeteredProvider", "SlicedProvider", "metered_for_queries"]

#: A 429 that names no wait: at first, and at most, doubled from one to the next.
_WAIT_FIRST_S, _WAIT_MOST_S = 1.0, 60.0

_prepaid: ContextVar[Reserved | None] = ContextVar("prepaid", default=None)


class _Waits:
    """How long everybody is to stay away after an answer.

    A refused key or model is no such answer: it may be this replica's alone (a key that is being
    replaced, an old setting), which its own pause keeps from calling.
    """

    def __init__(self) -> None:
        self._next_s = _WAIT_FIRST_S

    def after(self, exc: Exception) -> float | None:
        """Seconds; None: nobody need stay away for it."""
        if not isinstance(exc, EmbeddingUnavailable):
            return None
        if exc.kind not in ("rate_limit", "quota"):
            return exc.retry_after_s  # a 503 may tell when it will be over
        if exc.retry_after_s:
            return exc.retry_after_s
        seconds, self._next_s = self._next_s, min(_WAIT_MOST_S, self._next_s * 2)
        return seconds

    def passed(self) -> None:
        self._next_s = _WAIT_FIRST_S


def _kind(exc: Exception) -> str:
    return exc.kind if isinstance(exc, EmbeddingUnavailable) else "unknown"


def _billed(exc: Exception) -> bool:
    """Whether a call that ended so may have been paid for: not where the provider refused it."""
    if isinstance(exc, EmbeddingUnavailable):
        return exc.kind == "network" and not isinstance(exc, ParameterRefused)
    return not isinstance(exc, TextRefused | ProviderRefused)


class MeteredProvider:
    """For documents: every call waits for its turn in the fleet."""

    def __init__(self, provider: Provider, budget: Budget) -> None:
        self._provider = provider
        self._budget = budget
        self._waits = _Waits()

    @contextlib.asynccontextmanager
    async def batch(self, texts: Sequence[str]) -> AsyncIterator[int]:
        """Reserve a call with as many of these texts as there is room for; how many it is.

        The next call within takes it; what is not taken is given back.
        """
        tokens = [self._budget.estimate(text) for text in texts]
        try:
            reserved = await self._budget.reserve(tokens, elastic=True)
        except TextRefused:  # not even the first: that is for its own call to find
            yield 1
            return
        mark = _prepaid.set(reserved)
        try:
            yield reserved.texts
        finally:
            _prepaid.reset(mark)
            await self._give_back(reserved)

    async def _give_back(self, reserved: Reserved) -> None:
        if not reserved.used:
            reserved.used = True
            await self._budget.give_back(reserved)

    async def call(self, texts: Sequence[str]) -> Reply:
        reserved = await self._reserved(texts)
        try:
            reply = await self._provider.call(texts)
        except Exception as exc:
            await self._budget.settle(reserved, billed=_billed(exc))
            seconds = self._waits.after(exc)
            if seconds:
                # Where the others cannot be told, what we were told is still to be heeded.
                with contextlib.suppress(DatabaseUnavailable):
                    await self._budget.block(seconds=seconds, reason=_kind(exc))
            raise
        self._waits.passed()
        await self._budget.settle(reserved, tokens=reply.tokens)
        return reply

    async def _reserved(self, texts: Sequence[str]) -> Reserved:
        tokens = [self._budget.estimate(text) for text in texts]
        reserved = _prepaid.get()
        if reserved is not None and not reserved.used:
            # A busy process may come to its call only when the guard has run out.
            in_time = asyncio.get_running_loop().time() <= reserved.until
            if in_time and reserved.texts >= len(texts):
                reserved.used = True
                reserved.texts = len(texts)
                reserved.tokens = min(reserved.tokens, sum(tokens))
                return reserved
            await self._give_back(reserved)
        return await self._budget.reserve(tokens, elastic=False)

    async def fault(self) -> str | None:
        return self._budget.fault or await self._provider.fault()

    async def close(self) -> None:
        await self._budget.close()
        await self._provider.close()


class SlicedProvider(Unmetered):
    """For queries: a call is made from the slice at hand, or not at all."""

    def __init__(self, provider: Provider, slices: Slices) -> None:
        self._provider = provider
        self._slices = slices
        self._waits = _Waits()

    async def call(self, texts: Sequence[str]) -> Reply:
        spent = await self._slices.spend([self._slices.estimate(text) for text in texts])
        try:
            reply = await self._provider.call(texts)
        except Exception as exc:
            self._slices.settle(spent, billed=_billed(exc))
            seconds = self._waits.after(exc)
            if seconds:
                self._slices.block(seconds=seconds, reason=_kind(exc))
            raise
        self._waits.passed()
        self._slices.settle(spent, tokens=reply.tokens)
        return reply

    async def fault(self) -> str | None:
        return await self._provider.fault()

    async def close(self) -> None:
        await self._slices.close()
        await self._provider.close()


def metered_for_queries(
    provider: Provider, database: Database, settings: EmbeddingSettings
) -> Provider:
    """The provider as a retriever calls it: within the fleet's budget, without waiting for it."""
    if settings.embedding_provider == "hash":  # made-up vectors cost nothing
        return provider
    return SlicedProvider(provider, Slices(database, settings.budget_name(), settings.limits()))
