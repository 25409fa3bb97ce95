"""Enforced limits against plain reference models, over any sequence of requests."""

from __future__ import annotations

import copy
import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickmind.local.provider.limits import DAY_S, Limit, RateLimiter, sub_window

# Requests as (quarter seconds since the one before, texts, tokens): times are exact in binary.
requests = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 12), st.integers(1, 90)), max_size=60
)
units = st.sampled_from(["call", "text", "token"])
windows = st.sampled_from([1.0, 10.0, 60.0])
limits = st.builds(
    Limit,
    unit=units,
    amount=st.integers(1, 120),
    window_s=windows,
    algorithm=st.sampled_from(["sliding", "fixed", "bucket"]),
    count_rejected=st.booleans(),
)


class ManualClock:
    """Seconds that pass only when told."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def cost(limit: Limit, texts: int, tokens: int) -> int:
    return {"call": 1, "text": texts, "token": tokens}[limit.unit]


def played(limit: Limit, sequence: list[tuple[int, int, int]]) -> list[tuple[Fraction, int, bool]]:
    """Each request's time, cost and whether it was admitted."""
    clock = ManualClock()
    limiter = RateLimiter([limit], clock=clock)
    results = []
    for gap, texts, tokens in sequence:
        clock.now += gap / 4
        admission = limiter.admit(texts=texts, tokens=tokens)
        results.append((Fraction(clock.now), cost(limit, texts, tokens), admission.admitted))
    return results


@given(requests, units, st.integers(1, 120), windows)
def test_sliding_window_admits_exactly_what_fits_the_last_window(
    sequence: list[tuple[int, int, int]], unit: str, amount: int, window_s: float
) -> None:
    limit = Limit(unit=unit, amount=amount, window_s=window_s)  # type: ignore[arg-type]
    log: list[tuple[Fraction, int]] = []
    for at, size, admitted in played(limit, sequence):
        used = sum(counted for time, counted in log if time > at - Fraction(window_s))
        assert admitted == (used + size <= amount)
        if admitted:
            log.append((at, size))


@given(requests, units, st.integers(1, 120), windows)
def test_fixed_window_admits_exactly_what_fits_the_current_window(
    sequence: list[tuple[int, int, int]], unit: str, amount: int, window_s: float
) -> None:
    limit = Limit(unit=unit, amount=amount, window_s=window_s, algorithm="fixed")  # type: ignore[arg-type]
    used: dict[int, int] = {}
    for at, size, admitted in played(limit, sequence):
        window = math.floor(at / Fraction(window_s))
        assert admitted == (used.get(window, 0) + size <= amount)
        if admitted:
            used[window] = used.get(window, 0) + size


@given(requests, units, st.integers(1, 120), windows, st.none() | st.integers(1, 200))
def test_token_bucket_admits_what_its_exact_level_covers(
    sequence: list[tuple[int, int, int]],
    unit: str,
    amount: int,
    window_s: float,
    burst: int | None,
) -> None:
    limit = Limit(
        unit=unit,  # type: ignore[arg-type]
        amount=amount,
        window_s=window_s,
        algorithm="bucket",
        burst=burst,
    )
    full = Fraction(burst or amount)
    level, last = full, Fraction(1000)
    for at, size, admitted in played(limit, sequence):
        level = min(full, level + (at - last) * Fraction(amount) / Fraction(window_s))
        last = at
        # A rounding of the limiter may decide only where the exact level is a hair away.
        if abs(level - size) > Fraction(1, 1000):
            assert admitted == (level >= size)
        if admitted:
            level -= size


@given(requests, st.lists(limits, min_size=1, max_size=4))
def test_wait_told_is_enough_and_not_more_than_needed(
    sequence: list[tuple[int, int, int]], combination: list[Limit]
) -> None:
    clock = ManualClock(1e6 / 3)  # no exact sums: what a real clock reads
    limiter = RateLimiter(combination, clock=clock)
    for gap, texts, tokens in sequence:
        clock.now += gap / 4
        admission = limiter.admit(texts=texts, tokens=tokens)
        if admission.admitted:
            assert admission.wait_s == 0
            continue
        assert admission.wait_s > 0
        assert admission.limit in combination
        if math.isinf(admission.wait_s):
            assert any(cost(limit, texts, tokens) > limit.amount for limit in combination)
            continue
        for wait_s, expected in [
            (admission.wait_s - 0.01, False),
            (admission.wait_s, True),
            (admission.wait_s + 0.005, True),
        ]:
            if wait_s <= 0:
                continue
            later = copy.deepcopy(limiter)
            later._clock = ManualClock(clock.now + wait_s)
            assert later.admit(texts=texts, tokens=tokens).admitted == expected


@given(requests, st.lists(limits, min_size=1, max_size=4))
def test_request_passes_only_where_every_limit_admits_it(
    sequence: list[tuple[int, int, int]], combination: list[Limit]
) -> None:
    """Against single limiters that are shown only what the combination let them count."""
    clock = ManualClock()
    together = RateLimiter(combination, clock=clock)
    singles = [RateLimiter([limit], clock=clock) for limit in combination]
    for gap, texts, tokens in sequence:
        clock.now += gap / 4
        trials = copy.deepcopy(singles)
        for trial in trials:
            trial._clock = clock
        allowed = [trial.admit(texts=texts, tokens=tokens).admitted for trial in trials]
        admitted = together.admit(texts=texts, tokens=tokens).admitted
        assert admitted == all(allowed)
        if admitted:
            singles = trials
            continue
        for limit, single in zip(combination, singles, strict=True):
            if limit.count_rejected:
                single._counters[0].add(clock.now, cost(limit, texts, tokens))


@given(requests, st.lists(limits, min_size=1, max_size=3), st.sampled_from([0.125, 0.5, 2.0]))
def test_scaled_time_changes_nothing_but_the_unit(
    sequence: list[tuple[int, int, int]], combination: list[Limit], scale: float
) -> None:
    plain_clock, scaled_clock = ManualClock(1024.0), ManualClock(1024.0 * scale)
    plain = RateLimiter(combination, clock=plain_clock)
    scaled = RateLimiter(combination, clock=scaled_clock, time_scale=scale)
    for gap, texts, tokens in sequence:
        plain_clock.now += gap / 4
        scaled_clock.now += gap / 4 * scale
        expected = plain.admit(texts=texts, tokens=tokens)
        found = scaled.admit(texts=texts, tokens=tokens)
        assert found.admitted == expected.admitted
        assert found.wait_s == expected.wait_s * scale


def test_fixed_window_lets_twice_the_amount_pass_around_its_edge_and_sliding_does_not() -> None:
    """What tells the two apart for a client that counts in calendar minutes."""
    passed = {}
    for algorithm in ("fixed", "sliding"):
        clock = ManualClock(59.0)
        limiter = RateLimiter(
            [Limit(unit="call", amount=5, algorithm=algorithm)],
            clock=clock,
        )
        first = sum(limiter.admit(texts=1, tokens=1).admitted for _ in range(10))
        clock.now = 61.0
        second = sum(limiter.admit(texts=1, tokens=1).admitted for _ in range(10))
        passed[algorithm] = (first, second)

    assert passed == {"fixed": (5, 5), "sliding": (5, 0)}


def test_sub_window_stops_a_burst_that_the_minute_would_allow() -> None:
    minute = Limit(unit="text", amount=100)
    clock = ManualClock()
    limiter = RateLimiter([minute, sub_window(minute, 10.0)], clock=clock)

    admissions = [limiter.admit(texts=1, tokens=1) for _ in range(18)]

    assert [admission.admitted for admission in admissions] == [True] * 17 + [False]
    assert admissions[-1].limit == Limit(unit="text", amount=17, window_s=10.0)
    assert admissions[-1].wait_s == 10.0


def test_rejected_calls_keep_a_hammering_caller_out_where_they_count() -> None:
    clock = ManualClock()
    limiter = RateLimiter([Limit(unit="call", amount=2, count_rejected=True)], clock=clock)

    admitted = []
    for _ in range(20):
        admitted.append(limiter.admit(texts=1, tokens=1).admitted)
        clock.now += 10.0

    assert admitted == [True, True] + [False] * 18


def test_request_larger_than_the_limit_never_passes() -> None:
    limiter = RateLimiter([Limit(unit="text", amount=10)], clock=ManualClock())

    admission = limiter.admit(texts=11, tokens=1)

    assert not admission.admitted
    assert admission.wait_s == math.inf


def test_everything_passes_without_limits() -> None:
    limiter = RateLimiter(clock=ManualClock())

    assert all(limiter.admit(texts=2048, tokens=10**6).admitted for _ in range(100))


@pytest.mark.parametrize(
    "fields",
    [
        {"amount": 0},
        {"amount": 1, "window_s": 0.0},
        {"amount": 1, "window_s": math.inf},
        {"amount": 1, "burst": 5},
        {"amount": 1, "burst": 0, "algorithm": "bucket"},
    ],
)
def test_limit_without_sense_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must be|needs"):
        Limit(unit="call", **fields)  # type: ignore[arg-type]


def test_day_and_minute_hold_together() -> None:
    clock = ManualClock(0.0)
    limiter = RateLimiter(
        [Limit(unit="call", amount=2), Limit(unit="call", amount=5, window_s=DAY_S)], clock=clock
    )
    passed = 0
    for _ in itertools.repeat(None, 10):
        passed += sum(limiter.admit(texts=1, tokens=1).admitted for _ in range(3))
        clock.now += 60.0

    refused = limiter.admit(texts=1, tokens=1)

    assert passed == 5
    assert refused.limit is not None
    assert refused.limit.window_s == DAY_S
