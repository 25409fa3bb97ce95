"""The ticks that `ingest` measures with, and the rows they come to."""

from __future__ import annotations

import json
import marshal
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tickmind.database import Database
from tickmind.decoding import decode_tick
from tickmind.grading import grade
from tickmind.identity import content_hash
from tickmind.memory import Memory
from tickmind.policy import default_policy
from tickmind.store import recording
from tickmind.words import array, digests, keys

__all__ = ["DECISIONS", "WORLD", "Load", "Rows", "decisions", "make_load", "unpacked"]

WORLD = "bench"
#: Decisions of one tick: half talk with one hearer, half move.
DECISIONS = 20
_AGENTS = 200
#: A talk's length in words: some 90 characters, as in the town of 25 (its mean is 45 Chinese
#: characters; English says the same in twice as many).
_SPEECH_WORDS = 15
_VOCABULARY = (
    "the market sells fresh fish this morning and my sister wants bread from old baker while"
    " nobody saw who took our boat across river before winter came with heavy snow so we stay"
)

#: One message's rows, column by column, as the ceiling inserts them.
Rows = tuple[list[Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`ticks`: messages of one tick each, 0, 1, 2, …; `rows`: what each comes to, ready to be
    inserted, as compact messages. All are of the same length."""

    ticks: Sequence[bytes]
    rows: Sequence[bytes]
    memories: int
    world_id: int

    @property
    def decisions(self) -> int:
        return len(self.ticks) * DECISIONS


async def make_load(database: Database, *, messages: int) -> Load:
    """Ticks of one world, the same every time.

    The world and its agents are made in the database, since the rows hold their ids.
    """
    source = random.Random(2)
    ticks = [_body(tick, source) for tick in range(messages)]
    async with database.writing() as session:
        world_id = (await recording.ensure_worlds(session, [WORLD]))[WORLD]
    async with database.writing() as session:
        names = [(world_id, _agent(number)) for number in range(_AGENTS)]
        found = await recording.ensure_agents(session, names)
    ids = {name: id_ for (_, name), id_ in found.items()}
    policy = default_policy()
    rows = [_rows(grade(decode_tick(body), policy).memories, ids) for body in ticks]
    packed = [marshal.dumps(columns) for columns in rows]
    # Spaces after JSON mean nothing to it, and bytes after what marshal wrote nothing to marshal.
    length = max(map(len, [*ticks, *packed]))
    return Load(
        ticks=[body.ljust(length) for body in ticks],
        rows=[body.ljust(length) for body in packed],
        memories=sum(len(columns[0]) for columns in rows),
        world_id=world_id,
    )


def unpacked(body: bytes) -> Rows:
    """The rows of a compact message: marshal is the fastest there is in Python's library."""
    rows: Rows = marshal.loads(body)
    return rows


def _agent(number: int) -> str:
    return f"agent-{number:03}"


def _body(tick: int, source: random.Random) -> bytes:
    message = {
        "world": WORLD,
        "tick": tick,
        "time": "2026-08-02T09:00:00Z",
        "decisions": decisions(source),
    }
    return json.dumps(message).encode()


def decisions(source: random.Random) -> list[dict[str, Any]]:
    """What the agents of one tick decide."""
    agents = source.sample(range(_AGENTS), DECISIONS + 1)
    decided: list[dict[str, Any]] = []
    for place, number in enumerate(agents[:DECISIONS]):
        decision: dict[str, Any] = {"agent": _agent(number), "place": "market"}
        if place % 2:
            decision |= {
                "action": "talk",
                "speech": " ".join(source.choices(_VOCABULARY.split(), k=_SPEECH_WORDS)),
                "heard_by": [_agent(agents[place + 1])],
            }
        else:
            target = [source.randrange(200), source.randrange(200)]
            decision |= {"action": "move", "target": target}
        decided.append(decision)
    return decided


def _rows(memories: Sequence[Memory], ids: dict[str, int]) -> Rows:
    """Columns in the order of the ceiling's INSERT."""
    return (
        [ids[memory.agent] for memory in memories],
        [memory.tick for memory in memories],
        [ids[memory.speaker] if memory.speaker else None for memory in memories],
        [memory.importance for memory in memories],
        [memory.is_core for memory in memories],
        [memory.kind for memory in memories],
        [memory.content for memory in memories],
        [content_hash(memory.content) for memory in memories],
        [memory.event_key for memory in memories],
        [memory.context for memory in memories],
        [
            array(keys(ids[memory.agent], digests(memory.content, memory.context)))
            for memory in memories
        ],
    )
