"""Ranking formulas on values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tickmind.errors import ConfigurationError
from tickmind.memory import MAX_TICK, Weights
from tickmind.scoring import MAX_HALF_LIVES, NO_RELEVANCE, blended, rank, recency, relevance


def test_relevance_of_a_zero_vector_is_the_least_whatever_the_mean() -> None:
    """case 14: minus the mean it would seem to point somewhere."""
    vectors = np.array([[0.0, 0.0], [1.0, 0.0]])
    mean = np.array([-0.5, 0.0])
    assert relevance(vectors, np.array([1.0, 0.0]), mean)[0] == NO_RELEVANCE
    assert (relevance(vectors, np.zeros(2), mean) == NO_RELEVANCE).all()


def test_recency_halves_with_each_half_life() -> None:
    assert recency([200, 100, 0], 200, 100.0).tolist() == [1.0, 0.5, 0.25]


def test_recency_of_a_memory_from_the_future_is_one() -> None:
    """Case 23: recency never exceeds 1."""
    assert recency([201, MAX_TICK], 200, 10.0).tolist() == [1.0, 1.0]


def test_recency_is_exact_at_the_ends_of_int64() -> None:
    """Case 8: ticks beyond 2^53 neither overflow nor lose their difference."""
    assert recency([MAX_TICK - 1, MAX_TICK], MAX_TICK, 1.0).tolist() == [0.5, 1.0]
    assert recency([0], MAX_TICK, float(2**63)).tolist() == [0.5]
    # Farther apart than int64 reaches: 2^64 - 1, which float64 rounds to 2^64.
    assert recency([-(2**63)], MAX_TICK, float(2**64)).tolist() == [0.5]


def test_recency_never_reaches_zero() -> None:
    oldest = recency([0], MAX_TICK, 5e-324)
    assert oldest.tolist() == [2.0**-MAX_HALF_LIVES]
    assert oldest[0] > 0


@pytest.mark.parametrize("half_life", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_recency_refuses_a_half_life_that_is_none(half_life: float) -> None:
    with pytest.raises(ConfigurationError, match="half_life_ticks"):
        recency([1], 2, half_life)


def test_relevance_is_the_raw_cosine_without_a_mean() -> None:
    vectors = np.array([[2, 0], [0, 3], [-1, 0], [1, 1]], dtype=np.float32)
    expected = [1.0, 0.0, -1.0, math.sqrt(0.5)]
    assert relevance(vectors, np.array([5.0, 0.0], dtype=np.float32), None) == pytest.approx(
        expected, abs=1e-15
    )


def test_relevance_is_the_cosine_of_centred_vectors_with_a_mean() -> None:
    vectors = np.array([[1, 1], [1, -1], [3, 0]], dtype=np.float32)
    mean = np.array([1.0, 0.0], dtype=np.float32)
    query = np.array([1.0, 2.0], dtype=np.float32)
    assert relevance(vectors, query, mean) == pytest.approx([1.0, -1.0, 0.0], abs=1e-15)


def test_relevance_of_a_zero_vector_is_the_least() -> None:
    """Case 14: finite, and never on top."""
    vectors = np.array([[0, 0], [-1, 0.5], [1, 0]], dtype=np.float32)
    scores = relevance(vectors, np.array([1.0, 0.0], dtype=np.float32), None)
    assert scores[0] == NO_RELEVANCE
    assert np.argmin(scores) == 0
    assert np.isfinite(scores).all()


def test_relevance_of_a_vector_that_is_the_mean_is_the_least() -> None:
    """Case 14, centred."""
    mean = np.array([0.25, 0.5], dtype=np.float32)
    scores = relevance(np.array([mean, mean * 2]), np.array([1.0, 1.0], dtype=np.float32), mean)
    assert scores[0] == NO_RELEVANCE
    assert scores[1] > 0


@pytest.mark.parametrize("mean", [None, np.zeros(2)])
def test_relevance_to_a_zero_query_is_the_least_for_all(mean: np.ndarray | None) -> None:
    """Case 14: a zero query orders nothing."""
    vectors = np.array([[1, 0], [0, 0]], dtype=np.float32)
    assert relevance(vectors, np.zeros(2), mean).tolist() == [NO_RELEVANCE, NO_RELEVANCE]


def test_relevance_to_a_query_that_is_the_mean_is_the_least_for_all() -> None:
    mean = np.array([0.5, 0.5])
    assert relevance(np.eye(2), mean, mean).tolist() == [NO_RELEVANCE, NO_RELEVANCE]


def test_relevance_of_vectors_that_are_not_finite_is_the_least() -> None:
    vectors = np.array([[math.nan, 1], [math.inf, 1], [1, 0]])
    assert relevance(vectors, np.array([1.0, 0.0]), None).tolist() == [-1.0, -1.0, 1.0]


def test_relevance_holds_at_extreme_lengths() -> None:
    vectors = np.array([[1e200, 1e200], [1e-200, 1e-200]])
    assert relevance(vectors, np.array([1e300, 0.0]), None) == pytest.approx([math.sqrt(0.5)] * 2)


def test_relevance_is_the_same_across_blocks_of_rows() -> None:
    """Case 18: equal vectors score equally wherever they stand."""
    row = np.random.default_rng(7).normal(size=33)
    scores = relevance(np.tile(row, (9001, 1)), np.arange(33.0), np.full(33, 0.1))
    assert len(np.unique(scores)) == 1


def test_relevance_of_no_vectors_is_empty() -> None:
    assert relevance(np.empty((0, 3)), np.ones(3), None).shape == (0,)


def test_blended_is_the_weighted_sum() -> None:
    scores = blended(
        np.array([0.5, -1.0]),
        np.array([0.25, 1.0]),
        np.array([8, 10]),
        Weights(relevance=1.0, recency=0.2, importance=0.5),
    )
    assert scores == pytest.approx([0.5 + 0.05 + 0.4, -1.0 + 0.2 + 0.5])


def test_blended_weights_default_to_relevance_first() -> None:
    relevant = blended(np.array([0.9]), np.array([0.01]), np.array([1]), Weights())
    recent = blended(np.array([0.3]), np.array([1.0]), np.array([10]), Weights())
    assert relevant[0] > recent[0]


@pytest.mark.parametrize("name", ["relevance", "recency", "importance"])
@pytest.mark.parametrize("weight", [-0.1, math.nan, math.inf, 1e308])
def test_blended_refuses_a_weight_out_of_range(name: str, weight: float) -> None:
    one = np.ones(1)
    with pytest.raises(ConfigurationError, match=f"weight of {name}"):
        blended(one, one, one, Weights(**{name: weight}))


def test_rank_orders_by_score_then_newer_tick_then_higher_id() -> None:
    """Case 18: ties are broken by a documented key."""
    scores = np.array([0.5, 0.9, 0.5, 0.5, 0.1])
    ticks = [10, 1, 20, 20, 99]
    ids = [1, 2, 3, 4, 5]
    assert rank(scores, ticks, ids, 5).tolist() == [1, 3, 2, 0, 4]


def test_rank_breaks_ties_exactly_at_the_largest_ticks() -> None:
    """Case 8: ticks that float64 cannot tell apart."""
    scores = np.zeros(3)
    assert rank(scores, [MAX_TICK - 1, MAX_TICK, MAX_TICK - 2], [1, 2, 3], 3).tolist() == [1, 0, 2]


@pytest.mark.parametrize(("k", "count"), [(0, 0), (-1, 0), (2, 2), (9, 3)])
def test_rank_gives_at_most_k(k: int, count: int) -> None:
    assert len(rank(np.array([1.0, 2.0, 3.0]), [1, 2, 3], [1, 2, 3], k)) == count


def test_rank_puts_a_nan_last() -> None:
    assert rank(np.array([math.nan, -5.0]), [9, 1], [9, 1], 2).tolist() == [1, 0]
