"""What the embedder looks up for Prometheus: what waits for vectors, and the budgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Gauge
from sqlalchemy.exc import SQLAlchemyError

from tickmind.database import Database
from tickmind.database_errors import DatabaseUnavailable
from tickmind.limits import Limit, written
from tickmind.store.budget import blocked
from tickmind.store.waiting import budget_used, pending
from tickmind.watching import Watch

__all__ = ["budget_watch", "pending_watch"]


def pending_watch(registry: CollectorRegistry, database: Database) -> Watch:
    """Memories without a vector; every embedder tells the same."""
    memories = Gauge(
        "tickmind_pending_memories",
        "Memories that wait for their vector, of the space recalls use (active) and of others",
        ["space"],
        registry=registry,
    )
    oldest = Gauge(
        "tickmind_pending_oldest_seconds",
        "Age of the oldest of them",
        ["space"],
        registry=registry,
    )

    def forget() -> None:
        memories.clear()
        oldest.clear()

    async def look() -> None:
        try:
            async with database.reading() as session:
                found = await pending(session)
        except SQLAlchemyError as exc:
            raise _not_seen(exc) from exc
        forget()
        for waiting in found:
            space = "active" if waiting.active else "building"
            memories.labels(space).set(waiting.memories)
            oldest.labels(space).set(waiting.oldest_s)

    return Watch(name="pending", look=look, forget=forget)


def budget_watch(
    registry: CollectorRegistry,
    database: Database,
    budgets: Callable[[], Sequence[tuple[str, Sequence[Limit]]]],
) -> Watch:
    """How full the fleet's budgets are. `budgets`: name and limits of those in use now."""
    used = Gauge(
        "tickmind_embedding_budget_used_ratio",
        "Share of a limit that its window counts now",
        ["budget", "limit"],
        registry=registry,
    )
    blocks = Gauge(
        "tickmind_embedding_blocked_seconds",
        "How long nobody is to call the provider yet, because it said so; 0: calls are open",
        ["budget"],
        registry=registry,
    )

    def forget() -> None:
        used.clear()
        blocks.clear()

    async def look() -> None:
        found = []
        try:
            async with database.reading() as session:
                for name, limits in budgets():
                    block = await blocked(session, name)
                    found.append((name, limits, await budget_used(session, name, limits), block))
        except SQLAlchemyError as exc:
            raise _not_seen(exc) from exc
        forget()
        for name, limits, units, block in found:
            blocks.labels(name).set(block[0] if block else 0.0)
            for limit, counted in zip(limits, units, strict=True):
                used.labels(name, written(limit)).set(counted / limit.amount)

    return Watch(name="budgets", look=look, forget=forget)


def _not_seen(exc: SQLAlchemyError) -> DatabaseUnavailable:
    """What a metric needs cannot be read: a right that is missing, say."""
    return DatabaseUnavailable(f"it cannot be read ({type(exc).__name__})")
