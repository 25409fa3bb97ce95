"""What benchmarks fill in is what the services would have written: sound, and recalled."""

from __future__ import annotations

from benchmarks.bulk import fill
from tests.remembering import audited, counted
from tests.retrieving import retriever_settings, retrieving
from tests.running import SOUND
from tickmind.database import Database
from tickmind.settings import DatabaseSettings
from tickmind.store.spaces import Space


async def test_bulk_is_sound_and_recalled(
    database: Database, database_settings: DatabaseSettings
) -> None:
    url = database_settings.database_url
    assert url is not None

    bulk = await fill(
        database,
        url.get_secret_value(),
        {50: 2, 10: 3},
        space=Space(model="hash", dimensions=64),
        world="town",
        last_tick=40,
    )

    assert await audited(database) == SOUND
    for table in ("memory", "embedding", "recall_index"):
        assert await counted(database, table) == bulk.memories == 130
    assert bulk.generation.mean is not None
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        reply = await retriever.recall(*((name, "something") for name in bulk.agents[10]))
    assert [len(answer.memories) for answer in reply.replies] == [5, 5, 5]
