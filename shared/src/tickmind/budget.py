"""The fleet's budget as one process uses it: wait for a turn, spend it, say what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tickmind.books import Books, TokenEstimate, writing
from tickmind.database import Database
from tickmind.database_errors import DatabaseUnavailable
from tickmind.errors import EmbeddingUnavailable, TextRefused
from tickmind.limits import Limit
from tickmind.store import budget as store
from tickmind.store.budget import Grant
from tickmind.telemetry import log

__all__ = ["Budget", "Reserved"]

_logger = logging.getLogger("tickmind.budget")

#: How late after its grant a call may still reach the provider; later ones are dropped and asked
#: for again. A window counts a call until it was surely counted, so this costs at most guard /
#: window of the budget; less, since an answer settles it.
GUARD_S = 0.25
#: Of each limit, kept for recalls while a retriever lives.
KEPT_FOR_QUERIES = 0.1
#: Fewest texts of a batch that are worth a call while more wait, as a share of it.
_FLOOR_SHARE = 0.25
#: Replicas that were told to stay away until the same moment come back spread over this share of
#: the wait. Who waits for budget comes back on time: the line lets in one after the other.
_SPREAD_BLOCKED = 0.2
#: Longest sleep before asking again: a block may be lifted, a limit raised.
_LONGEST_SLEEP_S = 5.0
#: Answered calls of which the database does not know yet, while it is away.
_MOST_OWED = 1000


@dataclass(slots=True)
class Reserved:
    """One call that may be made now with the first `texts` of those asked for.

    `id`: its reservation; None where no limit asked for one. `tokens`: the estimate. `until`: of
    the loop's clock, when it is too late to make the call: what others were told meanwhile would
    not be known.
    """

    id: int | None
    texts: int
    tokens: int
    used: bool = False
    until: float = math.inf


@dataclass(frozen=True, slots=True)
class _Owed:
    """What the database is to learn of a reservation."""

    reservation: int
    texts: int
    tokens: int
    billed: bool


class Budget:
    """One provider's budget, as a process that embeds documents asks of it.

    Without limits it only keeps the books, and stands still where another replica was told to.
    All that asks the database may raise DatabaseUnavailable, except where an answer was paid for.

    `fault`: what keeps all from calling that a person should look at; None: nothing.
    """

    def __init__(
        self,
        database: Database,
        provider: str,
        limits: Sequence[Limit],
        *,
        guard_s: float = GUARD_S,
        kept: float = KEPT_FOR_QUERIES,
        waited: Callable[[float], object] = lambda _: None,
    ) -> None:
        """`waited`: told of each wait for a turn, in seconds."""
        self._waited = waited
        self._database = database
        self._provider = provider
        self._limits = tuple(limits)
        self._stop = asyncio.Event()
        self._guard_s = guard_s
        self._kept = kept
        self._estimate = TokenEstimate()
        self._books = Books(database, provider, "documents")
        self._owed: deque[_Owed] = deque(maxlen=_MOST_OWED)
        self.fault: str | None = None

    def stop_with(self, stop: asyncio.Event) -> None:
        """Whoever waits gives up once this is set."""
        self._stop = stop

    def estimate(self, text: str) -> int:
        """Tokens of a text, as learned from what the provider reported before."""
        return self._estimate.of(text)

    async def reserve(self, tokens: Sequence[int], *, elastic: bool) -> Reserved:
        """Wait for a call with these texts; `elastic`: with the first of them, where there is
        room for a part only.

        Raises TextRefused where no window could ever hold them, EmbeddingUnavailable when told to
        stop.
        """
        floor = max(1, int(len(tokens) * _FLOOR_SHARE)) if elastic else len(tokens)
        ticket: int | None = None
        while not self._stop.is_set():
            if self._limits:
                grant, until = await self._ask(tokens, floor=floor, ticket=ticket)
                if grant.reservation is not None and until is not None:
                    self.fault = None
                    granted = sum(tokens[: grant.texts])
                    return Reserved(
                        id=grant.reservation, texts=grant.texts, tokens=granted, until=until
                    )
                if grant.reason == "never":
                    if floor > 1 and elastic:
                        floor = 1
                        continue
                    msg = "needs more at once than TICKMIND_EMBEDDING_LIMITS ever allow"
                    raise TextRefused(msg)
                ticket, wait_s, reason = grant.ticket, grant.wait_s, grant.reason
            else:
                until = self._usable_until()
                wait_s, reason = await self._blocked()
                if wait_s <= 0:
                    self.fault = None
                    return Reserved(id=None, texts=len(tokens), tokens=sum(tokens), until=until)
            await self._sleep(wait_s, reason)
        msg = "told to stop while waiting for the embedding budget"
        raise EmbeddingUnavailable(msg, kind="rate_limit")

    async def _ask(
        self, tokens: Sequence[int], *, floor: int, ticket: int | None
    ) -> tuple[Grant, float | None]:
        """A grant, and until when it may be used; None: it came too late and was given back."""
        until = self._usable_until()
        async with writing(self._database) as session:
            grant = await store.reserve(
                session,
                self._provider,
                "documents",
                limits=self._limits,
                tokens=tokens,
                floor=floor,
                guard_s=self._guard_s,
                kept=self._kept,
                ticket=ticket,
            )
        if grant.reservation is not None and asyncio.get_running_loop().time() > until:
            async with writing(self._database) as session:
                await store.give_back(session, grant.reservation)
            log(_logger, logging.INFO, "late_grant_dropped")
            return grant, None
        return grant, until

    def _usable_until(self) -> float:
        """Until when a call may be made of what is asked for now. Measured from the asking: when
        after it the database has answered, we cannot know."""
        return asyncio.get_running_loop().time() + self._guard_s * 0.8

    async def _blocked(self) -> tuple[float, str | None]:
        """Seconds that nobody is to call, and why."""
        async with self._database.reading() as session:
            return await store.blocked(session, self._provider) or (0.0, None)

    async def _sleep(self, wait_s: float, reason: str | None) -> None:
        blocked = reason not in ("budget", "line")
        if reason == "quota":
            self.fault = "the embedding quota is used up: raise it at the provider, or wait"
        share = _SPREAD_BLOCKED if blocked else 0.0
        wait_s += min(wait_s, _LONGEST_SLEEP_S) * share * random.random()
        if wait_s > _LONGEST_SLEEP_S * (1 + share):
            wait_s = _LONGEST_SLEEP_S
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), wait_s)
        finally:
            self._waited(loop.time() - begun)

    async def settle(
        self, reserved: Reserved, *, tokens: int | None = None, billed: bool = True
    ) -> None:
        """The provider has answered, with what it counted, if it says; or refused the call.

        Never raises DatabaseUnavailable, for the answer's sake: what the database does not learn
        now, it learns with the next.
        """
        if tokens is not None:
            self._estimate.learn(estimated=reserved.tokens, counted=tokens)
        texts, counted = reserved.texts, tokens if tokens is not None else reserved.tokens
        if reserved.id is None:
            self._books.add(texts=texts * billed, tokens=counted * billed)
            return
        self._owed.append(_Owed(reserved.id, texts, counted, billed))
        await self._pay()

    async def _pay(self) -> None:
        """Tell the database what is owed to it, if it can be told; each by itself, since two who
        come to the sums of several times in another order would wait for each other."""
        while self._owed:
            one = self._owed.popleft()
            try:
                async with writing(self._database) as session:
                    await store.settle(
                        session,
                        one.reservation,
                        texts=one.texts,
                        tokens=one.tokens,
                        free_texts=0 if one.billed else one.texts,
                        free_tokens=0 if one.billed else one.tokens,
                    )
            except DatabaseUnavailable:
                self._owed.appendleft(one)
                return

    async def give_back(self, reserved: Reserved) -> None:
        """The call was not made."""
        if reserved.id is not None:
            async with writing(self._database) as session:
                await store.give_back(session, reserved.id)

    async def block(self, *, seconds: float, reason: str) -> None:
        """No replica calls the provider for so long."""
        async with writing(self._database) as session:
            await store.block(session, self._provider, seconds=seconds, reason=reason)
        log(_logger, logging.WARNING, "provider_blocked", seconds=round(seconds, 1), reason=reason)

    async def close(self) -> None:
        """Book what is not booked yet."""
        await self._pay()
        await self._books.close()
