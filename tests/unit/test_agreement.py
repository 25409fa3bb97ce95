"""Overlap of what comes to mind in two spaces."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tickmind.agreement import Agreement, agree

#: Texts on a circle; the query looks along the first axis, so the nearest angles come first.
ANGLES = np.radians([0, 10, 20, 30, 40, 50, 60, 70])


def _at(angles: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


NORTH = np.array([1, 0], dtype=np.float32)
SOUTH = np.array([0, 1], dtype=np.float32)


def test_overlap_is_the_share_of_the_best_that_both_have() -> None:
    """The other space sees the same texts turned by two places: 0 and 1 fall out of five."""
    turned = np.radians([80, 85, 0, 10, 20, 30, 40, 50])
    found = agree(NORTH, _at(ANGLES), None, NORTH, _at(turned), None, k=5)
    assert found.best == (0, 1, 2, 3, 4)
    assert found.other_best == (2, 3, 4, 5, 6)
    assert found.overlap == pytest.approx(3 / 5)


def test_text_of_the_query_itself_takes_no_part() -> None:
    found = agree(NORTH, _at(ANGLES), None, NORTH, _at(ANGLES), None, k=3, without=[0])
    assert found == Agreement(best=(1, 2, 3), other_best=(1, 2, 3))
    assert found.overlap == 1


def test_widths_may_differ() -> None:
    wide = np.pad(_at(ANGLES[::-1]), ((0, 0), (0, 6)))
    query = np.pad(NORTH, (0, 6))
    found = agree(NORTH, _at(ANGLES), None, query, wide, None, k=2)
    assert (found.best, found.other_best, found.overlap) == ((0, 1), (7, 6), 0)


def test_relevance_is_of_centred_vectors_where_a_mean_is_known() -> None:
    """Around the mean the query points the other way."""
    mean = np.array([2, 0.5], dtype=np.float32)
    raw = agree(SOUTH, _at(ANGLES), None, SOUTH, _at(ANGLES), None, k=1)
    centred = agree(SOUTH, _at(ANGLES), mean, SOUTH, _at(ANGLES), None, k=1)
    assert raw.best == (7,)
    away = _at(ANGLES) - mean
    towards = SOUTH - mean
    cosines = away @ towards / np.linalg.norm(away, axis=1)
    assert centred.best == (int(cosines.argmax()),)
    assert centred.other_best == (7,)


def test_equals_come_in_their_own_order() -> None:
    same = np.ones((4, 2), dtype=np.float32)
    assert agree(NORTH, same, None, NORTH, same, None, k=2).best == (0, 1)
