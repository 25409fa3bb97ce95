"""Which recalls are begun where more is asked than can be answered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tickmind_retriever.admitting import Admission


@pytest.fixture
def busy() -> Iterator[Admission]:
    """Answers take 0.5 s, and one request is under way."""
    admission = Admission(free=2)
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
    admission = Admission(free=2)
    for _ in range(100):
        admission.answered(after_s=0.5)
    assert admission.admits(left_s=0.1, waited_s=0.7)


def test_no_more_are_begun_than_end_in_time() -> None:
    admission = Admission(free=2)
    with ExitStack() as under_way:
        for _ in range(20):
            assert admission.admits(left_s=0.8, waited_s=0.0)
            under_way.enter_context(admission.begun())
        admission.cut_off(after_s=0.8)
        assert not admission.admits(left_s=0.8, waited_s=0.0)


def test_so_many_are_begun_as_keep_the_database_busy_however_many_are_cut_off() -> None:
    admission = Admission(free=2)
    for _ in range(100):
        admission.cut_off(after_s=0.8)
    with admission.begun():
        assert admission.admits(left_s=0.8, waited_s=0.0)
        with admission.begun():
            assert not admission.admits(left_s=0.8, waited_s=0.0)


def test_answers_let_more_begin_again() -> None:
    admission = Admission(free=2)
    admission.cut_off(after_s=0.8)
    with admission.begun(), admission.begun():
        for _ in range(3):
            admission.answered(after_s=0.1)
        assert admission.admits(left_s=0.8, waited_s=0.0)


def test_request_with_a_deadline_shorter_than_answers_take_limits_nobody(busy: Admission) -> None:
    for _ in range(100):
        busy.cut_off(after_s=0.02)
    with busy.begun(), busy.begun():
        assert busy.admits(left_s=0.8, waited_s=0.0)
