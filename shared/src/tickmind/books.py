"""What was spent where no limit asks for each call: booked once in a while, not call by call."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.database import Database, ended_within
from tickmind.database_errors import DatabaseUnavailable
from tickmind.pieces import estimate_tokens
from tickmind.store import budget as store
from tickmind.store.budget import Purpose
from tickmind.telemetry import log

__all__ = ["Books", "TokenEstimate", "writing"]

_logger = logging.getLogger("tickmind.budget")

#: A process that dies takes at most this much of its bookkeeping with it.
_BOOKED_WITHIN_S = 1.0
#: Longest that a transaction on the budget may take: a connection may have died in silence. All
#: are short (see benchmarks/reserve.py).
_MOST_S = 10.0
#: How fast the estimate of tokens follows what the provider reports, and how far it may stray.
_LEARN, _STRAY = 0.1, 5.0
#: The estimate is kept above what will be counted, as RFC 6298 keeps a time-out above the round
#: trip: by four mean deviations; by this much where calls have been alike (2.5 % between batches of
#: 100, more between small ones), at most double. It costs little: an answer corrects it.
_DEVIATIONS, _LEAST_SPARE, _MOST_SPARE = 4, 0.05, 1.0
#: Of the first calls nothing is known.
_FIRST_DEVIATION = 0.1


@asynccontextmanager
async def writing(database: Database) -> AsyncIterator[AsyncSession]:
    """As `Database.writing`, for a transaction on the budget."""
    async with ended_within(_MOST_S, database), database.writing() as session:
        yield session


class TokenEstimate:
    """Tokens of texts, corrected by what the provider reports, and seldom too few: a call that
    has more than was reserved for it may be one too many."""

    def __init__(self) -> None:
        self._factor = 1.0
        self._deviation = _FIRST_DEVIATION
        self._learned = 0

    @property
    def _spare(self) -> float:
        return 1 + min(_MOST_SPARE, max(_LEAST_SPARE, _DEVIATIONS * self._deviation))

    def of(self, text: str) -> int:
        return max(1, math.ceil(estimate_tokens(text) * self._factor * self._spare))

    def learn(self, *, estimated: int, counted: int) -> None:
        """A call that was estimated at so many tokens had so many."""
        if estimated <= 0:
            return
        off = counted * self._spare / estimated - 1
        self._learned += 1
        rate = max(_LEARN, 1 / self._learned)  # at first the plain mean
        self._factor = min(_STRAY, max(1 / _STRAY, self._factor * (1 + rate * off)))
        if self._learned > 1:
            self._deviation += rate * (abs(off) - self._deviation)


class Books:
    """Sums of calls, on their way into the database."""

    def __init__(self, database: Database, provider: str, purpose: Purpose) -> None:
        self._database = database
        self._provider = provider
        self._purpose = purpose
        self._calls = self._texts = self._tokens = 0
        self._booking: asyncio.Task[None] | None = None

    def add(self, *, texts: int, tokens: int) -> None:
        """One call more."""
        self._calls += 1
        self._texts += texts
        self._tokens += tokens
        if self._booking is None or self._booking.done():
            self._booking = asyncio.create_task(self._later())

    async def _later(self) -> None:
        await asyncio.sleep(_BOOKED_WITHIN_S)
        await self.flush()

    async def flush(self) -> None:
        """Book what is not booked yet; where the database cannot, that waits for the next call."""
        calls, texts, tokens = self._calls, self._texts, self._tokens
        if not calls:
            return
        self._calls = self._texts = self._tokens = 0
        try:
            async with writing(self._database) as session:
                await store.record(
                    session,
                    self._provider,
                    self._purpose,
                    calls=calls,
                    texts=texts,
                    tokens=tokens,
                )
        except (DatabaseUnavailable, SQLAlchemyError) as exc:
            self._calls += calls
            self._texts += texts
            self._tokens += tokens
            log(_logger, logging.WARNING, "not_booked", calls=calls, error=type(exc).__name__)

    async def close(self) -> None:
        """Book the rest."""
        if self._booking is not None:
            self._booking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._booking
        await self.flush()
