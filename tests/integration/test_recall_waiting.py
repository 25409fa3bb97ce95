"""Reading what was just written: waiting for a tick, and no longer than asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.clock import SLACK_S, Clock
from tests.integration.test_recall_choice import embedded
from tests.remembering import known, remember
from tests.retrieving import contents, retriever_settings, retrieving
from tests.running import eventually
from tickmind.database import Database
from tickmind.hashed import hash_embed
from tickmind.settings import DatabaseSettings
from tickmind.store import watermarks as watermarks_module
from tickmind.store.spaces import Space
from tickmind_retriever import awaiting as awaiting_module
from tickmind_retriever import handler as handler_module

_SPACE = Space(model="hash", dimensions=64)


class Looks:
    """Counts how often the database is looked at, and for which worlds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.worlds: list[list[str]] = []
        original = watermarks_module.watermarks

        async def watched(session: Any, worlds: Any, **options: Any) -> Any:
            self.worlds.append(sorted(worlds))
            return await original(session, worlds, **options)

        monkeypatch.setattr(awaiting_module, "watermarks", watched)

    async def at_least(self, count: int) -> None:
        async def looked() -> int:
            return len(self.worlds)

        await eventually(looked, lambda found: found >= count, what="looks")


async def test_recall_sees_what_was_published_the_tick_before(
    database: Database, database_settings: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await embedded(database, ["I saw rain"], tick=41)
    await known(database, {"Bob sells fish": hash_embed("Bob sells fish", 64)}, _SPACE)
    looks = Looks(monkeypatch)
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        asking = asyncio.create_task(
            retriever.recall(
                ("alice", "fish"), tick=43, wait_for_tick=42, wait_ms=30_000, deadline_ms=60_000
            )
        )
        await looks.at_least(3)
        assert not asking.done()
        await embedded(database, ["Bob sells fish"], tick=42)
        reply = await asking
    assert reply.watermarks.recorded == 42
    assert "Bob sells fish" in contents(reply)[0]


async def test_wait_may_be_for_the_vectors(
    database: Database, database_settings: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    await known(database, {}, _SPACE)
    await remember(database, ["Bob sells fish"], tick=42)
    looks = Looks(monkeypatch)
    options = {"wait_for_tick": 42, "wait_ms": 30_000, "deadline_ms": 60_000}
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        reply = await retriever.recall(("alice", "fish"), **options)
        assert contents(reply) == [["Bob sells fish"]]  # by its words
        assert (reply.watermarks.recorded, reply.watermarks.embedded) == (42, 41)
        before = len(looks.worlds)
        asking = asyncio.create_task(
            retriever.recall(("alice", "fish"), wait_until="embedded", **options)
        )
        await looks.at_least(before + 3)
        assert not asking.done()
        vector = hash_embed("Bob sells fish", 64)
        await known(database, {"Bob sells fish": vector}, _SPACE)
        reply = await asking
    assert contents(reply) == [["Bob sells fish"]]
    assert reply.watermarks.embedded == 42


@pytest.mark.parametrize("world", ["town", "nowhere"])
async def test_wait_ends_at_its_bound_with_what_there_is(
    database: Database,
    database_settings: DatabaseSettings,
    monkeypatch: pytest.MonkeyPatch,
    world: str,
) -> None:
    # Most of the time is kept for ranking: a busy machine may take as long.
    monkeypatch.setattr(handler_module, "_RANKING_SHARE", 0.75)
    monkeypatch.setattr(handler_module, "_RANKING_MOST_S", 4.5)
    await embedded(database, ["I saw rain"], tick=41)
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        for options in (
            {"wait_ms": 100, "deadline_ms": 10_000},
            {"wait_ms": 60_000, "deadline_ms": 6000},
        ):
            clock = Clock()
            reply = await retriever.recall(
                ("alice", "rain"), world=world, wait_for_tick=42, **options
            )
            assert clock.s < options["deadline_ms"] / 1000 + SLACK_S
            assert clock.wall_s >= 0.1
            assert reply.replies[0].reason is None
            assert contents(reply) == [["I saw rain"] if world == "town" else []]
            assert reply.watermarks.recorded == (41 if world == "town" else None)


async def test_all_who_wait_share_one_look(
    database: Database, database_settings: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        await embedded(database, ["I saw rain"], world=f"town {number}", tick=1)
    looks = Looks(monkeypatch)
    monkeypatch.setattr(awaiting_module, "_LOOK_S", 0.1)
    async with retrieving(database, retriever_settings(database_settings)) as retriever:
        waiting = [
            asyncio.create_task(
                retriever.recall(
                    ("alice", f"rain {number}"),
                    world=f"town {number % 3}",
                    wait_for_tick=2,
                    wait_ms=30_000,
                    deadline_ms=60_000,
                )
            )
            for number in range(90)
        ]
        await looks.at_least(3)
        assert len(looks.worlds) < 90
        assert looks.worlds[-1] == ["town 0", "town 1", "town 2"]
        for number in range(3):
            await embedded(database, ["I saw fish"], world=f"town {number}", tick=2)
        replies = await asyncio.gather(*waiting)
        assert {reply.watermarks.recorded for reply in replies} == {2}
        # Nobody waits: nobody looks.
        looks.worlds.clear()
        assert (await retriever.recall(("alice", "rain"), world="town 1")).watermarks.recorded == 2
        assert looks.worlds == []
