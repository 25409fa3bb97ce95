"""The recorder on real servers: what is remembered of a tick, once, by whom and in which world."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path

from opentelemetry import trace
from sqlalchemy import text

from tests.recording import (
    client,
    count,
    recorder,
    remembered,
    tick_body,
    until_remembered,
    wire,
)
from tests.running import eventually, metric, running, settings_for, settled
from tickmind.connecting import declare
from tickmind.database import Database
from tickmind.service import App
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind.topology import (
    EMBEDDER_QUEUE,
)
from tickmind_embedder.app import create_app as create_embedder
from tickmind_embedder.settings import EmbedderSettings
from tickmind_retriever.app import create_app as create_retriever
from tickmind_retriever.settings import RetrieverSettings

_TALK = {"agent": "bob", "action": "talk", "speech": "The market sells fresh fish"}
_MOVE = {"agent": "alice", "action": "move", "target": [15, 8]}


async def test_stores_a_tick_with_its_receipt_and_what_waits_for_a_vector(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    app = recorder(database_settings, broker_settings)

    async with running(app), client(broker_settings) as memory:
        receipt = await memory.publish_tick(
            "town-7",
            42,
            [
                _TALK | {"heard_by": ["alice", 17], "importance": 9, "core": True},
                _MOVE,
                {"agent": "carol", "action": "stay"},
            ],
            time="2026-08-02T18:00:00+09:00",
        )
        rows = await until_remembered(database, 4)

    assert receipt.confirmed
    assert sorted((r.agent, r.content, r.importance, r.is_core, r.speaker or "") for r in rows) == [
        ("17", "bob told me: The market sells fresh fish", 9, True, "bob"),
        ("alice", "I moved to (15, 8)", 4, False, ""),
        ("alice", "bob told me: The market sells fresh fish", 9, True, "bob"),
        ("bob", "I said: The market sells fresh fish", 9, True, ""),
    ]
    assert {(r.tick, r.kind) for r in rows} == {(42, "conversation"), (42, "observation")}
    async with database.reading() as session:
        receipts = (await session.execute(text("SELECT * FROM tick_receipt"))).mappings().all()
    assert [(r["tick"], r["decisions"], r["sim_time"].isoformat()) for r in receipts] == [
        (42, 3, "2026-08-02T09:00:00+00:00")
    ]
    assert metric(app, "tickmind_decisions_total") == 3
    assert metric(app, "tickmind_memories_stored_total") == 4
    assert metric(app, "tickmind_decisions_dropped_total", action="stay", reason="policy") == 1


async def test_the_same_sentence_in_two_ticks_is_two_memories_and_stays_so(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    """case 10: said in ticks 5 and 9; tick 5 redelivered."""
    app = recorder(database_settings, broker_settings)

    async with running(app), wire(broker_settings) as opened:
        await opened.send(
            tick_body(_TALK, tick=5), tick_body(_TALK, tick=9), tick_body(_TALK, tick=5)
        )
        await eventually(
            _number(app, "tickmind_decisions_total"), lambda n: n == 3, what="decisions"
        )
        rows = await remembered(database)

    assert [row.tick for row in rows] == [5, 9]
    assert metric(app, "tickmind_memories_repeated_total") == 1
    assert await count(database, "tick_receipt") == 2


async def test_a_new_run_under_a_new_world_shares_nothing_with_the_old_one(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    """case 11: ticks 0 to 10 again, the same agents and words, another world id."""
    apps = [
        recorder(database_settings, broker_settings),
        create_embedder(settings_for(EmbedderSettings, database_settings, broker_settings)),
        create_retriever(settings_for(RetrieverSettings, database_settings, broker_settings)),
    ]

    async with running(*apps), client(broker_settings) as memory:
        for world in ("run-1", "run-2"):
            for tick in range(11):
                words = f"The fish of {world} at {tick}"
                await memory.publish_tick(
                    world, tick, [{"agent": "bob", "action": "talk", "speech": words}, _MOVE]
                )
        await settled(database, "run-1", memories=22)
        await settled(database, "run-2", memories=22)
        answers = {
            world: await memory.recall(world, "bob", "The fish", tick=20, k=100, timeout_s=30)
            for world in ("run-1", "run-2")
        }

    for world, answer in answers.items():
        assert len(answer.memories) == 11
        assert all(f"of {world} at" in m["content"] for m in answer.memories)


async def test_a_world_rewound_keeps_the_future_it_had_and_recalls_by_as_of_tick(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    """case 11: the same world id rewound to tick 3.

    A tick is never taken back: the memories of ticks 4 to 6 stay; decisions published again as
    they were are the events they were; other decisions of the same ticks are memories beside the
    old ones. A rewound run asks with `as_of_tick` not to know its former future, and gets a new
    world id where the two lives must not mix.
    """
    apps = [
        recorder(database_settings, broker_settings),
        create_embedder(settings_for(EmbedderSettings, database_settings, broker_settings)),
        create_retriever(settings_for(RetrieverSettings, database_settings, broker_settings)),
    ]

    async with running(*apps), client(broker_settings) as memory:
        for tick in range(7):
            await memory.publish_tick(
                "town-7", tick, [{"agent": "bob", "action": "observe", "text": f"first {tick}"}]
            )
        await settled(database, "town-7", memories=7)
        for tick in (3, 4):
            for words in (f"first {tick}", f"second {tick}"):
                await memory.publish_tick(
                    "town-7", tick, [{"agent": "bob", "action": "observe", "text": words}]
                )
        await settled(database, "town-7", memories=9)
        everything = await memory.recall("town-7", "bob", "first", tick=4, k=100, timeout_s=30)
        so_far = await memory.recall(
            "town-7", "bob", "first", tick=4, as_of_tick=4, k=100, timeout_s=30
        )

    assert len(everything.memories) == 9
    assert sorted(m["content"] for m in so_far.memories) == sorted(
        [f"first {tick}" for tick in range(5)] + ["second 3", "second 4"]
    )


async def test_agents_of_similar_names_each_have_their_own(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    """case 19: no character of a name is a pattern, a quote or the same as another."""
    agents = [
        "john_doe",
        "john-doe",
        "johnXdoe",
        "a%",
        "ab",
        "o'x",
        "o''x",
        "A%",
        'o"x',
        "a\\",
        " ",
    ]
    apps = [
        recorder(database_settings, broker_settings),
        create_embedder(settings_for(EmbedderSettings, database_settings, broker_settings)),
        create_retriever(settings_for(RetrieverSettings, database_settings, broker_settings)),
    ]

    async with running(*apps), client(broker_settings) as memory:
        await memory.publish_tick(
            "o'w%_",
            1,
            [
                {"agent": agent, "action": "observe", "text": f"own text {number}"}
                for number, agent in enumerate(agents)
            ],
        )
        await settled(database, "o'w%_", memories=len(agents))
        answers = await memory.recall_many(
            "o'w%_", [(agent, "own text") for agent in agents], tick=2, timeout_s=30
        )

    assert [[m["content"] for m in answer.memories] for answer in answers] == [
        [f"own text {number}"] for number in range(len(agents))
    ]


async def test_an_event_is_one_memory_by_its_id_or_by_what_was_decided(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    """Twice in one message by hash: two, told apart by their order. By id: one. In two messages:
    one. And a hearer's memory goes with the event's."""
    heard = _TALK | {"heard_by": ["alice"]}
    app = recorder(database_settings, broker_settings)

    async with running(app), wire(broker_settings) as opened:
        await opened.send(
            tick_body(_TALK, _TALK, tick=1),
            tick_body(_TALK, tick=1),
            tick_body(_TALK, _TALK, tick=1),
            tick_body(heard | {"event_id": "e"}, heard | {"event_id": "e"}, tick=2),
            tick_body(heard | {"event_id": "e", "speech": "other words"}, tick=2),
            tick_body(heard | {"event_id": "f"}, tick=2),
            tick_body(_TALK, tick=3),
            tick_body(_TALK, tick=3),
        )
        await eventually(
            _number(app, "tickmind_decisions_total"), lambda n: n == 11, what="decisions"
        )
        rows = await remembered(database)

    assert sorted((row.tick, row.agent) for row in rows) == [
        (1, "bob"),
        (1, "bob"),
        (2, "alice"),
        (2, "alice"),
        (2, "bob"),
        (2, "bob"),
        (3, "bob"),
    ]
    assert metric(app, "tickmind_memories_stored_total") == 7
    assert metric(app, "tickmind_memories_repeated_total") == 3 + 4 + 1


async def test_a_hint_belongs_to_the_trace_of_what_it_announces(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    span = trace.NonRecordingSpan(
        trace.SpanContext(
            trace_id=0xABCDEF, span_id=0x123, is_remote=False, trace_flags=trace.TraceFlags(1)
        )
    )
    app = recorder(database_settings, broker_settings)

    async with running(app), client(broker_settings) as memory, wire(broker_settings) as own:
        await declare(own.channel, EMBEDDER_QUEUE)
        hints = await own.channel.get_queue(EMBEDDER_QUEUE.name)
        with trace.use_span(span):
            await memory.publish_tick("town-7", 1, [_TALK])
        async with asyncio.timeout(10), hints.iterator(no_ack=True) as arriving:
            hint = await anext(arriving)

    traceparent = str(hint.headers["traceparent"])
    assert traceparent.split("-")[1] == f"{0xABCDEF:032x}"
    assert isinstance(hint.headers["sent_at"], int)


async def test_takes_ticks_published_before_any_recorder_ran(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    async with client(broker_settings) as memory:
        receipt = await memory.publish_tick("town-7", 1, [_MOVE])
        assert receipt.confirmed

    async with running(recorder(database_settings, broker_settings)):
        await until_remembered(database, 1)


async def test_a_policy_file_of_ones_own_is_followed(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    tmp_path: Path,
) -> None:
    default = (files("tickmind") / "policy.yaml").read_text(encoding="utf-8")
    (tmp_path / "policy.yaml").write_text(
        default.replace("worlds: {}", "worlds: {town-7: {language: ja, actions: {move: drop}}}"),
        encoding="utf-8",
    )
    app = recorder(
        database_settings, broker_settings, recorder_policy_file=tmp_path / "policy.yaml"
    )

    async with running(app), client(broker_settings) as memory:
        await memory.publish_tick("town-7", 1, [_TALK, _MOVE])
        await memory.publish_tick("town-8", 1, [_MOVE])
        await until_remembered(database, 1, "town-8")
        rows = await until_remembered(database, 1)

    assert [row.content for row in rows] == ["私はこう言った：The market sells fresh fish"]


def _number(app: App, name: str) -> Callable[[], Awaitable[float]]:
    async def ask() -> float:
        return metric(app, name)

    return ask
