"""What a talk answers: the utterance before it that the same agent said or heard.

Looked for once, when the memory is stored, among what is stored by then and what is stored with
it; never changed afterwards. So nothing hangs on how messages fall into batches or on a
redelivery. A tick that comes late finds what it answers; the later ticks that are stored already
keep what they found without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.conversation import MAX_CONTEXT_TICKS
from tickmind.grading import MAX_CONTEXT_CHARS
from tickmind.memory import Memory
from tickmind.store.recording import AgentId

__all__ = ["contexts"]

Row = tuple[AgentId, int | None, Memory]

_BEFORE = text("""
    SELECT w.place, before.*
    FROM unnest(CAST(:places AS integer[]), CAST(:agent_ids AS bigint[]),
                CAST(:ticks AS bigint[]), CAST(:kinds AS text[])) AS w (place, agent_id, tick, kind)
    CROSS JOIN LATERAL (
        SELECT m.tick, m.event_key, m.speaker_id, right(m.content, :chars) AS content
        FROM memory m
        WHERE m.agent_id = w.agent_id AND m.tick < w.tick
          AND m.tick >= w.tick - :within AND m.kind = w.kind
        ORDER BY m.tick DESC, m.event_key DESC
        LIMIT 1
    ) AS before
""")


# Who stores a message of a tick leaves its receipt in the same transaction.
_CAME = text("""
    SELECT w.world_id, w.tick
    FROM unnest(CAST(:world_ids AS bigint[]), CAST(:ticks AS bigint[])) AS w (world_id, tick)
    WHERE EXISTS (SELECT FROM tick_receipt r
                  WHERE r.world_id = w.world_id AND r.tick = w.tick OFFSET 0)
""")


async def contexts(
    session: AsyncSession, rows: Sequence[Row], ids: Mapping[tuple[int, str], int]
) -> list[str | None]:
    """What each memory of a batch answers, as its own message says, else as is found.

    `ids`: of agents, by (world id, name); they must know all who are present.
    """
    found = [memory.context for _, _, memory in rows]
    wanting = [
        place
        for place, (_, _, memory) in enumerate(rows)
        if memory.context_use != "none" and memory.context is None
    ]
    among = _before(rows, {rows[place][2].kind for place in wanting})
    near: dict[int, tuple[int, int]] = {}
    for place in wanting:
        memory = rows[place][2]
        before = rows[among[place]][2] if place in among else None
        if before is None:
            continue
        if before.tick == memory.tick - 1:
            near[place] = (rows[place][0].world_id, before.tick)
        if before.tick >= memory.tick - MAX_CONTEXT_TICKS and (
            before.speaker is None or before.speaker in memory.present
        ):
            found[place] = before.content[-MAX_CONTEXT_CHARS:]
    # What was said in the tick just before needs no look-up: nothing can lie in between, unless
    # some of that tick was stored before.
    came = await _came(session, set(near.values()))
    asked = [place for place in wanting if place not in near or near[place] in came]
    if asked:
        parameters = {
            "places": asked,
            "agent_ids": [rows[place][0].id for place in asked],
            "ticks": [rows[place][2].tick for place in asked],
            "kinds": [rows[place][2].kind for place in asked],
            "chars": MAX_CONTEXT_CHARS,
            "within": MAX_CONTEXT_TICKS,
        }
        for stored in await session.execute(_BEFORE, parameters):
            before = rows[among[stored.place]][2] if stored.place in among else None
            # What is stored already keeps its words, so it goes before the same event come again.
            if before is None or (before.tick, before.event_key) <= (stored.tick, stored.event_key):
                there = _present(rows[stored.place], stored.speaker_id, ids)
                found[stored.place] = stored.content if there else None
    return found


def _before(rows: Sequence[Row], kinds: Set[str]) -> dict[int, int]:
    """By the place of each memory of these kinds: the place of the latest of the same agent and
    kind in an earlier tick."""
    in_order = sorted(
        (agent.id, memory.kind, memory.tick, memory.event_key, place)
        for place, (agent, _, memory) in enumerate(rows)
        if memory.kind in kinds
    )
    found: dict[int, int] = {}
    whose: tuple[int, str] | None = None
    now = last = earlier = -1
    for agent, kind, tick, _, place in in_order:
        if (agent, kind) != whose:
            whose, now, earlier = (agent, kind), tick, -1
        elif tick != now:
            now, earlier = tick, last
        if earlier >= 0:
            found[place] = earlier
        last = place
    return found


async def _came(session: AsyncSession, ticks: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those of these ticks (world id, tick) of which a message is stored."""
    if not ticks:
        return set()
    parameters = {
        "world_ids": [world_id for world_id, _ in ticks],
        "ticks": [tick for _, tick in ticks],
    }
    rows = await session.execute(_CAME, parameters)
    return {(row.world_id, row.tick) for row in rows}


def _present(row: Row, speaker: int | None, ids: Mapping[tuple[int, str], int]) -> bool:
    """Whether who spoke before is there now: else that was another conversation."""
    agent, _, memory = row
    return speaker is None or any(
        ids.get((agent.world_id, name)) == speaker for name in memory.present
    )
