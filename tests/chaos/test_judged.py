"""The check itself, on a real town: what is changed behind its back is found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import text

from tests.chaos.figures import Figures
from tests.chaos.stack import Stack
from tests.chaos.town import Scenario, town

_TAKEN = text("DELETE FROM memory WHERE id = (SELECT min(id) FROM memory)")
#: As a recorder would that told one event from itself: another key, and its text is linked.
_DOUBLED = text("""
    WITH again AS (
        INSERT INTO memory (agent_id, tick, speaker_id, importance, kind, content, content_hash,
                            event_key)
        SELECT agent_id, tick, speaker_id, importance, kind, content, content_hash,
               'another key!'::bytea
        FROM memory ORDER BY id LIMIT 1
        RETURNING id, agent_id, tick, importance, content_hash
    )
    INSERT INTO pending_embedding (memory_id, world_id, tick, space_id, importance, content_hash)
    SELECT m.id, a.world_id, m.tick, g.space_id, m.importance, m.content_hash
    FROM again m JOIN agent a ON a.id = m.agent_id CROSS JOIN index_generation g
""")


async def test_what_is_taken_or_doubled_behind_its_back_is_found(
    stack: Stack, scenario: Scenario
) -> None:
    told: list[Figures] = []

    async def live() -> None:
        async with town(stack, replace(scenario, told=told)) as running:
            for change in (_TAKEN, _DOUBLED):
                async with running.database.writing() as session:
                    await session.execute(change)

    with pytest.raises(AssertionError, match="1 memories lost") as found:
        await live()

    assert "1 memories stored twice" in str(found.value)
    assert (told[0].lost, told[0].duplicated, told[0].unfinished) == (1, 1, 0)
