"""Counters that begin at zero: Prometheus cannot see a first step from nothing to one."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter

__all__ = ["begin_at_zero"]


def begin_at_zero(counter: Counter, values: Iterable[str | tuple[str, ...]]) -> None:
    """Tell these values of its labels from the start, so that alerts on a rate see the first."""
    for value in values:
        counter.labels(*((value,) if isinstance(value, str) else value))
