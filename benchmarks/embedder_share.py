"""How much of what limits allow was used. Pure.

A fleet that spends a window's amount at once and again whenever it has left the window shows all
or nothing of a burst, as the span that is looked at begins before or after it. So every span of so
many windows is looked at that begins within the first window, and the mean is taken. In none of
them does a sliding window let pass more than amount x windows: the mean cannot exceed 1. What is
spent at the very beginning, when all windows are empty, is in next to none of those spans and
counts for nothing; what is spent late for want of a replica that asks in time is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tickmind.limits import Limit

__all__ = ["Admitted", "budget_used", "share_of_spans", "span_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A call that the provider took, `at` seconds after the first one."""

    at: float
    texts: int
    tokens: int


def span_s(limits: Sequence[Limit], windows: int) -> float:
    """How long a fleet is to be watched, from its first call on: one of the longest windows more
    than are looked at together."""
    return (windows + 1) * max(limit.window_s for limit in limits)


def share_of_spans(at: float, *, window_s: float, windows: int) -> float:
    """Of the spans of `windows` windows that begin within the first window, the share (0..1)
    that a moment is in."""
    begun = at / window_s
    return max(0.0, min(1.0, begun, windows + 1 - begun))


def budget_used(admitted: Sequence[Admitted], limits: Sequence[Limit], *, windows: int) -> float:
    """Share (0..1) of the budget that was used: of the limit that was used most, since that one
    held the others back.

    `windows`: of the longest limit. Raises ValueError where another does not go into it evenly.
    """
    longest = max(limit.window_s for limit in limits)
    weights = [share_of_spans(call.at, window_s=longest, windows=windows) for call in admitted]
    shares = []
    for limit in limits:
        times = round(longest / limit.window_s)
        if abs(times * limit.window_s - longest) > 1e-6 * longest:
            msg = f"a window of {limit.window_s:g} s does not go into {longest:g} s evenly"
            raise ValueError(msg)
        used = sum(
            weight * _units(call, limit) for weight, call in zip(weights, admitted, strict=True)
        )
        shares.append(used / (limit.amount * windows * times))
    return max(shares)


def _units(call: Admitted, limit: Limit) -> int:
    return {"calls": 1, "texts": call.texts, "tokens": call.tokens}[limit.unit]
