"""Which recalls are begun where more is asked than can be answered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tickmind_retriever.admitting import Admission


@pytest.fixture
def busy() -> Iterator[Admission]:
    """Answers take 0.5 s, and one request is under way."""
    admission = Admission()
    for _ in range(100):
        admission.answered(after_s=0.5)
    with admission.begun():
        yield admission


def test_request_with_less_time_left_than_answers_take_is_refused(busy: Admission) -> None:
    assert not busy.admits(left_s=0.3, waited_s=0.5)
    assert busy.admits(left_s=0.6, waited_s=0.2)


def test_request_that_did_not_wait_is_begun_however_short_its_deadline(busy: Admission) -> None:
    assert busy.admits(left_s=0.05, waited_s=0.0)


def test_first_request_is_begun_whatever_is_expected() -> None:
    admission = Admission()
    for _ in range(100):
        admission.answered(after_s=0.5)
    assert admission.admits(left_s=0.1, waited_s=0.7)


def test_quick_answers_let_those_begin_that_waited(busy: Admission) -> None:
    for _ in range(50):
        busy.answered(after_s=0.01)
    assert busy.admits(left_s=0.1, waited_s=0.7)
