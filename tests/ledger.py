"""What messages must come to by the pure parts alone, held against what the database has."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from sqlalchemy import text

from tickmind.database import Database
from tickmind.decoding import decode_tick
from tickmind.errors import InvalidMessage
from tickmind.grading import grade
from tickmind.policy import Policy, default_policy
from tickmind_recorder.handler import _world_of

__all__ = ["Ledger"]

_MEMORIES = text("""
    SELECT w.name, a.name, m.event_key, m.tick, m.kind, m.content, m.importance, m.is_core, s.name
    FROM memory m JOIN agent a ON a.id = m.agent_id JOIN world w ON w.id = a.world_id
    LEFT JOIN agent s ON s.id = m.speaker_id
""")
_RECEIPTS = text("""
    SELECT w.name, r.tick, r.decisions FROM tick_receipt r JOIN world w ON w.id = r.world_id
""")

_REJECTS = text("SELECT world, body, times, reason, detail FROM reject")

#: World, agent and key of an event; what is remembered of it.
_Key = tuple[str, str, bytes]
_What = tuple[int, str, str, int, bool, str | None]


@dataclass(slots=True)
class Ledger:
    """Every message that was sent, each to be found again."""

    policy: Policy = field(default_factory=default_policy)
    messages: int = 0
    decisions: int = 0
    #: Of an event told in two ways under one id, the first that came is kept.
    memories: dict[_Key, set[_What]] = field(default_factory=lambda: defaultdict(set))
    rejects: Counter[tuple[str | None, bytes]] = field(default_factory=Counter)
    receipts: dict[tuple[str, int], int] = field(default_factory=dict)

    def add(self, body: bytes, routing_key: str) -> None:
        self.messages += 1
        try:
            tick = decode_tick(body)
        except InvalidMessage:
            self.rejects[_world_of(routing_key), body] += 1
            return
        graded = grade(tick, self.policy)
        self.decisions += len(tick.decisions)
        for rejected in (*tick.rejected, *graded.rejected):
            self.rejects[tick.world, rejected.body] += 1
        for memory in graded.memories:
            what = (memory.tick, memory.kind, memory.content, memory.importance)
            self.memories[memory.world, memory.agent, memory.event_key].add(
                (*what, memory.is_core, memory.speaker)
            )
        place = (tick.world, tick.tick)
        self.receipts[place] = max(self.receipts.get(place, 0), len(tick.decisions))

    async def compare(self, database: Database) -> None:
        """Nothing is missing, nothing is there that was not sent, and each reject has its words."""
        async with database.reading() as session:
            memories = {
                (world, agent, key): tuple(what)
                for world, agent, key, *what in await session.execute(_MEMORIES)
            }
            receipts = {
                (world, tick): decisions
                for world, tick, decisions in await session.execute(_RECEIPTS)
            }
        assert memories.keys() == self.memories.keys()
        for key, what in memories.items():
            assert what in self.memories[key]
        assert receipts == self.receipts
        rejects: Counter[tuple[str | None, bytes]] = Counter()
        async with database.reading() as session:
            for row in await session.execute(_REJECTS):
                rejects[row.world, bytes(row.body)] += row.times
                assert row.reason == "invalid"
                assert row.detail
        assert rejects == self.rejects
