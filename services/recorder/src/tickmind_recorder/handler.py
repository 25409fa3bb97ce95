"""What the recorder does with messages: check, grade, store. Knows nothing of the broker."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

from sqlalchemy.exc import DBAPIError, IntegrityError

from tickmind.database import Database
from tickmind.database_errors import DatabaseUnavailable, sqlstate
from tickmind.decoding import DecodedTick, Rejected, decode_tick
from tickmind.errors import InvalidMessage, MessageTooLarge, PermanentError
from tickmind.grading import Graded, grade
from tickmind.identity import reject_key
from tickmind.messages import MAX_NAME_CHARS
from tickmind.policy import Policy
from tickmind.store import recording
from tickmind.store.context import contexts
from tickmind.store.locking import hold_worlds
from tickmind.store.recording import AgentId, Receipt, RejectRow
from tickmind.topology import MAX_KEY_BYTES, TICK_ENDED_PREFIX
from tickmind_recorder.metrics import Metrics

__all__ = ["KEPT_OF_TOO_LARGE", "Delivery", "Handler", "Metrics", "Refused"]

_logger = logging.getLogger("tickmind.recorder")

_FOREIGN_KEY = "23503"
# SQLSTATE classes that speak of the data (PostgreSQL documentation, appendix A): 22 data
# exception, 23 integrity constraint, 54 program limit exceeded. All others speak of the database:
# a schema that is not there, a right or a password taken away.
_DATA_CLASSES = ("22", "23", "54")
#: Of a message larger than any may be, so much is kept: what tells a person whose it is.
KEPT_OF_TOO_LARGE = 64 * 1024
#: Ids kept before the cache starts afresh: 100 bytes each, 20 MB.
_MOST_CACHED = 200_000


class Refused(PermanentError):
    """The database refuses what a message holds."""

    reason = "database"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Delivery:
    """One message, checked and graded: a tick, or what makes it none.

    `tick` is without its decisions, of which `decisions` tells how many there were.
    """

    tick: DecodedTick | None
    graded: Graded | None
    rejects: tuple[RejectRow, ...] = ()
    body: bytes = b""
    routing_key: str = ""
    decisions: int = 0

    @property
    def chars(self) -> int:
        """What of it goes to the database, in characters and bytes."""
        memories = self.graded.memories if self.graded else ()
        return sum(len(memory.content) for memory in memories) + sum(
            len(row.rejected.body) for row in self.rejects
        )


@dataclass(slots=True)
class _Ids:
    """Ids of worlds and agents seen, so that the common batch asks for none.

    Replaced as a whole, never emptied: who adds to it still adds to the one it asked.
    """

    worlds: dict[str, int] = field(default_factory=dict)
    agents: dict[tuple[int, str], int] = field(default_factory=dict)


class Handler:
    """Checks and stores messages; every method may run twice for the same message."""

    def __init__(self, database: Database, policy: Policy, metrics: Metrics) -> None:
        self._database = database
        self._policy = policy
        self._metrics = metrics
        self._ids = _Ids()

    def read(self, body: bytes, routing_key: str) -> Delivery:
        """Check and grade one message; a bad one becomes a reject. Never raises."""
        try:
            tick = decode_tick(body)
            graded = grade(tick, self._policy)
        except InvalidMessage as exc:
            return _rejected(body, routing_key, exc.reason, str(exc))
        except Exception as exc:  # the boundary: a message that nobody settles stops all acks
            _logger.exception("read_failed")
            return _rejected(
                body, routing_key, "internal", f"reading it failed ({type(exc).__name__})"
            )
        rejects = tuple(
            RejectRow(rejected=rejected, routing_key=routing_key, world=tick.world)
            for rejected in (*tick.rejected, *graded.rejected)
        )
        return Delivery(
            # Its decisions are let go of: what waits to be stored is what the collector of
            # garbage looks through time and again (measured: 15 % of the recorder's CPU).
            tick=replace(tick, decisions=()),
            graded=graded,
            rejects=rejects,
            body=body,
            routing_key=routing_key,
            decisions=len(tick.decisions),
        )

    async def store(self, deliveries: Sequence[Delivery]) -> None:
        """Store all in one transaction, or nothing.

        Raises DatabaseUnavailable for what may pass, Refused for what the deliveries hold.
        """
        if not deliveries:
            return
        with self._told_apart():
            try:
                await self._store(deliveries)
            except IntegrityError as exc:
                if sqlstate(exc) != _FOREIGN_KEY:
                    raise
                # A world or agent was deleted meanwhile: it is made anew, and, should it be
                # deleted again, once more after a while.
                self._ids = _Ids()
                await self._store(deliveries)

    async def reject(self, deliveries: Sequence[Delivery], *, why: PermanentError) -> None:
        """Keep whole messages among the rejects. Raises as `store`."""
        rows = [
            RejectRow(
                rejected=Rejected(reason=why.reason, detail=str(why), body=delivery.body),
                routing_key=delivery.routing_key,
                world=delivery.tick.world if delivery.tick else _world_of(delivery.routing_key),
            )
            for delivery in deliveries
        ]
        with self._told_apart():
            async with self._database.writing() as session:
                await recording.insert_rejects(session, rows)
        self._metrics.rejected.labels(why.reason).inc(len(rows))

    def distrust(self) -> None:
        """Storing did not end: its connection died in silence, and others with it maybe."""
        self._database.distrust()

    def gave_up(self) -> None:
        """A message went to the dead letters."""
        self._metrics.dead_letters.inc()

    @contextmanager
    def _told_apart(self) -> Iterator[None]:
        """Is it the data or the database? Only of the data is any message guilty."""
        try:
            yield
        except DatabaseUnavailable:
            # It may come back as another one, restored or made anew, with other ids.
            self._ids = _Ids()
            raise
        except DBAPIError as exc:
            code = sqlstate(exc)
            if code is None or (code.startswith(_DATA_CLASSES) and code != _FOREIGN_KEY):
                self._metrics.batches.labels("refused").inc()
                msg = f"the database refused it (SQLSTATE {code or 'none'})"
                raise Refused(msg) from exc
            self._ids = _Ids()
            msg = f"PostgreSQL does not let us store this now (SQLSTATE {code})"
            raise DatabaseUnavailable(msg) from exc

    async def _store(self, deliveries: Sequence[Delivery]) -> None:
        ticks = [(d.tick, d.graded) for d in deliveries if d.tick and d.graded]
        memories = [memory for _, graded in ticks for memory in graded.memories]
        rejects = [row for delivery in deliveries for row in delivery.rejects]
        worlds = await self._worlds({tick.world for tick, _ in ticks})
        agents = await self._agents(
            {(worlds[m.world], m.agent) for m in memories}
            | {(worlds[m.world], m.speaker) for m in memories if m.speaker is not None}
        )
        owners = {  # one object for all of an agent's memories
            (world, name): AgentId(id=id_, world_id=world) for (world, name), id_ in agents.items()
        }
        rows = [
            (
                owners[worlds[m.world], m.agent],
                agents[worlds[m.world], m.speaker] if m.speaker is not None else None,
                m,
            )
            for m in memories
        ]
        receipts = [
            Receipt(
                world_id=worlds[d.tick.world],
                tick=d.tick.tick,
                decisions=d.decisions,
                sim_time=d.tick.time,
            )
            for d in deliveries
            if d.tick
        ]
        stored = 0
        async with self._database.writing() as session:
            await hold_worlds(session, worlds.values())
            if rows:
                answered = await contexts(session, rows, agents)
                stored = await recording.insert_memories(session, rows, answered)
            await recording.insert_receipts(session, receipts)
            await recording.insert_rejects(session, rejects)
        self._metrics.batches.labels("stored").inc()
        self._count(deliveries, memories=len(memories), stored=stored)

    # Worlds and agents are made where new in short transactions of their own: two recorders that
    # meet a new agent at once must not wait for each other's batch. The answers are the caller's
    # own: another batch may empty the cache meanwhile.

    async def _worlds(self, names: set[str]) -> dict[str, int]:
        known = self._ids.worlds
        found = {name: known[name] for name in names if name in known}
        if missing := names - found.keys():
            async with self._database.writing() as session:
                made = await recording.ensure_worlds(session, missing)
            known |= made
            found |= made
        return found

    async def _agents(self, names: set[tuple[int, str]]) -> dict[tuple[int, str], int]:
        """Ids by (world id, name)."""
        if len(self._ids.agents) > _MOST_CACHED:
            self._ids = _Ids()
        known = self._ids.agents
        found = {name: known[name] for name in names if name in known}
        if missing := names - found.keys():
            async with self._database.writing() as session:
                made = await recording.ensure_agents(session, missing)
            known |= made
            found |= made
        return found

    def _count(self, deliveries: Sequence[Delivery], *, memories: int, stored: int) -> None:
        metrics = self._metrics
        metrics.stored.inc(stored)
        metrics.repeated.inc(memories - stored)
        for delivery in deliveries:
            for row in delivery.rejects:
                metrics.rejected.labels(row.rejected.reason).inc()
            if delivery.tick is None or delivery.graded is None:
                continue
            metrics.decisions.inc(delivery.decisions)
            metrics.hearers_cut.inc(delivery.graded.hearers_cut)
            for action, count in delivery.graded.kept.items():
                metrics.kept.labels(action).inc(count)
            for (action, reason), count in delivery.graded.dropped.items():
                metrics.dropped.labels(action, reason).inc(count)
            metrics.cleaned.labels("nul").inc(delivery.tick.nul_removed)
            metrics.cleaned.labels("surrogate").inc(delivery.tick.surrogates_replaced)


def _rejected(body: bytes, routing_key: str, reason: str, detail: str) -> Delivery:
    """A message that is refused as a whole."""
    world = _world_of(routing_key)
    key = None
    if reason == MessageTooLarge.reason:
        key = reject_key(reason, world, body)
        body = body[:KEPT_OF_TOO_LARGE]
        detail += f" (its first {len(body)} bytes are kept)"
    row = RejectRow(
        rejected=Rejected(reason=reason, detail=detail, body=body),
        routing_key=routing_key,
        world=world,
        key=key,
    )
    return Delivery(tick=None, graded=None, rejects=(row,), body=body, routing_key=routing_key)


def _world_of(routing_key: str) -> str | None:
    """The world a routing key names, for a body that names none; None where the key was cut."""
    if not routing_key.startswith(TICK_ENDED_PREFIX) or len(routing_key) >= MAX_KEY_BYTES:
        return None
    world = unquote(routing_key.removeprefix(TICK_ENDED_PREFIX))
    return world.replace("\x00", "")[:MAX_NAME_CHARS] or None
