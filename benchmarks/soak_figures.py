"""What `soak` makes of what it saw. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Ledger", "Ramp", "drift", "growth", "percentile", "settle", "slope_per_hour", "steady"]

_HOUR_S = 3600.0
#: At either end of a series, what stands for its beginning and its end.
_END_SHARE = 0.1


def percentile(values: Iterable[float], share: float) -> float:
    """The value that so large a share of them does not exceed (nearest rank). Raises ValueError
    where there is none."""
    ordered = sorted(values)
    if not ordered:
        msg = "no values, no percentile"
        raise ValueError(msg)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def slope_per_hour(points: Sequence[tuple[float, float]]) -> float:
    """Of the straight line that fits (second, value) best by least squares; 0 where all are of one
    moment."""
    count = len(points)
    middle_s = sum(at for at, _ in points) / count
    middle = sum(value for _, value in points) / count
    spread = sum((at - middle_s) ** 2 for at, _ in points)
    if not spread:
        return 0.0
    return _HOUR_S * sum((at - middle_s) * (value - middle) for at, value in points) / spread


def growth(values: Sequence[float]) -> float:
    """Mean of the last tenth over that of the first, at least one value each."""
    some = max(1, int(len(values) * _END_SHARE))
    return sum(values[-some:]) / sum(values[:some])


def drift(calls: Sequence[tuple[float, float]], share: float = 0.99) -> float:
    """By how much a percentile of (second, value) grew: of the last third of the time over that of
    the first. Raises ValueError where a third is empty."""
    first_s = min(at for at, _ in calls)
    third_s = (max(at for at, _ in calls) - first_s) / 3
    begins = [value for at, value in calls if at <= first_s + third_s]
    ends = [value for at, value in calls if at >= first_s + 2 * third_s]
    return percentile(ends, share) / percentile(begins, share)


def steady(outcomes: Iterable[tuple[float, bool]], *, run: int) -> float | None:
    """When the first `run` good ones in a row began, of (second, good); None: never."""
    since = 0.0
    good = 0
    for at, fine in sorted(outcomes):
        if not fine:
            good = 0
            continue
        if not good:
            since = at
        good += 1
        if good == run:
            return since
    return None


def settle(levels: Iterable[tuple[float, float]], *, most: float) -> float | None:
    """From when on no level of (second, level) was above `most`; None: the last one was."""
    since: float | None = None
    for at, level in sorted(levels):
        if level > most:
            since = None
        elif since is None:
            since = at
    return since


@dataclass(slots=True, kw_only=True)
class Ramp:
    """Finds the highest rate that is sustained: up by `factor` until one is not, then `halvings`
    times half-way, by ratio, between what is and what is not."""

    rate: float
    factor: float = 1.5
    halvings: int = 2
    #: A rate below this is none.
    least: float = 0.1
    capacity: float | None = field(default=None, init=False)
    _failed: float | None = field(default=None, init=False)

    @property
    def done(self) -> bool:
        return self.rate < self.least or (
            self.halvings == 0 and self._failed is not None and self.capacity is not None
        )

    def tell(self, *, sustained: bool) -> None:
        """What came of `rate`; the next one to try stands there afterwards."""
        if self._failed is not None and self.capacity is not None:
            self.halvings -= 1
        if sustained:
            self.capacity = self.rate
        else:
            self._failed = self.rate
        if self._failed is None:
            self.rate *= self.factor
        elif self.capacity is None:
            self.rate /= self.factor**2
        else:
            self.rate = math.sqrt(self.capacity * self._failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Memories that should be there against those that are."""

    confirmed: int
    stored: int
    lost: int
    extra: int

    @classmethod
    def of(
        cls,
        confirmed: Mapping[str, set[int]],
        stored: Mapping[str, Mapping[int, int]],
        *,
        memories_a_tick: int,
    ) -> Ledger:
        """`confirmed`: ticks by world; `stored`: memories by world and tick. What was not confirmed
        may be there or not, but whole."""
        missing = more = 0
        for world, ticks in confirmed.items():
            there = stored.get(world, {})
            missing += sum(memories_a_tick for tick in ticks if tick not in there)
        for ticks_there in stored.values():
            for memories in ticks_there.values():
                missing += max(0, memories_a_tick - memories)
                more += max(0, memories - memories_a_tick)
        return cls(
            confirmed=sum(map(len, confirmed.values())),
            stored=sum(sum(ticks.values()) for ticks in stored.values()),
            lost=missing,
            extra=more,
        )
