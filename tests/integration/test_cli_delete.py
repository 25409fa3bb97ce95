"""`delete world` and `delete agent`: says what goes, asks, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.commands import Cli, servers_of
from tests.running import SOUND, eventually, running, settings_for
from tickmind.database import Database
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind.store.inspection import audit, world_statuses
from tickmind_embedder.app import create_app as create_embedder
from tickmind_embedder.settings import EmbedderSettings
from tickmind_recorder.app import create_app as create_recorder
from tickmind_recorder.settings import RecorderSettings


@pytest.fixture
async def cli(
    tmp_path: Path,
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
) -> Cli:
    """Two worlds, recorded and embedded: one text is theirs alike, one is each one's own."""
    command = Cli(tmp_path, servers_of(database_settings, broker_settings))
    trace = b"".join(
        json.dumps(
            {
                "world": world,
                "tick": 1,
                "decisions": [
                    {"agent": "bob", "action": "talk", "speech": "Hi", "heard_by": ["alice"]},
                    {"agent": "bob", "action": "observe", "text": f"This is {world}"},
                    {"agent": "bob", "action": "talk"},
                ],
            }
        ).encode()
        + b"\n"
        for world in ("one", "two")
    )
    apps = [
        create_recorder(settings_for(RecorderSettings, database_settings, broker_settings)),
        create_embedder(settings_for(EmbedderSettings, database_settings, broker_settings)),
    ]
    async with running(*apps):
        published = await command("publish", "-", stdin=trace)
        assert published.code == 0, published.err

        async def waiting() -> list[tuple[int, int, int]]:
            async with database.reading() as session:
                found = await world_statuses(session)
                return [(sum(s.kinds.values()), s.pending, s.rejects) for s in found]

        await eventually(waiting, lambda now: now == [(3, 0, 1)] * 2, what="both worlds")
    return command


async def _texts(database: Database) -> int:
    async with database.reading() as session:
        return int((await session.execute(text("SELECT count(*) FROM embedding"))).scalar_one())


async def test_a_world_goes_with_all_that_was_its_own(cli: Cli, database: Database) -> None:
    assert await _texts(database) == 4
    unasked = await cli("delete", "world", "one")
    assert (unasked.code, unasked.out) == (2, "")
    assert "Delete the world one: 2 agents, 3 memories, 1 rejects?" in unasked.err
    assert "say --yes" in unasked.err
    no = await cli.answering("no", "delete", "world", "one")
    assert (no.code, no.out) == (1, "")
    assert "nothing was changed" in no.err
    async with database.reading() as session:
        assert len(await world_statuses(session)) == 2

    done = await cli.answering("yes", "delete", "world", "one")
    assert done.code == 0, done.err
    assert done.out == "deleted one: 3 memories, 1 unused vectors\n"
    async with database.reading() as session:
        assert [status.world for status in await world_statuses(session)] == ["two"]
        assert await audit(session) == SOUND
    assert await _texts(database) == 3
    assert [row["world"] for row in (await cli("rejects", "list", "--json")).json] == ["two"]

    again = await cli("delete", "world", "one", "--yes")
    assert (again.code, again.out) == (1, "")
    assert "no world named one" in again.err


async def test_an_agent_goes_alone(cli: Cli, database: Database) -> None:
    unknown = await cli("delete", "agent", "one", "zoe", "--yes")
    assert (unknown.code, unknown.out) == (1, "")
    assert "the world one has no agent named zoe" in unknown.err

    unasked = await cli("delete", "agent", "one", "bob")
    assert unasked.code == 2
    assert "Delete bob of the world one: 2 memories?" in unasked.err

    done = await cli("delete", "agent", "one", "bob", "--yes", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json == {"world": "one", "agent": "bob", "memories": 2, "embeddings": 1}
    async with database.reading() as session:
        one, two = await world_statuses(session)
        assert (one.agents, sum(one.kinds.values())) == (1, 1)
        assert (two.agents, sum(two.kinds.values())) == (2, 3)
        assert await audit(session) == SOUND
