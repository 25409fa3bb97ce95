"""A service whose clock is wrong: `python -m tests.chaos.skewed tickmind_retriever`.

CHAOS_CLOCK_OFFSET_S: by how many seconds it is ahead. At SIGUSR1 it is put as much behind, at the
next one ahead again: a clock that steps while the service runs. Only the wall clock is wrong; the
monotonic one, which timers go by, cannot be put.
"""

from __future__ import annotations

import datetime
import os
import runpy
import signal
import sys
import time
from types import FrameType
from typing import Self

_true_time, _true_time_ns = time.time, time.time_ns
_TrueDatetime = datetime.datetime


class _Clock:
    def __init__(self, offset_s: int) -> None:
        self.offset_s = offset_s

    def time(self) -> float:
        return _true_time() + self.offset_s

    def time_ns(self) -> int:
        return _true_time_ns() + self.offset_s * 10**9

    def turn(self, _number: int, _frame: FrameType | None) -> None:
        self.offset_s = -self.offset_s


def main() -> None:
    """Put the clock wrong before anything of the service is imported, then be that service."""
    clock = _Clock(int(os.environ["CHAOS_CLOCK_OFFSET_S"]))

    class Datetime(_TrueDatetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Self:
            return cls.fromtimestamp(clock.time(), tz)

    time.time, time.time_ns = clock.time, clock.time_ns
    datetime.datetime = Datetime  # type: ignore[misc]
    signal.signal(signal.SIGUSR1, clock.turn)
    module = sys.argv[1]
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
