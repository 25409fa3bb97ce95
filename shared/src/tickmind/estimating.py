"""What embedding texts will cost: requests, tokens, money, time under the limits. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tickmind.clean import is_blank
from tickmind.identity import content_hash
from tickmind.limits import Limit, written
from tickmind.pieces import estimate_tokens

__all__ = ["Caps", "Cost", "Estimate", "seconds_under"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Most inputs, tokens and bytes of one request; 0: no such cap."""

    inputs: int
    tokens: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """`seconds`: by each limit on its own, as it was written; the largest decides."""

    calls: int
    dollars: float
    seconds: dict[str, float]

    @property
    def hours(self) -> float:
        return max(self.seconds.values(), default=0.0) / 3600

    @property
    def decided_by(self) -> str | None:
        """The limit that takes longest; None: there is none that takes any time."""
        longest = max(self.seconds, key=lambda name: self.seconds[name], default=None)
        return longest if longest is not None and self.seconds[longest] > 0 else None


class Estimate:
    """Texts counted one by one, each distinct one once, as the embedder sends them."""

    def __init__(self) -> None:
        self.memories = 0
        self.blank = 0
        self.inputs = 0
        self.tokens = 0
        self._size = 0
        self._seen: set[bytes] = set()

    @property
    def texts(self) -> int:
        """Distinct texts that are sent."""
        return len(self._seen) - self.blank

    @property
    def saved(self) -> int:
        """Memories whose text was met before, and is not sent again."""
        return self.memories - len(self._seen)

    def add(self, text: str) -> bool:
        """One memory of this text; whether the text is new, and `sent` is to be told of it."""
        self.memories += 1
        hashed = content_hash(text)
        if hashed in self._seen:
            return False
        self._seen.add(hashed)
        if is_blank(text):
            self.blank += 1
            return False
        return True

    def sent(self, inputs: Sequence[str]) -> None:
        """What a new text is sent as: itself with its prefix, or its pieces, each with it."""
        self.inputs += len(inputs)
        self.tokens += sum(map(estimate_tokens, inputs))
        self._size += sum(len(each.encode(errors="replace")) for each in inputs)

    def cost(
        self,
        *,
        caps: Caps,
        dollars_per_million: float,
        limits: Sequence[Limit],
        kept: float,
    ) -> Cost:
        """In full requests. `kept`: share of each limit that is left to recalls."""
        sums = ((self.inputs, caps.inputs), (self.tokens, caps.tokens), (self._size, caps.size))
        calls = max(math.ceil(sum_ / cap) if cap else 0 for sum_, cap in sums)
        needs = {"calls": calls, "texts": self.inputs, "tokens": self.tokens}
        return Cost(
            calls=calls,
            dollars=self.tokens / 1e6 * dollars_per_million,
            seconds={
                written(limit): seconds_under(limit, needs[limit.unit], kept=kept)
                for limit in limits
            },
        )


def seconds_under(limit: Limit, units: float, *, kept: float = 0.0) -> float:
    """How long so many units take where every window of a limit is used up, but for the share
    `kept`: a window's worth goes at once, each further one a window later."""
    # Less what floating point may add to a whole number of windows.
    windows = math.ceil(units / (limit.amount * (1 - kept)) - 1e-9)
    return max(0, windows - 1) * limit.window_s
