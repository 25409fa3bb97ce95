"""How far two embedding spaces agree on what comes to mind. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tickmind.scoring import relevance

__all__ = ["Agreement", "agree"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """One query. `best` and `other_best`: places of the texts that come first in each space, best
    first; `overlap`: the share of the first that the second has, too."""

    best: tuple[int, ...]
    other_best: tuple[int, ...]

    @property
    def overlap(self) -> float:
        return len({*self.best} & {*self.other_best}) / len(self.best)


def agree(
    query: NDArray[np.float32],
    vectors: NDArray[np.float32],
    mean: NDArray[np.float32] | None,
    other_query: NDArray[np.float32],
    other_vectors: NDArray[np.float32],
    other_mean: NDArray[np.float32] | None,
    *,
    k: int,
    without: Sequence[int] = (),
) -> Agreement:
    """The `k` most relevant of the same texts in two spaces, as `blended` recalls tell relevance.

    `query`: (d,), `vectors`: (n, d), `mean`: (d,), all float32; `other_*`: the same texts in the
    other space, d' wide. `without`: places that do not take part (the query's own text). n less
    those is at least `k`.
    """
    return Agreement(
        best=_best(relevance(vectors, query, mean), k, without),
        other_best=_best(relevance(other_vectors, other_query, other_mean), k, without),
    )


def _best(scores: NDArray[np.float64], k: int, without: Sequence[int]) -> tuple[int, ...]:
    """Places of the highest scores, the lower place first among equals."""
    scores = scores.copy()
    scores[list(without)] = -np.inf
    order = np.argsort(-scores, kind="stable")[:k]
    return tuple(int(place) for place in order)
