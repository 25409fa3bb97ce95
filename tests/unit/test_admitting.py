"""Which recalls are begun where more is asked than can be answered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tickmind_retriever.admitting import Admission


@pytest.fixture
def busy() -> Iterator[Admission]:
    """Answers take 0.5 s, and two requests, as many as `free`, are under way."""
    admission = Admission(free=2)
    for _ in range(100):
        admission.answered(0.5)
    with admission.begun(), admission.begun():
        yield admission


def test_request_with_less_time_left_than_answers_take_is_refused(busy: Admission) -> None:
    assert not busy.admits(left_s=0.3, waited_s=0.5)
    assert busy.admits(left_s=0.6, waited_s=0.2)


def test_request_that_did_not_wait_is_begun_however_short_its_deadline(busy: Admission) -> None:
    assert busy.admits(left_s=0.05, waited_s=0.0)


def test_request_is_begun_while_few_are_under_way() -> None:
    admission = Admission(free=2)
    admission.cut_off(0.8)
    with admission.begun():
        assert admission.admits(left_s=0.1, waited_s=0.7)
        with admission.begun():
            assert not admission.admits(left_s=0.1, waited_s=0.7)
        assert admission.admits(left_s=0.1, waited_s=0.7)


def test_nothing_is_refused_before_anything_took_long() -> None:
    admission = Admission(free=0)
    assert admission.admits(left_s=0.001, waited_s=0.799)


def test_requests_begun_in_vain_raise_what_is_expected() -> None:
    admission = Admission(free=0)
    for _ in range(20):
        admission.cut_off(0.4)
    assert admission.expected_s == pytest.approx(0.4, rel=0.02)
    admission.cut_off(0.1)  # it would have taken longer: no sign of being quick
    assert admission.expected_s == pytest.approx(0.4, rel=0.02)


def test_quick_answers_lower_what_is_expected_within_a_hundred() -> None:
    admission = Admission(free=0)
    admission.cut_off(4.0)
    for _ in range(100):
        admission.answered(0.01)
    assert admission.expected_s < 0.02
