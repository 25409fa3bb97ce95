"""How sure a difference in quality is, and what the labelled sets hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.labelled import labelled
from benchmarks.resampling import interval


def test_interval_of_one_value_is_that_value() -> None:
    assert interval([0.25] * 8, range(8)) == (0.25, 0.25)


def test_interval_holds_the_mean_and_is_the_same_each_time() -> None:
    differences = [0.0] * 70 + [1.0] * 30
    low, high = interval(differences, range(100))
    # A share of 0.3 among a hundred: 1.96 times its standard error of 0.046.
    assert low == pytest.approx(0.3 - 0.09, abs=0.015)
    assert high == pytest.approx(0.3 + 0.09, abs=0.015)
    assert interval(differences, range(100)) == (low, high)


def test_interval_is_wider_where_questions_are_about_the_same_thing() -> None:
    differences = [0.0, 1.0] * 50
    alone = interval(differences, range(100))
    together = interval(differences, [n // 20 * 2 + n % 2 for n in range(100)])
    assert together[0] < alone[0] < 0.5 < alone[1] < together[1]


def test_each_question_of_the_labelled_sets_can_be_answered(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a memory of the agent that is asked, told before it is."""
    monkeypatch.setenv("TICKMIND_DATA", str(data))
    sets = {one.name: one for one in labelled()}
    asked = {name: len(one.questions) for name, one in sets.items()}
    assert asked == {"bank_zh": 34, "bank_en": 21, "bank_zh_en": 21, "town_zh": 368, "demo": 25}
    for one in sets.values():
        for question in one.questions:
            told = one.memories[question.agent]
            now = one.tick if question.tick is None else question.tick
            assert question.relevant
            assert all(told[place].tick <= now for place in question.relevant)
