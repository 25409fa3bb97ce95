"""Spans: whose trace they belong to, what they are linked to, and what they never tell."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from prometheus_client import CollectorRegistry, Gauge

from tickmind import watching
from tickmind.connecting import BrokerUnavailable
from tickmind.statement_spans import summary
from tickmind.telemetry import read_headers
from tickmind.tracing import exemplar, span, tracing
from tickmind.watching import Watch, Watching


def _carried(number: int, *, sampled: bool = True) -> Context:
    return read_headers({"traceparent": f"00-{number:032x}-{number:016x}-0{int(sampled)}"})


def _current() -> int:
    return trace.get_current_span().get_span_context().trace_id


def test_without_an_sdk_the_trace_that_came_is_passed_on_and_nothing_is_made() -> None:
    assert not tracing()
    with span("batch", joins=[_carried(7), _carried(8)]) as current:
        assert not current.is_recording()
        assert _current() == 7
        assert exemplar() is None
    assert _current() == 0


def test_without_an_sdk_and_a_trace_a_span_is_nothing() -> None:
    with span("batch") as current:
        assert current is trace.INVALID_SPAN


def test_trace_that_is_sampled_is_joined_before_one_that_is_not() -> None:
    with span("batch", joins=[_carried(7, sampled=False), _carried(8)]):
        assert _current() == 8


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("SELECT name FROM world WHERE id = $1", "SELECT world"),
        ("\n WITH a AS (DELETE FROM job RETURNING id) INSERT INTO done SELECT 1", "INSERT done"),
        ("WITH a AS (SELECT FROM job FOR UPDATE SKIP LOCKED) SELECT 1 FROM a", "SELECT job"),
        ("WITH a AS (SELECT 1 FROM job) UPDATE job SET x = 1", "UPDATE job"),
        ("SELECT pg_advisory_xact_lock_shared($1)", "SELECT pg_advisory_xact_lock_shared"),
        ("SELECT a FROM unnest($1) AS x JOIN (SELECT FROM agent) y ON true", "SELECT agent"),
        ("SHOW server_version_num", "SHOW"),
        ("", "STATEMENT"),
    ],
)
def test_statement_is_named_by_what_it_does_first_and_foremost(statement: str, words: str) -> None:
    assert summary(statement) == words


def _watch(gauge: Gauge, values: list[float]) -> Watch:
    async def look() -> None:
        if not values:
            raise BrokerUnavailable("gone")
        gauge.labels("a").set(values.pop(0))

    return Watch(name="test", look=look, forget=gauge.clear)


async def test_gauge_is_looked_up_once_however_many_ask_and_gone_once_it_cannot_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = CollectorRegistry()
    watched = Watching([_watch(Gauge("g", "", ["of"], registry=registry), [1.0, 2.0])])

    def told() -> float | None:
        return registry.get_sample_value("g", {"of": "a"})

    await watched.look()
    await watched.look()
    assert told() == 1.0
    monkeypatch.setattr(watching, "FRESH_S", 0.0)
    watched = Watching([_watch(Gauge("h", "", ["of"], registry=registry), [])])
    await watched.look()
    assert registry.get_sample_value("h", {"of": "a"}) is None
