"""The rules in force, in order, and which fault strikes a request."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tickmind.local.provider.faults import (
    Asked,
    BadIndex,
    Fault,
    OneVector,
    RefuseParameter,
    Rule,
    Shuffled,
)
from tickmind.local.provider.triggers import (
    Always,
    Containing,
    During,
    EveryNth,
    LargerThan,
    Next,
    RandomShare,
    Trigger,
)

__all__ = ["FaultScript"]


class FaultScript:
    """Rules are tried in the order added; the first that strikes decides, the rest do not see the
    request. So several `Next` rules are worked off like a queue, and a rule in front shadows.

    A fault that cannot apply to a request (an order of one text, a parameter that was not sent)
    lets it pass and is not used up.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._active: list[_Active] = []
        self._last_id = 0
        self._released = asyncio.Event()

    def add(self, fault: Fault, trigger: Trigger | None = None) -> int:
        """Append a rule (`Next()` without a trigger); returns its id, for `remove`."""
        self._last_id += 1
        rule = Rule(fault=fault, trigger=Next() if trigger is None else trigger)
        self._active.append(_Active(id=self._last_id, rule=rule, added_at=self._clock()))
        return self._last_id

    def extend(self, rules: Iterable[Rule]) -> list[int]:
        """Append rules in order; returns their ids."""
        return [self.add(rule.fault, rule.trigger) for rule in rules]

    def remove(self, rule_id: int) -> None:
        """End a rule; nothing happens when it is gone already."""
        self._active = [active for active in self._active if active.id != rule_id]

    def clear(self) -> None:
        """End every rule. What hangs goes on hanging until `release`."""
        self._active.clear()

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Rules that can still strike."""
        self._active = [active for active in self._active if not active.spent(self._clock())]
        return tuple(active.rule for active in self._active)

    def choose(self, asked: Asked) -> Fault | None:
        """The fault for this request, counted as used; None when it passes."""
        now = self._clock()
        chosen: Fault | None = None
        for active in self._active:
            if _applies(active.rule.fault, asked) and active.strikes(asked, now):
                chosen = active.rule.fault
                break
        self._active = [active for active in self._active if not active.spent(now)]
        return chosen

    def release(self) -> None:
        """Let every request that hangs or drips now go on at once."""
        self._released.set()
        self._released = asyncio.Event()

    async def pause(self, seconds: float | None) -> None:
        """Wait so long, or until the next `release` where None or sooner."""
        released = self._released
        try:
            async with asyncio.timeout(seconds):
                await released.wait()
        except TimeoutError:
            return


@dataclass(slots=True, kw_only=True)
class _Active:
    """A rule with what it has seen."""

    id: int
    rule: Rule
    added_at: float
    seen: int = 0
    struck: int = 0
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        trigger = self.rule.trigger
        self.random = random.Random(trigger.seed if isinstance(trigger, RandomShare) else 0)

    def strikes(self, asked: Asked, now: float) -> bool:
        self.seen += 1
        match self.rule.trigger:
            case Next(requests=requests, after=after):
                hit = self.seen > after and self.struck < requests
            case EveryNth(n=n):
                hit = self.seen % n == 0
            case Containing(substring=substring):
                hit = any(substring in text for text in asked.texts)
            case LargerThan(texts=texts):
                hit = len(asked.texts) > texts
            case RandomShare(share=share):
                hit = self.random.random() < share
            case During(seconds=seconds, after_s=after_s):
                hit = after_s <= now - self.added_at < after_s + seconds
            case Always():
                hit = True
        self.struck += hit
        return hit

    def spent(self, now: float) -> bool:
        match self.rule.trigger:
            case Next(requests=requests):
                return self.struck >= requests
            case During(seconds=seconds, after_s=after_s):
                return now - self.added_at >= after_s + seconds
            case _:
                return False


def _applies(fault: Fault, asked: Asked) -> bool:
    match fault:
        case OneVector() | Shuffled() | BadIndex(how="duplicate"):
            return len(asked.texts) > 1
        case RefuseParameter(parameter="dimensions"):
            return asked.dimensions is not None
        case RefuseParameter(parameter=encoding):
            return asked.encoding_format == encoding
        case _:
            return True
