"""A fault lasts as long as its block, within a bound, and is mended whatever happens in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from tickmind.local.processes import uninterrupted

__all__ = ["MOST_S", "Step", "lasting"]

#: No fault lasts longer: the longest outage of the suite is 60 s, and the servers' own stop and
#: start take up to 20 s of it on a busy machine.
MOST_S = 120.0

#: What breaks something, or mends it.
Step = Callable[[], Coroutine[Any, Any, object]]


@asynccontextmanager
async def lasting(break_: Step, mend: Step, *, most_s: float = MOST_S) -> AsyncIterator[None]:
    """Broken while the block runs; mended at its end, when it fails, and when it is cancelled.

    Raises TimeoutError into a block that takes longer than `most_s`.
    """
    try:
        async with asyncio.timeout(most_s):
            await break_()
            yield
    finally:
        await uninterrupted(mend())
