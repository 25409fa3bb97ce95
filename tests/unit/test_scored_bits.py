"""Differing bits of scored bits count what the score's terms do."""

from __future__ import annotations

import math

import pytest

from tickmind.memory import Weights
from tickmind.scored_bits import ScoredBits
from tickmind.signature import BITS

_NONE = bytes(BITS // 8)


def _memory(bits: ScoredBits, *, importance: int, tick: int) -> str:
    """As `expression` has it in SQL, its signature all 0."""
    level = sum(tick >= begin for begin in bits.ticks)
    groups = len(bits.ticks)
    size = (bits.length - BITS - 9 * 14) // groups
    return (
        "0" * BITS
        + "1" * 14 * (importance - 1) + "0" * 14 * (10 - importance)
        + "1" * size * level + "0" * size * (groups - level)
    )  # fmt: skip


def _differing(one: str, other: str) -> int:
    return (int(one, 2) ^ int(other, 2)).bit_count()


@pytest.mark.parametrize("half_life", [50.0, 500.0, 5000.0])
@pytest.mark.parametrize(("first", "last"), [(0, 2000), (7, 7), (10**12, 10**12 + 50_000)])
def test_nearer_by_as_much_as_the_score_is_better(half_life: float, first: int, last: int) -> None:
    bits = ScoredBits.over(first, last)
    weights = Weights()
    tick = last + 1
    sought = bits.of_question(_NONE, weights, tick=tick, half_life_ticks=half_life)
    assert sought is not None
    assert len(sought) == bits.length
    for at in range(first, last + 1, max(1, (last - first) // 97)):
        for importance in (1, 4, 10):
            terms = weights.importance * importance / 10
            terms += weights.recency * 2 ** -((tick - at) / half_life)
            best = weights.importance + weights.recency * 2 ** -((tick - last) / half_life)
            further = _differing(sought, _memory(bits, importance=importance, tick=at))
            nearest = _differing(sought, _memory(bits, importance=10, tick=last))
            lost = (further - nearest) * math.pi / BITS
            # Groups are of whole bits, and ages of steps.
            assert lost == pytest.approx(best - terms, abs=0.03)


@pytest.mark.parametrize(
    "weights",
    [
        Weights(relevance=0.0),
        Weights(importance=0.3),
        Weights(recency=0.2),
    ],
)
def test_weights_beyond_the_groups_are_refused(weights: Weights) -> None:
    bits = ScoredBits.over(0, 2000)
    assert bits.of_question(_NONE, weights, tick=2000, half_life_ticks=500) is None


def test_expression_is_of_numbers_alone() -> None:
    expression = ScoredBits.over(0, 2000).expression()
    assert "ARRAY[" in expression
    assert not set("\"';\\") & set(expression.replace("B'", "").replace("'", ""))
