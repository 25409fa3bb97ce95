"""Services run inside a test's own event loop: the real wiring, on real servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from tickmind.database import Database
from tickmind.service import App
from tickmind.settings import BrokerSettings, DatabaseSettings, Settings
from tickmind.store.inspection import Audit, audit, world_statuses

__all__ = ["SOUND", "eventually", "metric", "running", "settings_for", "settled"]

#: What the audit of a sound database says.
SOUND = Audit(lost=0, both=0, without_vector=0, without_job=0)

S = TypeVar("S", bound=Settings)
T = TypeVar("T")


def settings_for(
    kind: type[S], database: DatabaseSettings, broker: BrokerSettings, **options: Any
) -> S:
    """Settings of a service on the test's own database and broker, with hash vectors."""
    given = database.model_dump(exclude_unset=True) | broker.model_dump(exclude_unset=True)
    hashed = {"embedding_provider": "hash", "embedding_dimensions": 64}
    known = kind.model_fields
    return kind(**{key: value for key, value in (given | hashed | options).items() if key in known})


@asynccontextmanager
async def running(*apps: App) -> AsyncIterator[None]:
    """Run services until the block ends; what one of them raises ends the block."""
    stop = asyncio.Event()
    tasks = [asyncio.create_task(app.work(stop), name=app.name) for app in apps]
    try:
        for app in apps:
            for name, check in app.checks.items():
                await eventually(check, lambda fault: fault is None, what=f"{app.name}: {name}")
        yield
    finally:
        stop.set()
        # All of them, before the first fault is told: none may outlive the test.
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for fault in ended:
            if isinstance(fault, BaseException):
                raise fault


async def eventually(
    ask: Callable[[], Awaitable[T]],
    holds: Callable[[T], bool],
    *,
    what: str,
    timeout_s: float = 60.0,
) -> T:
    """Ask until the answer holds; fails with the last answer."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_s
    while True:
        begun = loop.time()
        answer = await ask()
        if holds(answer):
            return answer
        now = loop.time()
        if now > until:
            raise AssertionError(f"{what}: still {answer!r} after {timeout_s:g} s")
        # Asking takes no more than a third of the time: what is waited for needs the rest.
        await asyncio.sleep(min(max(0.02, 2 * (now - begun)), 0.2))


async def settled(
    database: Database, world: str, *, memories: int, timeout_s: float = 60.0
) -> Audit:
    """Wait until a world holds so many memories and none is pending; what the audit says then."""

    async def counts() -> tuple[int, int]:
        async with database.reading() as session:
            found = await world_statuses(session, world)
            return sum(sum(s.kinds.values()) for s in found), sum(s.pending for s in found)

    await eventually(
        counts, lambda now: now == (memories, 0), what="memories, pending", timeout_s=timeout_s
    )
    async with database.reading() as session:
        return await audit(session)


def metric(app: App, name: str, **labels: str) -> float:
    """A counter's value, 0 where it was never touched."""
    return app.registry.get_sample_value(name, labels) or 0.0
