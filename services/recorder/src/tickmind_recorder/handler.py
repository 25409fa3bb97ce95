"""What the recorder does with messages: check, grade, store. Knows nothing of the broker."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from prometheus_client import CollectorRegistry, Counter
from sqlalchemy.exc import DBAPIError, IntegrityError

from tickmind.database import Database, sqlstate
from tickmind.decoding import DecodedTick, Rejected, decode_tick
from tickmind.errors import InvalidMessage
from tickmind.grading import Graded, grade
from tickmind.policy import Policy
from tickmind.store import recording
from tickmind.store.recording import AgentId, Receipt, RejectRow
from tickmind.telemetry import log

__all__ = ["Delivery", "Handler", "Metrics"]

_logger = logging.getLogger("tickmind.recorder")

_FOREIGN_KEY = "23503"
#: Ids kept before the cache starts afresh: 100 bytes each, 20 MB.
_MOST_CACHED = 200_000


class Metrics:
    """What the recorder counts; a counter counts what was committed."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.decisions = Counter("tickmind_decisions", "Decisions received", registry=registry)
        self.dropped = Counter(
            "tickmind_decisions_dropped",
            "Decisions not remembered, by action and why",
            ["action", "reason"],
            registry=registry,
        )
        self.stored = Counter("tickmind_memories_stored", "New memories", registry=registry)
        self.repeated = Counter(
            "tickmind_memories_repeated",
            "Memories of events that were stored already",
            registry=registry,
        )
        self.rejected = Counter(
            "tickmind_rejects", "Messages and decisions refused", ["reason"], registry=registry
        )
        self.cleaned = Counter(
            "tickmind_characters_cleaned",
            "NUL removed and lone surrogates replaced",
            ["what"],
            registry=registry,
        )
        self.hearers_cut = Counter(
            "tickmind_hearers_cut", "Hearers beyond the policy's max_hearers", registry=registry
        )
        self.batches = Counter(
            "tickmind_recorder_batches", "Batches by outcome", ["outcome"], registry=registry
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Delivery:
    """One message, checked and graded: a tick, or what makes it none."""

    tick: DecodedTick | None
    graded: Graded | None
    rejects: tuple[RejectRow, ...] = ()
    body: bytes = b""
    routing_key: str = ""

    @property
    def decisions(self) -> int:
        return len(self.tick.decisions) if self.tick else 0


@dataclass(slots=True)
class _Ids:
    """Ids of worlds and agents seen, so that the common batch asks for none."""

    worlds: dict[str, int] = field(default_factory=dict)
    agents: dict[tuple[int, str], int] = field(default_factory=dict)

    def forget(self) -> None:
        self.worlds.clear()
        self.agents.clear()


class Handler:
    """Checks and stores messages; every method may run twice for the same message."""

    def __init__(self, database: Database, policy: Policy, metrics: Metrics) -> None:
        self._database = database
        self._policy = policy
        self._metrics = metrics
        self._ids = _Ids()

    def read(self, body: bytes, routing_key: str) -> Delivery:
        """Check and grade one message; a bad one becomes a reject. Never raises for input."""
        try:
            tick = decode_tick(body)
        except InvalidMessage as exc:
            rejected = Rejected(reason=exc.reason, detail=str(exc), body=body)
            row = RejectRow(
                rejected=rejected, routing_key=routing_key, world=_world_of(routing_key)
            )
            return Delivery(
                tick=None, graded=None, rejects=(row,), body=body, routing_key=routing_key
            )
        graded = grade(tick, self._policy)
        rejects = tuple(
            RejectRow(rejected=rejected, routing_key=routing_key, world=tick.world)
            for rejected in (*tick.rejected, *graded.rejected)
        )
        return Delivery(
            tick=tick, graded=graded, rejects=rejects, body=body, routing_key=routing_key
        )

    async def store(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Store all in one transaction; where that fails for what they hold, each by itself.

        Returns those that could not even be rejected. Raises DatabaseUnavailable, with nothing
        stored of the failing transaction.
        """
        try:
            await self._store(deliveries)
        except DBAPIError as exc:
            if sqlstate(exc) == _FOREIGN_KEY:  # a world or agent was deleted meanwhile
                self._ids.forget()
            self._metrics.batches.labels("split").inc()
            log(
                _logger,
                logging.WARNING,
                "batch_split",
                messages=len(deliveries),
                sqlstate=sqlstate(exc),
            )
        else:
            self._metrics.batches.labels("stored").inc()
            return []
        return [delivery for delivery in deliveries if not await self._store_alone(delivery)]

    async def _store_alone(self, delivery: Delivery) -> bool:
        """Store one message, or reject it with the database's reason; False: neither worked."""
        reason: DBAPIError
        for _ in range(2):
            try:
                await self._store([delivery])
            except IntegrityError as exc:
                if sqlstate(exc) != _FOREIGN_KEY:
                    reason = exc
                    break
                self._ids.forget()
                reason = exc
            except DBAPIError as exc:
                reason = exc
                break
            else:
                return True
        detail = f"the database refused it (SQLSTATE {sqlstate(reason)})"
        row = RejectRow(
            rejected=Rejected(reason="database", detail=detail, body=delivery.body),
            routing_key=delivery.routing_key,
            world=delivery.tick.world if delivery.tick else None,
        )
        try:
            async with self._database.writing() as session:
                await recording.insert_rejects(session, [row])
        except DBAPIError as exc:
            log(_logger, logging.ERROR, "dead_lettered", sqlstate=sqlstate(exc))
            return False
        self._metrics.rejected.labels("database").inc()
        return True

    async def _store(self, deliveries: Sequence[Delivery]) -> None:
        ticks = [(d.tick, d.graded) for d in deliveries if d.tick and d.graded]
        memories = [memory for _, graded in ticks for memory in graded.memories]
        rejects = [row for delivery in deliveries for row in delivery.rejects]
        agents = await self._agents(
            {(m.world, m.agent) for m in memories}
            | {(m.world, m.speaker) for m in memories if m.speaker is not None},
            {tick.world for tick, _ in ticks},
        )
        stored = 0
        async with self._database.writing() as session:
            if memories:
                stored = await recording.insert_memories(
                    session,
                    [
                        (
                            agents[m.world, m.agent],
                            agents[m.world, m.speaker].id if m.speaker is not None else None,
                            m,
                        )
                        for m in memories
                    ],
                )
            await recording.insert_receipts(
                session,
                [
                    Receipt(
                        world_id=self._ids.worlds[tick.world],
                        tick=tick.tick,
                        decisions=len(tick.decisions),
                        sim_time=tick.time,
                    )
                    for tick, _ in ticks
                ],
            )
            await recording.insert_rejects(session, rejects)
        self._count(deliveries, memories=len(memories), stored=stored)

    async def _agents(
        self, names: set[tuple[str, str]], worlds: set[str]
    ) -> dict[tuple[str, str], AgentId]:
        """Ids of all concerned, made where new in a short transaction of their own: two recorders
        that meet a new agent at once must not wait for each other's batch."""
        ids = self._ids
        if len(ids.agents) > _MOST_CACHED:
            ids.forget()
        new_worlds = worlds - ids.worlds.keys()
        if new_worlds:
            async with self._database.writing() as session:
                ids.worlds |= await recording.ensure_worlds(session, new_worlds)
        wanted = {(ids.worlds[world], name) for world, name in names}
        new_agents = wanted - ids.agents.keys()
        if new_agents:
            async with self._database.writing() as session:
                ids.agents |= await recording.ensure_agents(session, new_agents)
        return {
            (world, name): AgentId(
                id=ids.agents[ids.worlds[world], name], world_id=ids.worlds[world]
            )
            for world, name in names
        }

    def _count(self, deliveries: Sequence[Delivery], *, memories: int, stored: int) -> None:
        metrics = self._metrics
        metrics.stored.inc(stored)
        metrics.repeated.inc(memories - stored)
        for delivery in deliveries:
            for row in delivery.rejects:
                metrics.rejected.labels(row.rejected.reason).inc()
            if delivery.tick is None or delivery.graded is None:
                continue
            metrics.decisions.inc(len(delivery.tick.decisions))
            metrics.hearers_cut.inc(delivery.graded.hearers_cut)
            for (action, reason), count in delivery.graded.dropped.items():
                metrics.dropped.labels(action, reason).inc(count)
            metrics.cleaned.labels("nul").inc(delivery.tick.nul_removed)
            metrics.cleaned.labels("surrogate").inc(delivery.tick.surrogates_replaced)


def _world_of(routing_key: str) -> str | None:
    """The world a routing key names, for a body that names none."""
    prefix = "tick.ended.v1."
    world = unquote(routing_key.removeprefix(prefix)) if routing_key.startswith(prefix) else ""
    return world.replace("\x00", "")[:200] or None
