"""`status` and `gaps`: what is there, what waits, what never came."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands import Cli, servers_of
from tests.parking import park_all
from tests.running import eventually, running, settings_for
from tickmind.database import Database
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind.store.inspection import world_statuses
from tickmind_recorder.app import create_app as create_recorder
from tickmind_recorder.settings import RecorderSettings


@pytest.fixture
def cli(
    tmp_path: Path, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> Cli:
    return Cli(tmp_path, servers_of(database_settings, broker_settings))


def _trace(world: str, *ticks: int) -> bytes:
    lines = [
        {
            "world": world,
            "tick": tick,
            "decisions": [
                {"agent": "bob", "action": "talk", "speech": f"Tick {tick}", "heard_by": ["alice"]},
                {"agent": 17, "action": "move", "target": [tick, 0]},
                {"agent": "carol", "action": "talk"},
            ],
        }
        for tick in ticks
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


async def _recorded(cli: Cli, database: Database, trace: bytes, world: str, last: int) -> None:
    """Publish and wait until the last tick is recorded."""
    published = await cli("publish", "-", stdin=trace)
    assert published.code == 0, published.err

    async def ticks() -> int | None:
        async with database.reading() as session:
            found = await world_statuses(session, world)
            return found[0].last_tick if found else None

    await eventually(ticks, lambda tick: tick == last, what="the last tick")


async def test_status_tells_memories_and_what_waits_per_world(
    cli: Cli,
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
) -> None:
    empty = await cli("status")
    assert (empty.code, empty.err) == (0, "")
    assert "nothing has been recorded yet" in empty.out
    assert "no embedding space yet" in empty.out

    settings = settings_for(RecorderSettings, database_settings, broker_settings)
    async with running(create_recorder(settings)):
        await _recorded(cli, database, _trace("w", 0, 1, 2), "w", 2)
        await _recorded(cli, database, _trace("other", 5), "other", 5)
        await park_all(database, "other", reason="the provider refuses it: too long")

        found = (await cli("status", "--json")).json
        shown = await cli("status", "w")
        other = await cli("status", "other")
        unknown = await cli("status", "nowhere")

    worlds: dict[str, Any] = {world["world"]: world for world in found["worlds"]}
    assert worlds["w"] == {
        "world": "w",
        "agents": 3,
        "kinds": {"conversation": 6, "observation": 3},
        "memories": 9,
        "pending": 9,
        "parked": 0,
        "parked_reasons": {},
        "rejects": 3,
        "first_tick": 0,
        "last_tick": 2,
    }
    assert worlds["other"]["pending"] == 0
    assert worlds["other"]["parked_reasons"] == {"the provider refuses it: too long": 3}
    assert found["queues"]["tickmind.recorder"] == {"ready": 0, "consumers": 1}
    assert found["queues"]["tickmind.recall"] == {"ready": None, "consumers": None}
    assert found["dead_letters"] == 0
    assert found["embedding_space"]["dimensions"] == 64
    assert found["schema"]
    assert found["faults"] == []

    assert (shown.code, shown.err) == (0, "")
    for part in ("9 (6 conversation, 3 observation)", "0..2", "tickmind.recorder", "dimensions"):
        assert part in shown.out
    assert "other" not in shown.out
    assert shown.out.count("\n") < 24  # fits a terminal's screen
    assert "parked in other: 3 memories, the provider refuses it: too long" in other.out
    assert (unknown.code, unknown.out) == (1, "")
    assert "no world named nowhere has been recorded" in unknown.err


async def test_status_shows_the_database_where_the_broker_is_away(
    cli: Cli, database_settings: DatabaseSettings
) -> None:
    cli.env["TICKMIND_AMQP_URL"] = "amqp://127.0.0.1:1"
    done = await cli("status", "--json")
    assert done.code == 1
    assert done.json["worlds"] == []
    assert done.json["queues"] == {}
    assert "RabbitMQ cannot be reached" in done.json["faults"][0]
    assert "RabbitMQ cannot be reached" in done.err


async def test_gaps_are_the_ticks_between_first_and_last_that_never_came(
    cli: Cli,
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
) -> None:
    settings = settings_for(RecorderSettings, database_settings, broker_settings)
    async with running(create_recorder(settings)):
        await _recorded(cli, database, _trace("w", 3, 4, 6, 10), "w", 10)
        await _recorded(cli, database, _trace("whole", 1, 2), "whole", 2)
    done = await cli("gaps", "w", "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json == {
        "world": "w",
        "first_tick": 3,
        "last_tick": 10,
        "missing": 4,
        "gaps": [{"first": 5, "last": 5}, {"first": 7, "last": 9}],
    }
    shown = await cli("gaps", "w")
    assert shown.out.splitlines() == [
        "5",
        "7..9",
        "4 ticks between 3 and 10 were never received",
    ]
    whole = await cli("gaps", "whole")
    assert whole.out == "every tick from 1 to 2 was received\n"
    unknown = await cli("gaps", "nowhere")
    assert (unknown.code, unknown.out) == (1, "")
    assert "no world named nowhere" in unknown.err
