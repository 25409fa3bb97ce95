"""What must hold of scores whatever the memories, the query and the weights."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tickmind.memory import MAX_TICK, Weights
from tickmind.scoring import blended, rank, recency, relevance

TICKS = st.integers(0, MAX_TICK)
HALF_LIVES = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
WEIGHTS = st.builds(
    Weights,
    relevance=st.floats(0, 1e6),
    recency=st.floats(0, 1e6),
    importance=st.floats(0, 1e6),
)
RELEVANCES = st.floats(-1, 1)
RECENCIES = st.floats(0, 1, exclude_min=True)
IMPORTANCES = st.integers(1, 10)
FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def matrices(elements: st.SearchStrategy[float]) -> st.SearchStrategy[np.ndarray]:
    shapes = st.tuples(st.integers(1, 6), st.integers(1, 9))
    return shapes.flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=elements))


@given(st.lists(TICKS), TICKS, HALF_LIVES)
def test_recency_lies_in_its_range(ticks: list[int], now: int, half_life: float) -> None:
    scores = recency(ticks, now, half_life)
    assert np.isfinite(scores).all()
    assert (scores > 0).all()
    assert (scores <= 1).all()


@given(TICKS, TICKS, TICKS, HALF_LIVES)
def test_recency_never_falls_with_a_newer_tick(
    one: int, other: int, now: int, half_life: float
) -> None:
    old, new = recency(sorted((one, other)), now, half_life)
    assert old <= new


@given(TICKS, TICKS, st.floats(1e-3, 1e6), st.floats(1, 1e6))
def test_recency_never_falls_with_a_longer_half_life(
    tick: int, now: int, half_life: float, factor: float
) -> None:
    assert recency([tick], now, half_life)[0] <= recency([tick], now, half_life * factor)[0]


@given(TICKS, TICKS, st.integers(1, 10**6))
def test_recency_agrees_with_exact_arithmetic(tick: int, now: int, half_life: int) -> None:
    half_lives = Fraction(max(0, now - tick), half_life)
    assume(half_lives < 1000)
    np.testing.assert_allclose(
        recency([tick], now, half_life), [2.0 ** -float(half_lives)], rtol=4e-16
    )


@given(matrices(FLOAT32), st.data())
def test_relevance_is_finite_and_in_range(vectors: np.ndarray, data: st.DataObject) -> None:
    """Case 14: for any vectors, zero ones among them."""
    width = vectors.shape[1]
    query = data.draw(hnp.arrays(np.float32, width, elements=FLOAT32))
    mean = data.draw(st.none() | hnp.arrays(np.float32, width, elements=FLOAT32))
    scores = relevance(vectors, query, mean)
    assert scores.shape == (len(vectors),)
    assert np.isfinite(scores).all()
    assert (np.abs(scores) <= 1).all()


ORDINARY = st.floats(-10, 10, width=32).filter(lambda value: value == 0 or abs(value) > 1e-3)


@given(matrices(ORDINARY), st.data())
def test_relevance_agrees_with_the_definition(vectors: np.ndarray, data: st.DataObject) -> None:
    width = vectors.shape[1]
    query = data.draw(hnp.arrays(np.float32, width, elements=ORDINARY))
    mean = data.draw(hnp.arrays(np.float32, width, elements=ORDINARY))
    wide = [vectors.astype(np.float64), query.astype(np.float64), mean.astype(np.float64)]
    centred, asked = wide[0] - wide[2], wide[1] - wide[2]
    lengths = np.linalg.norm(centred, axis=1) * np.linalg.norm(asked)
    assume((lengths > 0).all() and vectors.any(axis=1).all() and query.any())
    np.testing.assert_allclose(
        relevance(vectors, query, mean), (centred @ asked) / lengths, rtol=0, atol=1e-12
    )


@given(matrices(ORDINARY), st.floats(0.125, 8), st.data())
def test_relevance_ignores_length_without_a_mean(
    vectors: np.ndarray, factor: float, data: st.DataObject
) -> None:
    query = data.draw(hnp.arrays(np.float32, vectors.shape[1], elements=ORDINARY))
    np.testing.assert_allclose(
        relevance(vectors.astype(np.float64) * factor, query, None),
        relevance(vectors, query, None),
        rtol=0,
        atol=1e-12,
    )


@given(matrices(ORDINARY), st.data())
def test_relevance_of_equal_rows_is_equal(vectors: np.ndarray, data: st.DataObject) -> None:
    """Case 18: to the last bit, or a tie would not be one."""
    query = data.draw(hnp.arrays(np.float32, vectors.shape[1], elements=ORDINARY))
    alone = [relevance(row[np.newaxis, :], query, None)[0] for row in vectors]
    assert relevance(np.asfortranarray(vectors), query, None).tolist() == alone


@given(RELEVANCES, RECENCIES, IMPORTANCES, WEIGHTS, st.data())
def test_blended_never_falls_when_a_term_rises(
    relevant: float, recent: float, important: int, weights: Weights, data: st.DataObject
) -> None:
    def score(a: float, b: float, c: int) -> float:
        return float(blended(np.array([a]), np.array([b]), np.array([c]), weights)[0])

    before = score(relevant, recent, important)
    assert np.isfinite(before)
    assert score(data.draw(st.floats(relevant, 1)), recent, important) >= before
    assert score(relevant, data.draw(st.floats(recent, 1)), important) >= before
    assert score(relevant, recent, data.draw(st.integers(important, 10))) >= before


@given(matrices(FLOAT32), TICKS, HALF_LIVES, WEIGHTS, st.data())
def test_scores_are_finite_and_rank_whatever_they_are_made_of(
    vectors: np.ndarray, now: int, half_life: float, weights: Weights, data: st.DataObject
) -> None:
    """Case 14, 23: zero vectors, a query at the mean, memories of the future, tiny half-lives."""
    count, width = vectors.shape
    query = data.draw(hnp.arrays(np.float32, width, elements=FLOAT32))
    mean = data.draw(st.none() | st.just(query) | hnp.arrays(np.float32, width, elements=FLOAT32))
    ticks = data.draw(st.lists(TICKS, min_size=count, max_size=count))
    importance = np.array(data.draw(st.lists(IMPORTANCES, min_size=count, max_size=count)))
    relevant = relevance(vectors, query, mean)

    def scored(ticks: list[int], importance: np.ndarray) -> np.ndarray:
        return blended(relevant, recency(ticks, now, half_life), importance, weights)

    scores = scored(ticks, importance)
    assert np.isfinite(scores).all()
    assert (np.abs(scores) <= weights.relevance + weights.recency + weights.importance + 1).all()
    newer = [data.draw(st.integers(tick, MAX_TICK)) for tick in ticks]
    assert (scored(newer, importance) >= scores).all()
    assert (scored(ticks, np.minimum(importance + 1, 10)) >= scores).all()
    order = rank(scores, ticks, range(1, count + 1), count)
    assert sorted(order.tolist()) == list(range(count))


@given(RELEVANCES, RECENCIES, IMPORTANCES, WEIGHTS, st.data())
def test_term_of_no_weight_changes_nothing(
    relevant: float, recent: float, important: int, weights: Weights, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(["relevance", "recency", "importance"]))
    terms = {"relevance": relevant, "recency": recent, "importance": important}
    without = replace(weights, **{name: 0.0})

    def score(**terms: float) -> float:
        found = blended(
            np.array([terms["relevance"]]),
            np.array([terms["recency"]]),
            np.array([terms["importance"]]),
            without,
        )
        return float(found[0])

    other = {"relevance": RELEVANCES, "recency": RECENCIES, "importance": IMPORTANCES}[name]
    assert score(**terms) == score(**(terms | {name: data.draw(other)}))


@given(
    st.lists(
        st.tuples(st.sampled_from([-1.0, 0.0, -0.0, 0.5, 1.0]), st.integers(0, 3) | TICKS),
        max_size=20,
    ),
    st.integers(0, 25),
    st.randoms(use_true_random=False),
)
def test_rank_is_a_total_order_independent_of_input_order(
    rows: list[tuple[float, int]], k: int, random: Random
) -> None:
    memories = [(score, tick, number) for number, (score, tick) in enumerate(rows, start=1)]
    expected = sorted(memories, reverse=True)[:k]
    shuffled = memories.copy()
    random.shuffle(shuffled)
    order = rank(
        np.array([score for score, _, _ in shuffled], dtype=np.float64),
        [tick for _, tick, _ in shuffled],
        [number for _, _, number in shuffled],
        k,
    )
    assert [shuffled[index] for index in order] == expected
