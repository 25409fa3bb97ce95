"""What a running provider knows: options, rules, limits, ledger."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from tickmind.local.provider.delivery import Abort
from tickmind.local.provider.ledger import Ledger
from tickmind.local.provider.limits import Limit, RateLimiter
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.script import FaultScript

__all__ = ["ProviderState"]


class ProviderState:
    """The parts that the endpoint and the control routes share; nothing here does I/O.

    `abort`: ends a caller's connection; set by whoever runs the server.
    """

    def __init__(
        self,
        options: ProviderOptions | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._options = options or ProviderOptions()
        self.faults = FaultScript(clock)
        self.ledger = Ledger(clock)
        self.limiter = self._fresh_limiter()
        self.random = random.Random(self._options.seed)
        self.abort: Abort = _abort_without_server

    @property
    def options(self) -> ProviderOptions:
        """The options in force; setting them starts limits and random numbers anew."""
        return self._options

    @options.setter
    def options(self, options: ProviderOptions) -> None:
        self._options = options
        self.limiter = self._fresh_limiter()
        self.random = random.Random(options.seed)

    def set_limits(self, limits: Iterable[Limit], time_scale: float | None = None) -> None:
        """Enforce these limits from now on, with nothing counted yet; none lifts them."""
        scale = self._options.time_scale if time_scale is None else time_scale
        self.options = replace(self._options, limits=tuple(limits), time_scale=scale)

    def reset(self) -> None:
        """Forget calls, rules and what the limits counted; let go of what hangs; keep options."""
        self.faults.clear()
        self.faults.release()
        self.ledger.reset()
        self.limiter = self._fresh_limiter()

    def _fresh_limiter(self) -> RateLimiter:
        return RateLimiter(
            self._options.limits, clock=self._clock, time_scale=self._options.time_scale
        )


def _abort_without_server(client: tuple[str, int], reset: bool) -> None:
    raise RuntimeError("connections can be ended only where running_provider runs the server")
