"""Every call the test provider received, and every text it billed."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tickmind.local.provider.faults import Asked

__all__ = ["Call", "Ledger", "Totals"]

# A call that was on its way when the 429 was answered is not early: loopback and a busy event loop
# together stay well below this.
_ON_ITS_WAY_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call; times are seconds of the ledger's clock (CLOCK_MONOTONIC unless injected).

    `tokens`: of the texts as embedded. `status`: None while it waits, and where the connection
    ended without one. `fault`: kind of the fault that struck. `billed`: embeddings were computed,
    whatever became of the answer. `delivered`: the caller was still there for the answer; None
    while both wait. `down`: an outage struck it. `rejected`: refused by the provider's own limits.
    `retry_after_s`: seconds the caller was told to stay away, None where the answer did not
    (intelligibly) say.
    """

    number: int
    started_at: float
    finished_at: float | None = None
    asked: Asked = field(default_factory=Asked)
    tokens: int = 0
    status: int | None = None
    fault: str | None = None
    billed: bool = False
    delivered: bool | None = None
    down: bool = False
    rejected: bool = False
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """A ledger in figures. `statuses` by number, "none" for a call that got no status.

    `rejections`: 429s, of limits and of faults. `texts_sent` counts refused texts too.
    """

    calls: int = 0
    in_flight: int = 0
    max_concurrency: int = 0
    calls_while_down: int = 0
    rejections: int = 0
    texts_sent: int = 0
    texts_billed: int = 0
    tokens_billed: int = 0
    statuses: Mapping[str, int] = field(default_factory=dict)
    faults: Mapping[str, int] = field(default_factory=dict)


class Ledger:
    """Calls in the order received. Belongs to one event loop; nothing here waits for I/O."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls: list[Call] = []
        self._offset = 0
        self._in_flight = 0
        self._max_concurrency = 0
        self._sent: Counter[str] = Counter()
        self._billed: Counter[str] = Counter()
        self._changed = asyncio.Event()

    def begin(self) -> int:
        """Note a call that has arrived; returns its number."""
        self._calls.append(Call(number=self._offset + len(self._calls), started_at=self._clock()))
        self._in_flight += 1
        self._max_concurrency = max(self._max_concurrency, self._in_flight)
        self._notify()
        return self._calls[-1].number

    def note_asked(self, number: int, asked: Asked) -> None:
        """Note what the call asks for, once it has been read."""
        if self._change(number, lambda call: replace(call, asked=asked)):
            self._sent.update(asked.texts)

    def note_fault(self, number: int, kind: str, *, down: bool) -> None:
        """Note the fault that strikes the call."""
        self._change(number, lambda call: replace(call, fault=kind, down=down))

    def note_billed(self, number: int, tokens: int) -> None:
        """Note that the call's texts are embedded and paid for."""
        if self._change(number, lambda call: replace(call, billed=True, tokens=tokens)):
            self._billed.update(self._calls[number - self._offset].asked.texts)

    def note_refused(self, number: int, *, retry_after_s: float | None, rejected: bool) -> None:
        """Note what a refusal said about coming back, and whether the limits made it."""
        self._change(
            number, lambda call: replace(call, retry_after_s=retry_after_s, rejected=rejected)
        )

    def note_gone(self, number: int) -> None:
        """Note that the caller left while the call was still waiting."""
        self._change(number, lambda call: replace(call, delivered=False))

    def finish(self, number: int, *, status: int | None, delivered: bool) -> None:
        """Note the end of the call."""
        now = self._clock()
        if self._change(
            number,
            lambda call: replace(call, finished_at=now, status=status, delivered=delivered),
        ):
            self._in_flight -= 1

    def reset(self) -> None:
        """Forget everything, calls in flight too; numbers go on."""
        self._offset += len(self._calls)
        self._calls.clear()
        self._sent.clear()
        self._billed.clear()
        self._in_flight = self._max_concurrency = 0
        self._notify()

    @property
    def calls(self) -> tuple[Call, ...]:
        """All calls since the last reset, in the order received."""
        return tuple(self._calls)

    def times_sent(self, text: str) -> int:
        """How often a text was in a request, billed or refused."""
        return self._sent[text]

    def times_billed(self, text: str) -> int:
        """How often a text was embedded."""
        return self._billed[text]

    @property
    def billed_texts(self) -> Mapping[str, int]:
        """Every text that was ever embedded, and how often (a copy)."""
        return dict(self._billed)

    def totals(self, start: float | None = None, end: float | None = None) -> Totals:
        """Sums over calls begun in [start, end) of the clock; over all where None.

        `in_flight` and `max_concurrency` are of the whole ledger always.
        """
        calls = [
            call
            for call in self._calls
            if (start is None or call.started_at >= start)
            and (end is None or call.started_at < end)
        ]
        billed = [call for call in calls if call.billed]
        ended = [call for call in calls if call.finished_at is not None]
        return Totals(
            calls=len(calls),
            in_flight=self._in_flight,
            max_concurrency=self._max_concurrency,
            calls_while_down=sum(call.down for call in calls),
            rejections=sum(call.status == 429 for call in calls),
            texts_sent=sum(len(call.asked.texts) for call in calls),
            texts_billed=sum(len(call.asked.texts) for call in billed),
            tokens_billed=sum(call.tokens for call in billed),
            statuses=dict(Counter(str(call.status or "none") for call in ended)),
            faults=dict(Counter(call.fault for call in calls if call.fault is not None)),
        )

    def early_calls(self, on_its_way_s: float = _ON_ITS_WAY_S) -> list[Call]:
        """Calls that came while the provider had told somebody to stay away.

        Those that began within `on_its_way_s` of the telling may have been on their way and are
        not counted.
        """
        told = sorted(
            (call.finished_at + on_its_way_s, call.finished_at + call.retry_after_s)
            for call in self._calls
            if call.finished_at is not None and call.retry_after_s is not None
        )
        early: list[Call] = []
        ends, position = -math.inf, 0
        for call in sorted(self._calls, key=lambda call: call.started_at):
            while position < len(told) and told[position][0] < call.started_at:
                ends = max(ends, told[position][1])
                position += 1
            if call.started_at < ends:
                early.append(call)
        return early

    async def wait_until(
        self, condition: Callable[[Ledger], bool], *, timeout_s: float = 30.0
    ) -> None:
        """Return once the condition holds; it is asked after every change. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while not condition(self):
                await self._changed.wait()

    def _change(self, number: int, change: Callable[[Call], Call]) -> bool:
        """Replace a call; False when a reset has forgotten it."""
        position = number - self._offset
        if position < 0:
            return False
        self._calls[position] = change(self._calls[position])
        self._notify()
        return True

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
