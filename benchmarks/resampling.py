"""How much of a difference between two ways to rank may be chance."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

__all__ = ["interval"]

#: Samples drawn: the ends of the interval then vary by less than 0.001.
_SAMPLES = 4000
_ENDS = (2.5, 97.5)


def interval(differences: Sequence[float], groups: Sequence[Hashable]) -> tuple[float, float]:
    """Between which values the mean of the differences lies, at 95 %: percentiles of a bootstrap
    (Efron 1979) that draws whole groups, since questions about the same thing are no witnesses of
    their own. Both of one length, at least one. The same input gives the same interval."""
    values = np.asarray(differences, dtype=np.float64)
    places = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    numbers = np.array([places[group] for group in groups])
    sums = np.bincount(numbers, weights=values)
    counts = np.bincount(numbers)
    drawn = np.random.default_rng(0).integers(0, len(places), (_SAMPLES, len(places)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.percentile(means, _ENDS)
    return float(low), float(high)
