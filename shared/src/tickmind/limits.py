"""What a provider allows: so many calls, texts or tokens in so long. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

__all__ = ["Limit", "Unit", "parse_limits", "smallest", "written"]

Unit = Literal["calls", "texts", "tokens"]

_WINDOWS = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "hour": 3600.0}
_WINDOWS |= {"second": 1.0, "minute": 60.0, "day": 86_400.0, "d": 86_400.0}
#: More than any provider allows, and exact in a float.
_MOST = 10**12
_LIMIT = re.compile(
    r"(?P<amount>[0-9][0-9_]*)(?P<scale>[kKmM]?)\s*(?P<unit>calls?|requests?|texts?|tokens?)"
    r"\s*/\s*(?P<count>[0-9.]*)\s*(?P<window>[a-z]+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """At most `amount` of `unit` in any `window_s` seconds."""

    amount: float
    unit: Unit
    window_s: float


def parse_limits(text: str) -> tuple[Limit, ...]:
    """Limits such as `3000 texts/min, 1M tokens/min, 500 texts/10s, 1000 calls/day`.

    Raises ValueError naming the part that cannot be read.
    """
    limits = []
    for part in filter(None, (piece.strip() for piece in re.split(r"[,;\n]", text))):
        match = _LIMIT.fullmatch(part)
        window = _WINDOWS.get(match["window"]) if match else None
        if match is None or window is None:
            msg = f"{part[:40]!r} is not a limit such as '3000 texts/min' or '500 texts/10s'"
            raise ValueError(msg)
        scale = {"": 1, "k": 1_000, "m": 1_000_000}[match["scale"].lower()]
        unit = match["unit"].rstrip("s").replace("request", "call") + "s"
        try:
            amount = int(match["amount"]) * scale
            seconds = window * float(match["count"] or 1)
        except ValueError:  # 1__000, 1.2.3, more digits than Python reads
            amount, seconds = 0, 0.0
        if not 1 <= amount <= _MOST or not 0 < seconds <= 7 * 86_400:
            msg = f"{part[:40]!r}: an amount of 1 to 10^12 in a window of up to a week is needed"
            raise ValueError(msg)
        limits.append(Limit(amount=amount, unit=cast(Unit, unit), window_s=seconds))
    return tuple(limits)


def smallest(limits: Sequence[Limit], unit: Unit) -> float | None:
    """The least amount any window allows of a unit; None: it is not limited."""
    return min((limit.amount for limit in limits if limit.unit == unit), default=None)


def written(limit: Limit) -> str:
    """A limit as `parse_limits` reads it."""
    windows = {1.0: "s", 60.0: "min", 3600.0: "h", 86_400.0: "day"}
    window = windows.get(limit.window_s) or f"{limit.window_s:g}s"
    return f"{limit.amount:.0f} {limit.unit}/{window}"
