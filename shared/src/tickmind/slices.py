"""A retriever's share of the budget: taken for a second or two at once, spent from memory.

Asking per recall would cost each one a round trip to the database.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from tickmind.books import Books, TokenEstimate, writing
from tickmind.database import Database
from tickmind.database_errors import DatabaseUnavailable
from tickmind.errors import EmbeddingUnavailable
from tickmind.limits import Limit
from tickmind.store import budget as store
from tickmind.telemetry import log

__all__ = ["Slices", "Spent"]

_logger = logging.getLogger("tickmind.budget")

#: Calls of a slice reach the provider within this; what is left of it then is given back.
SLICE_S = 1.5
#: So long calls are begun: the rest is for their way.
_SPENDABLE_S = 0.8 * SLICE_S
#: A slice that is used up early is followed by one as large as its pace asks for, within this.
_GROWTH = 8.0
#: What other replicas were told (a 429) is looked up this often where no slice tells.
_LOOK_S = 1.0


@dataclass(slots=True, eq=False)
class _Slice:
    """`calls`, `texts`, `tokens`: what is left; `used_…`: what was spent, as far as is known;
    `free_…`: of that, in calls that were refused and cost nothing."""

    reservation: int
    taken_at: float
    calls: int
    texts: int
    tokens: int
    used_calls: int = 0
    used_texts: int = 0
    used_tokens: int = 0
    free_texts: int = 0
    free_tokens: int = 0

    def holds(self, tokens: Sequence[int]) -> bool:
        return (
            asyncio.get_running_loop().time() < self.taken_at + _SPENDABLE_S
            and self.calls >= 1
            and self.texts >= len(tokens)
            and self.tokens >= sum(tokens)
        )

    def spend(self, tokens: Sequence[int]) -> None:
        self.calls -= 1
        self.texts -= len(tokens)
        self.tokens -= sum(tokens)
        self.used_calls += 1
        self.used_texts += len(tokens)
        self.used_tokens += sum(tokens)


@dataclass(frozen=True, slots=True)
class Spent:
    """One call that was allowed."""

    texts: int
    tokens: int
    slice: _Slice | None


class Slices:
    """What this process may call the provider with now. Waits for nothing: a recall has no time."""

    def __init__(self, database: Database, provider: str, limits: Sequence[Limit]) -> None:
        self._database = database
        self._provider = provider
        self._limits = tuple(limits)
        self._estimate = TokenEstimate()
        self._books = Books(database, provider, "queries")
        self._slice: _Slice | None = None
        self._closing: dict[_Slice, asyncio.Task[None]] = {}
        self._blocks: set[asyncio.Task[None]] = set()
        self._blocked_until = 0.0
        self._look_at = 0.0
        self._lock = asyncio.Lock()

    def estimate(self, text: str) -> int:
        """Tokens of a text, as learned from what the provider reported before."""
        return self._estimate.of(text)

    async def spend(self, tokens: Sequence[int]) -> Spent:
        """Take one call with these texts from the slice, or from a new one.

        Raises EmbeddingUnavailable where the budget has none left now, and DatabaseUnavailable
        where it cannot be asked.
        """
        async with self._lock:
            if not self._limits:
                await self._look()
            self._told()
            if not self._limits:
                return Spent(len(tokens), sum(tokens), None)
            if self._slice is None or not self._slice.holds(tokens):
                self._slice = await self._take(tokens)
            self._slice.spend(tokens)
            return Spent(len(tokens), sum(tokens), self._slice)

    def _told(self) -> None:
        """Raises EmbeddingUnavailable while the provider is not to be called."""
        left_s = self._blocked_until - asyncio.get_running_loop().time()
        if left_s > 0:
            msg = "the embedding API told us to wait"
            raise EmbeddingUnavailable(msg, kind="rate_limit", retry_after_s=left_s)

    async def _look(self) -> None:
        """See what other replicas were told."""
        now = asyncio.get_running_loop().time()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        async with self._database.reading() as session:
            found = await store.blocked(session, self._provider)
        if found is not None:
            self._blocked_until = max(self._blocked_until, now + found[0])

    async def _take(self, tokens: Sequence[int]) -> _Slice:
        """A slice for what will be spent at the last one's pace; else for this call alone."""
        loop = asyncio.get_running_loop()
        calls, asked = self._wanted(tokens)
        for of_calls, of_texts in ((calls, asked), (1, list(tokens))):
            asked_at = loop.time()
            async with writing(self._database) as session:
                grant = await store.reserve(
                    session,
                    self._provider,
                    "queries",
                    limits=self._limits,
                    tokens=of_texts,
                    floor=len(tokens),
                    guard_s=SLICE_S,
                    kept=0.0,
                    ticket=None,
                    calls=of_calls,
                )
            if grant.reservation is None:
                continue
            taken = _Slice(
                grant.reservation, asked_at, of_calls, grant.texts, sum(of_texts[: grant.texts])
            )
            self._closing[taken] = asyncio.create_task(self._close(taken))
            if taken.holds(tokens):
                return taken
            msg = "the embedding budget was granted too late for a recall"
            raise EmbeddingUnavailable(msg, kind="rate_limit")
        if grant.reason not in ("budget", "never"):  # it holds for all that comes until then
            self._blocked_until = loop.time() + grant.wait_s
        msg = f"the embedding budget has nothing left for recalls now ({grant.reason})"
        raise EmbeddingUnavailable(msg, kind="rate_limit", retry_after_s=grant.wait_s)

    def _wanted(self, tokens: Sequence[int]) -> tuple[int, list[int]]:
        """Calls, and the tokens of each text, of a slice that begins with this call."""
        last = self._slice
        age_s = asyncio.get_running_loop().time() - last.taken_at if last else SLICE_S
        if last is None or age_s > 2 * SLICE_S or not last.used_texts:  # another time's pace
            return 1, list(tokens)
        pace = min(_GROWTH, max(1.0, _SPENDABLE_S / max(age_s, 0.001)))
        more = max(0, round(last.used_texts * pace) - len(tokens))
        each = max(1, last.used_tokens // last.used_texts)
        return max(1, round(last.used_calls * pace)), [*tokens, *([each] * more)]

    def settle(self, spent: Spent, *, tokens: int | None = None, billed: bool = True) -> None:
        """The provider has answered, with what it counted, if it says; or refused the call."""
        if tokens is not None:
            self._estimate.learn(estimated=spent.tokens, counted=tokens)
        counted = tokens if tokens is not None else spent.tokens
        if spent.slice is None:
            self._books.add(texts=spent.texts * billed, tokens=counted * billed)
        elif billed:
            spent.slice.used_tokens += counted - spent.tokens
        else:
            spent.slice.free_texts += spent.texts
            spent.slice.free_tokens += spent.tokens

    async def _close(self, taken: _Slice, *, after_s: float = SLICE_S) -> None:
        """Give back what was not spent of a slice once its time is over."""
        await asyncio.sleep(after_s)
        try:
            async with writing(self._database) as session:
                if taken.used_calls:
                    await store.settle(
                        session,
                        taken.reservation,
                        calls=taken.used_calls,
                        texts=taken.used_texts,
                        tokens=taken.used_tokens,
                        free_texts=taken.free_texts,
                        free_tokens=taken.free_tokens,
                    )
                else:
                    await store.give_back(session, taken.reservation)
        except (DatabaseUnavailable, SQLAlchemyError) as exc:  # then it counts as spent
            log(_logger, logging.WARNING, "not_booked", error=type(exc).__name__)
        finally:
            self._closing.pop(taken, None)

    def block(self, *, seconds: float, reason: str) -> None:
        """No replica calls the provider for so long; the others are told meanwhile."""
        now = asyncio.get_running_loop().time()
        self._blocked_until = max(self._blocked_until, now + seconds)
        telling = asyncio.create_task(self._tell(seconds, reason))
        self._blocks.add(telling)
        telling.add_done_callback(self._blocks.discard)

    async def _tell(self, seconds: float, reason: str) -> None:
        try:
            async with writing(self._database) as session:
                await store.block(session, self._provider, seconds=seconds, reason=reason)
        except (DatabaseUnavailable, SQLAlchemyError) as exc:
            log(_logger, logging.WARNING, "block_not_told", error=type(exc).__name__)
        else:
            log(_logger, logging.WARNING, "provider_blocked", seconds=seconds, reason=reason)

    async def close(self) -> None:
        """Book what is not booked yet."""
        closing = dict(self._closing)
        for task in closing.values():
            task.cancel()
        await asyncio.gather(*closing.values(), *self._blocks, return_exceptions=True)
        for taken in closing:
            await self._close(taken, after_s=0.0)
        await self._books.close()
