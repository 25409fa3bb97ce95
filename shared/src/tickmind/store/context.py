"""What a talk answers: the utterance before it that the same agent said or heard.

Looked for once, when the memory is stored, among what is stored by then and what is stored with
it; never changed afterwards. So nothing hangs on how messages fall into batches or on a
redelivery. A tick that comes late finds what it answers; the later ticks that are stored already
keep what they found without it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.grading import MAX_CONTEXT_CHARS
from tickmind.memory import Memory
from tickmind.store.recording import AgentId

__all__ = ["MAX_CONTEXT_TICKS", "with_context"]

Row = tuple[AgentId, int | None, Memory]

#: An answer comes within so many ticks; what was said before belongs to another conversation.
MAX_CONTEXT_TICKS = 20


@dataclass(frozen=True, slots=True, order=True)
class _Utterance:
    """Ordered as conversations go; within a tick by something that is the same everywhere."""

    tick: int
    event_key: bytes
    speaker_id: int | None = field(compare=False)
    content: str = field(compare=False)


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


async def with_context(
    session: AsyncSession, rows: Sequence[Row], ids: Mapping[tuple[int, str], int]
) -> list[Row]:
    """The rows of a batch with the context of those that want one and have none by their own
    message. `ids`: of agents, by (world id, name); they must know all who are present."""
    said: dict[tuple[int, str], list[_Utterance]] = defaultdict(list)
    wanting: list[int] = []
    for place, (agent, speaker_id, memory) in enumerate(rows):
        if memory.context_use == "none":
            continue
        if memory.context is None:
            wanting.append(place)
        content = memory.content[-MAX_CONTEXT_CHARS:]
        utterance = _Utterance(memory.tick, memory.event_key, speaker_id, content)
        insort(said[agent.id, memory.kind], utterance)
    found = {place: _among(said, rows[place]) for place in wanting}
    # What was said in the tick just before needs no look-up: nothing can lie in between.
    asked = [
        place
        for place, before in found.items()
        if before is None or before.tick < rows[place][2].tick - 1
    ]
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
            stored = _Utterance(row.tick, row.event_key, row.speaker_id, row.content)
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


def _among(said: Mapping[tuple[int, str], list[_Utterance]], row: Row) -> _Utterance | None:
    """The latest one of this agent in an earlier tick of the same batch."""
    agent, _, memory = row
    own = said[agent.id, memory.kind]
    place = bisect_left(own, (memory.tick,), key=lambda utterance: (utterance.tick,))
    if place == 0 or own[place - 1].tick < memory.tick - MAX_CONTEXT_TICKS:
        return None
    return own[place - 1]


def _present(row: Row, before: _Utterance, ids: Mapping[tuple[int, str], int]) -> bool:
    """Whether who spoke before is there now: else that was another conversation."""
    agent, _, memory = row
    if before.speaker_id is None:
        return True
    return any(ids.get((agent.world_id, name)) == before.speaker_id for name in memory.present)
