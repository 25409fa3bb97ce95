"""Bits whose differences rank memories as their scores do, so that one graph finds the best.

A graph over signatures alone finds what is most relevant, and most of what scores best is not among
that (see `store.recall_signature`). So a memory's importance and its tick stand behind its
signature as thermometers: groups of bits, each set from some importance, or some tick, on. A
question sets a part of each group: with c of a group's n bits set it lies 2c - n bits nearer to
the memories that have the group than to those that have not. What a group is to count is thus the
question's to say, by its weights, half-life and tick; the memories' bits never change.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from tickmind.memory import Weights
from tickmind.scoring import MAX_HALF_LIVES
from tickmind.signature import BITS

__all__ = ["ScoredBits"]

#: From one importance (1 to 10) to the next: a group. Wide enough for an importance that weighs .28
#: times as much as relevance (by default it is .2), and no wider: a graph's edges lead to memories
#: that are alike in all bits, a question to those that have the most of some. With 24 bits for both
#: sorts of groups a graph found .99 of what it finds with these.
_LEVELS, _LEVEL_BITS = 9, 14
#: Ticks from which on a group is set: ages, each half of the one before. Over such a step recency
#: falls by .25 at most, whatever its half-life; .13 times relevance may be its weight, by default
#: it is .1.
_AGES, _AGE_BITS = 12, 16
#: A differing bit is at most this much less cosine: the slope of cos(pi * differing / bits) where
#: it is steepest. Measured: .87 of that, as at a cosine of .5, finds less.
_BIT = math.pi / BITS


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredBits:
    """The bits of memories from the tick `first` on; `ticks`, ascending: where groups begin."""

    first: int
    ticks: tuple[int, ...]

    @classmethod
    def over(cls, first: int, last: int) -> ScoredBits:
        """For memories of these ticks, both included."""
        span = last + 1 - first
        ticks = {last + 1 - max(1, span >> n) for n in range(1, _AGES + 1)}
        return cls(first=first, ticks=tuple(sorted(ticks)))

    @property
    def length(self) -> int:
        """Bits of a memory."""
        return BITS + _LEVELS * _LEVEL_BITS + len(self.ticks) * _AGE_BITS

    def expression(self) -> str:
        """A memory's bits in SQL, of columns signature, importance and tick. Numbers and nothing
        else go into it: an index is made of it, and found again by the very same words."""
        ticks = ", ".join(str(int(tick)) for tick in self.ticks)
        age = f"width_bucket(tick, ARRAY[{ticks}]::bigint[])"
        return (
            f"((signature || {_thermometer('importance - 1', _LEVELS, _LEVEL_BITS)}"
            f" || {_thermometer(age, len(self.ticks), _AGE_BITS)})::bit({self.length}))"
        )

    def of_question(
        self, signature: bytes, weights: Weights, *, tick: int, half_life_ticks: float
    ) -> str | None:
        """What to look for, a 0 or 1 a bit; None: these weights ask for more than groups can say.

        `signature`: as `signature.Signer` gives it.
        """
        if not weights.relevance > 0:
            return None
        bit = weights.relevance * _BIT
        wanted = [(_LEVEL_BITS, weights.importance / 10 / bit)] * _LEVELS
        edges = (self.first, *self.ticks, self.ticks[-1] + 1)
        recency = [
            _recency(tick - (begin + end) / 2, half_life_ticks)
            for begin, end in itertools.pairwise(edges)
        ]
        wanted += [
            (_AGE_BITS, weights.recency * (after - before) / bit)
            for before, after in itertools.pairwise(recency)
        ]
        if any(nearer > size for size, nearer in wanted):
            return None
        bits = "".join(f"{byte:08b}" for byte in signature)
        for size, nearer in wanted:
            ones = round((size + nearer) / 2)
            bits += "1" * ones + "0" * (size - ones)
        return bits


def _thermometer(level: str, levels: int, size: int) -> str:
    """Of `levels` groups of `size` bits, the first `level` set."""
    bits = levels * size
    return (
        f"substring(B'{'1' * bits + '0' * bits}' FROM {bits + 1} - {size} * ({level}) FOR {bits})"
    )


def _recency(age: float, half_life_ticks: float) -> float:
    return math.exp2(-min(MAX_HALF_LIVES, max(0.0, age) / half_life_ticks))
