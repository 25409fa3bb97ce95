"""How memories are ranked: the formulas, in numpy. What the SQL computes is tested against this.

Relevance, recency and importance summed under weights are the retrieval function of Park et al.
2023, "Generative Agents: Interactive Simulacra of Human Behavior", section 4.1. Where we differ:
recency has a half-life in the world's own ticks (theirs: 0.995 per game hour since the last
retrieval); importance is on its fixed scale, a tenth of it; and no term is stretched over what a
query happens to find (theirs: min-max), so a score means the same in every query. Relevance is a
cosine of centred vectors, since models like e5 squeeze raw cosines into .8 to .93.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tickmind.errors import ConfigurationError
from tickmind.memory import Weights

__all__ = [
    "MAX_DOCUMENTS",
    "MAX_HALF_LIVES",
    "NO_RELEVANCE",
    "WORDS_WEIGHT",
    "blended",
    "by_words",
    "counting",
    "fused",
    "rank",
    "recency",
    "relevance",
]

Scores = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Relevance of a vector without a direction (zero, or zero once centred): the least there is.
NO_RELEVANCE = -1.0

#: How much a full match by words adds to a cosine. This, FULL_SHARE, FULL_TERMS and WORDS_POWER are
#: chosen together, as the middle of what loses none of the 25 questions of the demonstration's
#: town, whose observations share few words with what should come to mind, and is at least as good
#: as meaning alone and as words alone on every labelled set (`bench quality` and its notes).
WORDS_WEIGHT = 0.7

# BM25 (Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework: BM25 and Beyond",
# equation 3.15), its usual constants; with a term that is there or not, however often, since
# memories are short (measured: no difference), and a typical length in place of the agent's mean,
# so that a score needs no statistics of the agent but its size.
K1, B = 1.2, 0.75
TYPICAL_TERMS = 30
#: A term that so many memories of the agent have is no help in telling them apart; looking
#: through them would cost more than all other terms.
MAX_DOCUMENTS = 1000
#: Nor is one that this share of them has, once there are some (`SMALL_AGENT`).
MAX_SHARE = 0.25
SMALL_AGENT = 20
#: The best match counts in full where it weighs this share of all terms asked for, or as much as so
#: many terms that no other memory has: a long observation never matches as a whole, and six rare
#: words are no coincidence. What weighs less counts less than in proportion, by this power, so that
#: a word or two in common do not make a match.
FULL_SHARE = 0.3
FULL_TERMS = 6
WORDS_POWER = 1.5

#: Recency stops falling after so many half-lives. 2^-1022 is the smallest normal float64; beyond
#: it PostgreSQL's power() raises "underflow" where numpy gives 0. SQL needs the same LEAST.
MAX_HALF_LIVES = 1022.0

# Below this a weight counts for nothing, as it does beside any other in a float64's 53 bits: the
# smallest recency times this is the smallest float64, and for a smaller product PostgreSQL raises
# "underflow" where numpy gives 0.
_LEAST_WEIGHT = 2.0**-52

# Keeps the sum of three weighted terms a finite float64.
_LARGEST_WEIGHT = 1e307

# Rows taken at once: 4096 x 1536 float64 are 50 MB, whatever the agent's size.
_BLOCK_ROWS = 4096


def counting(weights: Weights) -> Weights:
    """The weights that count, the others 0. SQL is given these, too."""
    given = (weights.relevance, weights.recency, weights.importance)
    counted = [weight if weight >= _LEAST_WEIGHT else 0.0 for weight in given]
    return replace(weights, relevance=counted[0], recency=counted[1], importance=counted[2])


def blended(
    relevance: Scores, recency: Scores, importance: NDArray[np.number], weights: Weights
) -> Scores:
    """w_rel * relevance + w_rec * recency + w_imp * importance / 10.

    All (n,): relevance in [-1, 1], recency in (0, 1], importance in 1..10. Returns (n,) float64,
    finite for finite terms, rising in each term. Raises ConfigurationError for a weight that is
    negative, not finite, or so large that the sum would not be.
    """
    for name in ("relevance", "recency", "importance"):
        weight = getattr(weights, name)
        if not 0 <= weight <= _LARGEST_WEIGHT:  # NaN is not either
            raise ConfigurationError(
                f"the weight of {name} must be between 0 and {_LARGEST_WEIGHT:.0e}, it is {weight}"
            )
    weights = counting(weights)
    # Summed in this order everywhere: float addition is not associative.
    return (
        weights.relevance * np.asarray(relevance, dtype=np.float64)
        + weights.recency * np.asarray(recency, dtype=np.float64)
        + weights.importance * (np.asarray(importance, dtype=np.float64) / 10.0)
    )


def by_words(documents: Sequence[Set[int]], asked: Set[int]) -> Scores:
    """How well the words of each memory of one agent match those asked for: (n,) in [0, 1].

    BM25, over its best in this question, or over what a full match weighs where that is more; to
    the power WORDS_POWER. Terms are any numbers that stand for words.
    """
    size = len(documents)
    scores = np.zeros(size)
    mass = 0.0
    lengths = np.array([len(document) for document in documents], dtype=np.float64)
    for term in sorted(asked):
        holds = np.array([term in document for document in documents], dtype=bool)
        count = int(holds.sum())
        if count > MAX_DOCUMENTS or (size >= SMALL_AGENT and count > MAX_SHARE * size):
            continue
        weight = _inverse_frequency(count, size)
        mass += weight
        scores += holds * weight * (K1 + 1) / (1 + K1 * (1 - B + B * lengths / TYPICAL_TERMS))
    if not scores.any():
        return scores
    full = min(FULL_SHARE * mass, FULL_TERMS * _inverse_frequency(1, size))
    words: Scores = np.power(scores / max(scores.max(), full), WORDS_POWER)
    return words


def _inverse_frequency(count: int, size: int) -> float:
    """What a term weighs that `count` of `size` memories have."""
    return math.log(1 + (size - count + 0.5) / (count + 0.5))


def fused(cosine: Scores, words: Scores) -> Scores:
    """Relevance: what a memory means and the words it has, cosine + WORDS_WEIGHT * words.

    Both (n,): cosine in [-1, 1], words in [0, 1]; returns (n,) in [-1, 1 + WORDS_WEIGHT], rising
    in both. A memory without words of the question keeps its cosine, one without a vector has 0
    for it.
    """
    return cosine + WORDS_WEIGHT * words


def recency(ticks: Integers | Sequence[int], now: int, half_life_ticks: float) -> Scores:
    """2^(-max(0, now - tick) / half_life_ticks): 1 now, a half after one half-life, never 0.

    `ticks`: (n,) int64; `now`: any int64. A memory dated after `now` counts as of now (never more
    than 1). Raises ConfigurationError unless half_life_ticks is finite and > 0.
    """
    if not (math.isfinite(half_life_ticks) and half_life_ticks > 0):
        raise ConfigurationError(
            f"half_life_ticks must be finite and greater than 0, it is {half_life_ticks}"
        )
    then = np.asarray(ticks, dtype=np.int64)
    present = np.int64(now)
    # In uint64 the difference of two int64 is exact wherever it is positive; elsewhere it is 0.
    difference = present.astype(np.uint64) - then.astype(np.uint64)
    elapsed = np.where(then < present, difference, np.uint64(0))
    with np.errstate(over="ignore"):  # a tiny half-life may give inf, which the cap takes
        half_lives = elapsed.astype(np.float64) / half_life_ticks
    return np.exp2(-np.minimum(half_lives, MAX_HALF_LIVES))


def relevance(
    vectors: NDArray[np.floating], query: NDArray[np.floating], mean: NDArray[np.floating] | None
) -> Scores:
    """Cosine of (vector - mean) and (query - mean), per row; of the raw vectors without a mean.

    `vectors`: (n, d); `query`, `mean`: (d,); of any length. Returns (n,) float64 in [-1, 1],
    always finite: what has no direction (zero, zero once centred, or not finite) has
    NO_RELEVANCE, and so has everything where that is the query.
    """
    centre = np.zeros(query.shape) if mean is None else np.asarray(mean, dtype=np.float64)
    scores = np.full(len(vectors), NO_RELEVANCE)
    direction, usable = _directions(query[np.newaxis, :], centre)
    if not usable[0]:
        return scores
    for first in range(0, len(vectors), _BLOCK_ROWS):
        rows, usable = _directions(vectors[first : first + _BLOCK_ROWS], centre)
        # Not `rows @ direction`: BLAS may sum the rows of one product in different orders, and
        # equal vectors must score equally wherever they stand.
        cosines = np.clip((rows * direction).sum(axis=1), -1.0, 1.0)
        scores[first : first + _BLOCK_ROWS] = np.where(usable, cosines, NO_RELEVANCE)
    return scores


def _directions(
    rows: NDArray[np.floating], centre: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool]]:
    """Rows - centre at unit length, (n, d) float64, and which of them have a direction at all;
    the others are zeros."""
    with np.errstate(over="ignore", invalid="ignore"):
        centred = np.ascontiguousarray(rows, dtype=np.float64) - centre
        largest = np.abs(centred).max(axis=1, initial=0.0)
    # A zero vector points nowhere, though minus the mean it would seem to.
    usable = np.isfinite(largest) & (largest > 0) & rows.any(axis=1)
    # Scaled by the largest component first, so that no square over- or underflows.
    scaled = (
        np.where(usable[:, np.newaxis], centred, 0.0)
        / np.where(usable, largest, 1.0)[:, np.newaxis]
    )
    norms = np.linalg.norm(scaled, axis=1)
    return scaled / np.where(usable, norms, 1.0)[:, np.newaxis], usable


def rank(
    scores: Scores, ticks: Integers | Sequence[int], ids: Integers | Sequence[int], k: int
) -> NDArray[np.intp]:
    """Indices of the best `k`: by score, then the newer tick, then the higher id.

    All (n,); ids differ, so the order is total and the same with any input order. A score that
    is NaN comes last.
    """
    known = np.where(np.isnan(scores), -np.inf, scores)
    # lexsort rises and its last key counts most; read backwards it falls, with no negation that
    # could overflow.
    rising = np.lexsort((np.asarray(ids, dtype=np.int64), np.asarray(ticks, dtype=np.int64), known))
    return rising[::-1][: max(k, 0)]
