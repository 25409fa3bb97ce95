"""Hints that something was stored: one under way at a time, and nobody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from opentelemetry import context

__all__ = ["Hints"]


class Hints:
    """Publishes a hint soon after each `give`; those given while one is under way are one.

    It belongs to the trace of the last of them.
    """

    def __init__(self, publish: Callable[[], Awaitable[object]]) -> None:
        self._publish = publish
        self._given = asyncio.Event()
        self._trace = context.Context()

    def give(self) -> None:
        self._trace = context.get_current()
        self._given.set()

    async def run(self) -> None:
        """Publish until cancelled. What is given while a publish hangs is told by the next."""
        while True:
            await self._given.wait()
            self._given.clear()
            traced = context.attach(self._trace)
            try:
                await self._publish()
            finally:
                context.detach(traced)
