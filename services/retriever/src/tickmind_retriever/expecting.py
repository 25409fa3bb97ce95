"""How long something takes just now, rather more than less."""

from __future__ import annotations

__all__ = ["Expected"]

#: Gains of the mean and of the deviation: RFC 6298, section 2, which has them of Jacobson and
#: Karels, "Congestion avoidance and control", 1988.
_MEAN_GAIN, _DEVIATION_GAIN = 1 / 8, 1 / 4
#: Deviations above the mean. There they are four, since a retransmission too many costs all; here
#: what is expected in vain costs one answer, and bursts, whose times differ much, are to pass.
_DEVIATIONS = 2


class Expected:
    """Learnt from what it took lately; 0 before anything is known."""

    def __init__(self) -> None:
        self._mean_s: float | None = None
        self._deviation_s = 0.0

    @property
    def seconds(self) -> float:
        return (self._mean_s or 0.0) + _DEVIATIONS * self._deviation_s

    def took(self, seconds: float) -> None:
        """It took so long."""
        if self._mean_s is None:
            self._mean_s, self._deviation_s = seconds, seconds / 2
            return
        off = seconds - self._mean_s
        self._deviation_s += _DEVIATION_GAIN * (abs(off) - self._deviation_s)
        self._mean_s += _MEAN_GAIN * off
