"""How `soak` finds a capacity, what it plays, and what it makes of what it saw."""

from __future__ import annotations

import pytest

from benchmarks.soak import Options
from benchmarks.soak_figures import (
    Ledger,
    Ramp,
    drift,
    growth,
    percentile,
    settle,
    slope_per_hour,
    steady,
)
from benchmarks.soak_towns import DECISIONS, MEMORIES, Towns
from tickmind.decoding import decode_tick
from tickmind.encoding import tick_bodies
from tickmind.grading import grade
from tickmind.policy import default_policy


def _found(ramp: Ramp, most: float) -> float | None:
    """The capacity that a ramp finds where every rate up to `most` is sustained."""
    steps = 0
    while not ramp.done:
        ramp.tell(sustained=ramp.rate <= most)
        steps += 1
        assert steps < 30
    return ramp.capacity


@pytest.mark.parametrize("most", [0.7, 4.0, 17.0, 100.0])
def test_ramp_finds_a_capacity_just_below_what_is_sustained(most: float) -> None:
    found = _found(Ramp(rate=4.0), most)

    assert found is not None
    assert found <= most < found * 1.5


def test_ramp_comes_closer_with_every_halving() -> None:
    found = _found(Ramp(rate=4.0, halvings=6), 17.0)

    assert found == pytest.approx(17.0, rel=0.02)


def test_ramp_where_nothing_is_sustained_ends_without_a_capacity() -> None:
    assert _found(Ramp(rate=4.0), 0.0) is None


def test_slope_is_told_by_the_hour() -> None:
    assert slope_per_hour([(10.0 + s, 50.0 + s / 60) for s in range(0, 600, 5)]) == pytest.approx(
        60.0
    )


def test_slope_of_one_moment_is_none() -> None:
    assert slope_per_hour([(3.0, 50.0)]) == 0.0


def test_growth_compares_the_ends_and_not_what_lies_between() -> None:
    assert growth([100.0, 100.0, *[500.0] * 16, 110.0, 110.0]) == pytest.approx(1.1)


def test_percentile_is_a_value_that_was_seen() -> None:
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile([7.0], 0.99) == 7.0


def test_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_drift_compares_the_last_third_with_the_first() -> None:
    calls = [(float(at), 10.0) for at in range(100)]
    calls += [(float(at), 30.0) for at in range(200, 300)]
    calls += [(150.0, 1000.0)]

    assert drift(calls) == 3.0


@pytest.mark.parametrize(
    ("good", "since"),
    [([0, 1, 1, 1], 1.0), ([1, 1, 0, 1, 1, 1], 3.0), ([1, 1, 0, 1, 1], None), ([], None)],
)
def test_steady_begins_with_the_first_long_enough_run(good: list[int], since: float | None) -> None:
    outcomes = [(float(at), bool(fine)) for at, fine in enumerate(good)]

    assert steady(reversed(outcomes), run=3) == since


@pytest.mark.parametrize(
    ("levels", "since"), [([5, 0, 3, 0, 0], 3.0), ([0, 0], 0.0), ([0, 2], None), ([], None)]
)
def test_settle_is_when_the_level_stayed_down(levels: list[int], since: float | None) -> None:
    assert settle(((float(at), level) for at, level in enumerate(levels)), most=0) == since


def test_ledger_tells_what_is_lost_and_what_is_too_much() -> None:
    ledger = Ledger.of(
        {"a": {0, 1, 2}, "b": {0}},
        {"a": {0: 30, 1: 29, 7: 30}, "b": {0: 31}},
        memories_a_tick=30,
    )

    assert (ledger.confirmed, ledger.stored) == (4, 120)
    assert ledger.lost == 30 + 1
    assert ledger.extra == 1


def test_ledger_of_an_unconfirmed_tick_wants_it_whole() -> None:
    assert Ledger.of({"a": set()}, {"a": {4: 12}}, memories_a_tick=30).lost == 18


def test_tick_comes_to_as_many_memories_as_the_ledger_expects() -> None:
    towns = Towns(count=1, life=10)

    texts = []
    for _ in range(20):
        town, tick = towns.next()
        (body,) = tick_bodies(town.name, tick, towns.decisions(), None)
        decoded = decode_tick(body)
        graded = grade(decoded, default_policy())
        assert len(decoded.decisions) == DECISIONS
        assert len(graded.memories) == MEMORIES
        assert not graded.rejected
        texts += [memory.content for memory in graded.memories if memory.kind == "conversation"]
    assert len(set(texts)) == len(texts)


def test_towns_end_at_their_age_and_new_ones_begin() -> None:
    towns = Towns(count=2, life=3)

    played = [towns.next() for _ in range(8)]

    assert len({(town.name, tick) for town, tick in played}) == 8
    assert max(tick for _, tick in played) == 2
    assert len(towns.all) == 4


def test_towns_begin_at_ages_spread_over_a_life() -> None:
    assert [age for _, age in Towns(count=3, life=1000).ages()] == [0, 333, 666]


@pytest.mark.parametrize(("minutes", "warm_up_s", "overload_s"), [(1, 15, 30), (20, 120, 90)])
def test_shorter_soak_warms_up_and_overloads_for_less(
    minutes: float, warm_up_s: float, overload_s: float
) -> None:
    options = Options(minutes=minutes)

    assert (options.warm_up_s, options.overload_s) == (warm_up_s, overload_s)
