"""What is expected of the next time, from what it took before."""

from __future__ import annotations

from itertools import cycle, islice

import pytest

from tickmind_retriever.expecting import Expected


def _after(*took: float, times: int = 100) -> float:
    expected = Expected()
    for seconds in islice(cycle(took), times):
        expected.took(seconds)
    return expected.seconds


def test_nothing_is_expected_before_anything_is_known() -> None:
    assert Expected().seconds == 0.0


def test_what_always_takes_as_long_is_expected_to() -> None:
    assert _after(0.3) == pytest.approx(0.3)


def test_what_differs_is_expected_to_take_as_long_as_it_ever_did() -> None:
    assert _after(0.1, 0.3) == pytest.approx(0.4, abs=0.02)


def test_a_stall_is_forgotten_after_some_quick_ones() -> None:
    expected = Expected()
    for _ in range(50):
        expected.took(0.8)
    for _ in range(30):
        expected.took(0.01)
    assert expected.seconds < 0.1
