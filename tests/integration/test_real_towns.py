"""Two real towns through the running recorder: known numbers, replay, and taking away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import text

from tests.recording import client, count, left_in, recorder
from tests.running import eventually, metric, running
from tickmind import MemoryClient
from tickmind.database import Database
from tickmind.removing import collect, delete
from tickmind.service import App
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind.store.spaces import Space, ensure_space
from tickmind.tables import metadata
from tickmind.topology import DEAD_LETTER_QUEUE, RECORDER_QUEUE

#: World: memories, stays, ticks.
_TOWNS = {"smallville": (4_660, 21_392, 8_655), "smallville-zh": (2_305, 1_830, 495)}
_AT_ONCE = 64


async def test_replays_two_towns_exactly_and_takes_one_away_without_a_trace(
    data: Path,
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
) -> None:
    """Exactly 4,660 and 2,305 memories, 21,392 and 1,830 stays dropped and counted; replayed,
    nothing changes; deleted, nothing of a world is left in any table."""
    lines = [
        line
        for town in _TOWNS
        for line in (data / town / "tick_ended.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    app = recorder(database_settings, broker_settings)
    async with database.writing() as session:  # so that memories wait for vectors
        await ensure_space(session, Space(model="none", dimensions=8))

    async with running(app), client(broker_settings) as memory:
        await _replay(memory, lines)
        await _received(app, len(lines))
        first = await _memories(database)
        assert first == {town: memories for town, (memories, _, _) in _TOWNS.items()}
        assert metric(
            app, "tickmind_decisions_dropped_total", action="stay", reason="policy"
        ) == sum(stays for _, stays, _ in _TOWNS.values())
        assert await _ticks(database) == {town: ticks for town, (_, _, ticks) in _TOWNS.items()}
        content = await _fingerprint(database)

        await _replay(memory, lines)
        await _received(app, 2 * len(lines))

    assert await _fingerprint(database) == content
    assert metric(app, "tickmind_memories_repeated_total") == sum(first.values())
    assert await count(database, "reject") == 0
    assert await left_in(broker_settings, RECORDER_QUEUE, DEAD_LETTER_QUEUE) == [0, 0]

    await _delete_and_find_nothing(database)


async def _replay(memory: MemoryClient, lines: Iterable[str]) -> None:
    """Publish every line as a tick, so many at once."""
    waiting = iter(lines)

    async def publish() -> None:
        for line in waiting:
            tick = json.loads(line)
            receipt = await memory.publish_tick(
                tick["world"], tick["tick"], tick["decisions"], time=tick["time"], timeout_s=30
            )
            assert receipt.confirmed, receipt

    await asyncio.gather(*(publish() for _ in range(_AT_ONCE)))


async def _received(app: App, ticks: int) -> None:
    decisions = ticks // (8_655 + 495) * (4_486 + 21_392 + 87 + 705 + 895 + 1_830)

    async def seen() -> float:
        return metric(app, "tickmind_decisions_total")

    await eventually(seen, lambda now: now == decisions, what="decisions")


async def _memories(database: Database) -> dict[str, int]:
    async with database.reading() as session:
        rows = await session.execute(
            text(
                "SELECT w.name, count(*) AS number FROM memory m JOIN agent a ON a.id = m.agent_id"
                " JOIN world w ON w.id = a.world_id GROUP BY w.name"
            )
        )
        return {row.name: row.number for row in rows}


async def _ticks(database: Database) -> dict[str, int]:
    async with database.reading() as session:
        rows = await session.execute(
            text(
                "SELECT w.name, count(*) AS number FROM tick_receipt r"
                " JOIN world w ON w.id = r.world_id GROUP BY w.name"
            )
        )
        return {row.name: row.number for row in rows}


async def _fingerprint(database: Database) -> list[object]:
    """All that is remembered, without when it was last heard of."""
    async with database.reading() as session:
        return [
            (
                await session.execute(
                    text(f"SELECT md5(string_agg(t::text, ',')) FROM ({query}) t")
                )
            ).scalar_one()
            for query in (
                "SELECT * FROM memory ORDER BY id",
                "SELECT * FROM agent ORDER BY id",
                "SELECT * FROM world ORDER BY id",
                "SELECT * FROM pending_embedding ORDER BY memory_id",
                "SELECT world_id, tick, decisions, sim_time, first_received FROM tick_receipt"
                " ORDER BY world_id, tick",
            )
        ]


async def _delete_and_find_nothing(database: Database) -> None:
    """Delete one world; its rows are gone from every table, the other's are all there."""
    await _embed_everything(database)
    tables = [table.name for table in metadata.sorted_tables]
    before = {name: await count(database, name) for name in tables}
    assert all(before[name] for name in ("memory", "tick_receipt", "recall_index", "embedding"))

    assert await delete(database.writing, "smallville")
    await collect(database.writing)

    async with database.reading() as session:
        left = await session.execute(
            text("""
                SELECT (SELECT count(*) FROM embedding e WHERE NOT EXISTS (
                            SELECT FROM memory m WHERE m.content_hash = e.content_hash)),
                       (SELECT count(*) FROM recall_index r WHERE NOT EXISTS (
                            SELECT FROM memory m WHERE m.id = r.memory_id)),
                       (SELECT count(*) FROM pending_embedding p WHERE NOT EXISTS (
                            SELECT FROM memory m WHERE m.id = p.memory_id)),
                       (SELECT count(*) FROM agent a WHERE NOT EXISTS (
                            SELECT FROM world w WHERE w.id = a.world_id))
            """)
        )
        assert left.one() == (0, 0, 0, 0)
    assert await _memories(database) == {"smallville-zh": _TOWNS["smallville-zh"][0]}
    assert await _ticks(database) == {"smallville-zh": _TOWNS["smallville-zh"][2]}

    assert await delete(database.writing, "smallville-zh")
    await collect(database.writing)
    after = {name: await count(database, name) for name in tables}
    assert {name: number for name, number in after.items() if number} == {
        "embedding_space": 1,
        "index_generation": 1,
    }


async def _embed_everything(database: Database) -> None:
    """Every memory indexed, but for some that still wait, so that each table has its rows."""
    async with database.writing() as session:
        for statement in (
            "INSERT INTO embedding SELECT DISTINCT space_id, content_hash, '[1,0,0,0,0,0,0,0]'::"
            "halfvec FROM pending_embedding",
            "INSERT INTO recall_index SELECT m.id, g.id, m.importance, m.is_core, m.agent_id,"
            " m.tick, m.kind, m.content_hash, NULL FROM memory m, index_generation g"
            " WHERE m.id % 10 <> 0",
            "DELETE FROM pending_embedding WHERE memory_id % 10 <> 0",
            "INSERT INTO embedding_job SELECT DISTINCT ON (content_hash) space_id, content_hash, 0"
            " FROM pending_embedding",
        ):
            await session.execute(text(statement))
