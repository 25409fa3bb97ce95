"""How the share of a budget is computed."""

from __future__ import annotations

import random

import pytest

from benchmarks.embedder_share import Admitted, budget_used, share_of_spans, span_s
from tickmind.limits import Limit
from tickmind.local.provider.limits import Limit as Enforced
from tickmind.local.provider.limits import RateLimiter

_TEXTS = Limit(amount=100, unit="texts", window_s=6)
_WINDOWS = 5


def _every(seconds: float, *, until: float, texts: int) -> list[Admitted]:
    count = int(until / seconds)
    return [Admitted(at=number * seconds, texts=texts, tokens=texts * 7) for number in range(count)]


def test_span_is_one_window_longer_than_what_is_looked_at() -> None:
    assert span_s([_TEXTS, Limit(amount=20, unit="texts", window_s=1)], _WINDOWS) == 36


@pytest.mark.parametrize(
    ("at", "share"), [(0, 0), (3, 0.5), (6, 1), (29.9, 1), (33, 0.5), (36, 0), (50, 0)]
)
def test_moment_counts_by_the_spans_it_is_in(at: float, share: float) -> None:
    assert share_of_spans(at, window_s=6, windows=_WINDOWS) == pytest.approx(share)


def test_all_of_the_budget_is_one() -> None:
    calls = _every(0.06, until=40, texts=1)
    assert budget_used(calls, [_TEXTS], windows=_WINDOWS) == pytest.approx(1, abs=1e-9)


def test_half_of_the_budget_is_a_half() -> None:
    calls = _every(0.12, until=40, texts=1)
    assert budget_used(calls, [_TEXTS], windows=_WINDOWS) == pytest.approx(0.5, abs=1e-9)


def test_burst_into_empty_windows_counts_for_nothing() -> None:
    calls = [Admitted(at=0.0, texts=100, tokens=0)]
    assert budget_used(calls, [_TEXTS], windows=_WINDOWS) == 0


@pytest.mark.parametrize("late_s", [0.06, 0.3, 0.6])
def test_bursts_that_come_late_each_time_show_it(late_s: float) -> None:
    """A whole number of bursts fits into the span however late each is; its share is still
    less."""
    calls = [
        Admitted(at=number * (6 + late_s), texts=100, tokens=0)
        for number in range(7)
        if number * (6 + late_s) < 36
    ]
    used = budget_used(calls, [_TEXTS], windows=_WINDOWS)
    assert used == pytest.approx(6 / (6 + late_s), abs=0.01)


def test_limit_that_was_used_most_counts() -> None:
    tokens = Limit(amount=1400, unit="tokens", window_s=6)  # twice what the texts come to
    calls = _every(0.06, until=40, texts=1)
    both = budget_used(calls, [tokens, _TEXTS], windows=_WINDOWS)
    assert both == pytest.approx(1, abs=1e-9)
    assert budget_used(calls, [tokens], windows=_WINDOWS) == pytest.approx(0.5, abs=1e-9)


def test_short_window_counts_as_often_as_it_goes_into_the_long_one() -> None:
    short = Limit(amount=20, unit="texts", window_s=1)
    calls = _every(0.06, until=40, texts=1)  # 100 in 6 s of the 120 that it allows
    assert budget_used(calls, [short], windows=_WINDOWS) == pytest.approx(100 / 120, abs=0.01)


def test_window_that_does_not_go_into_the_longest_is_refused() -> None:
    limits = [_TEXTS, Limit(amount=20, unit="texts", window_s=4)]
    with pytest.raises(ValueError, match="evenly"):
        budget_used([], limits, windows=_WINDOWS)


@pytest.mark.parametrize("seed", range(5))
def test_share_never_exceeds_one_whatever_a_sliding_window_lets_pass(seed: int) -> None:
    source = random.Random(seed)
    now = 0.0
    limiter = RateLimiter([Enforced(unit="text", amount=100, window_s=6)], clock=lambda: now)
    calls = []
    while now < 40:
        texts = source.randint(1, 40)
        if limiter.admit(texts=texts, tokens=0).admitted:
            calls.append(Admitted(at=now, texts=texts, tokens=0))
        now += source.expovariate(30)
    used = budget_used(calls, [_TEXTS], windows=_WINDOWS)
    assert 0.5 < used <= 1 + 1e-9
