"""What a talk answers: the utterance before it that the same agent said or heard.

Looked for once, when the memory is stored, among what is stored by then and what is stored with
it; never changed afterwards. So nothing hangs on how messages fall into batches or on a
redelivery. A tick that comes late finds what it answers; the later ticks that are stored already
keep what they found without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.conversation import MAX_CONTEXT_TICKS, Said, Utterance
from tickmind.grading import MAX_CONTEXT_CHARS
from tickmind.memory import Memory
from tickmind.store.recording import AgentId

__all__ = ["with_context"]

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
    SELECT r.world_id, r.tick FROM tick_receipt r
    JOIN unnest(CAST(:world_ids AS bigint[]), CAST(:ticks AS bigint[])) AS w (world_id, tick)
        ON r.world_id = w.world_id AND r.tick = w.tick
""")


async def with_context(
    session: AsyncSession, rows: Sequence[Row], ids: Mapping[tuple[int, str], int]
) -> list[Row]:
    """The rows of a batch with the context of those that want one and have none by their own
    message. `ids`: of agents, by (world id, name); they must know all who are present."""
    wanting = [
        place
        for place, (_, _, memory) in enumerate(rows)
        if memory.context_use != "none" and memory.context is None
    ]
    kinds = {rows[place][2].kind for place in wanting}
    said = Said()
    for agent, speaker_id, memory in rows:
        if memory.kind in kinds:
            said.add(agent.id, memory.kind, Utterance.of(memory, speaker_id))
    found = {}
    for place in wanting:
        agent, _, memory = rows[place]
        found[place] = said.before(agent.id, memory.kind, memory.tick)
    # What was said in the tick just before needs no look-up: nothing can lie in between, unless
    # some of that tick was stored before.
    near = {
        place: (rows[place][0].world_id, before.tick)
        for place, before in found.items()
        if before is not None and before.tick == rows[place][2].tick - 1
    }
    came = await _came(session, set(near.values()))
    asked = [place for place in found if place not in near or near[place] in came]
    if asked:
        parameters = {
            "places": asked,
            "agent_ids": [rows[place][0].id for place in asked],
            "ticks": [rows[place][2].tick for place in asked],
            "kinds": [rows[place][2].kind for place in asked],
            "chars": MAX_CONTEXT_CHARS,
            "within": MAX_CONTEXT_TICKS,
        }
        for row in await session.execute(_BEFORE, parameters):
            stored = Utterance(row.tick, row.event_key, row.speaker_id, row.content)
            among = found[row.place]
            found[row.place] = stored if among is None else max(stored, among)
    contexts = {
        place: before.content
        for place, before in found.items()
        if before is not None and _present(rows[place], before, ids)
    }
    return [
        (agent, speaker_id, replace(memory, context=contexts[place]))
        if place in contexts
        else (agent, speaker_id, memory)
        for place, (agent, speaker_id, memory) in enumerate(rows)
    ]


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


def _present(row: Row, before: Utterance, ids: Mapping[tuple[int, str], int]) -> bool:
    """Whether who spoke before is there now: else that was another conversation."""
    agent, _, memory = row
    if before.speaker is None:
        return True
    return any(ids.get((agent.world_id, name)) == before.speaker for name in memory.present)
