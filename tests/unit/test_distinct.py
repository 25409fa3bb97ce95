"""Which memories say the same, and which of them come back."""

from __future__ import annotations

import pytest

from tickmind.distinct import distinct, folded, merged
from tickmind.memory import Distinct, Scored


def memory(number: int, content: str, *, score: float = 0.0, core: bool = False) -> Scored:
    return Scored(
        id=number,
        tick=number,
        kind="observation",
        content=content,
        importance=5,
        score=score,
        relevance=score,
        recency=1.0,
        is_core=core,
    )


@pytest.mark.parametrize(
    ("one", "other", "rule"),
    [
        ("I moved to (3, 4)", "i moved to (3,4).", "text"),
        ("I moved to (3, 4)", "I moved to\n(3, 4)!", "text"),
        ("我走到了(3, 4)", "我走到了（３，４）", "text"),
        ("I moved to (3, 4)", "I moved to (15, 8)", "numbers"),
        ("I moved to (3, 4)", "I moved to (-3.5, 8)", "numbers"),
        ("I moved to (−3, 4)", "I moved to (-3, 4)", "text"),
    ],
)
def test_folds_what_says_the_same(one: str, other: str, rule: Distinct) -> None:
    assert folded(one, rule) == folded(other, rule)


@pytest.mark.parametrize(
    ("one", "other", "rule"),
    [
        ("I moved to (3, 4)", "I moved to (3, 4)", "text"),
        ("I moved to (1, 52)", "I moved to (15, 2)", "text"),
        ("I moved to (-3, 4)", "I moved to (3, 4)", "text"),
        ("it costs 1.5", "it costs 15", "text"),
        ("17 told me: hello", "18 told me: hello", "text"),
        ("हिन्दी", "हन्दा", "text"),
        ("…", "!", "text"),
        ("I moved to (3, 4), home", "I moved to (3, 4)", "numbers"),
        ("a" * 500 + "x", "a" * 500 + "y", "text"),
    ],
)
def test_keeps_apart_what_says_something_else(one: str, other: str, rule: Distinct) -> None:
    assert (folded(one, rule) == folded(other, rule)) is (one == other)


def test_off_keeps_all_and_the_others_the_best_of_each() -> None:
    said = [memory(3, "fish"), memory(2, "Fish!"), memory(1, "bread")]
    assert [m.id for m in distinct(said, "off", 5)] == [3, 2, 1]
    assert [m.id for m in distinct(said, "text", 5)] == [3, 1]
    assert [m.id for m in distinct(said, "text", 1)] == [3]
    assert distinct(said, "text", 0) == []


def test_core_memories_come_first_at_most_so_many_and_once() -> None:
    core = [memory(n, f"I am {n}", core=True) for n in (9, 8, 7)]
    ranked = [memory(1, "fish"), core[0], core[2], memory(2, "I am 9."), memory(3, "bread")]
    found = merged(core, ranked, rule="text", most=4, most_core=2)
    assert [m.id for m in found] == [9, 8, 1, 7]
    assert [m.id for m in merged(core, ranked, rule="text", most=2, most_core=3)] == [9, 8]
    assert [m.id for m in merged((), ranked, rule="off", most=2, most_core=0)] == [1, 9]
