"""The path of an event through the three services, on real servers."""

from __future__ import annotations

from tests.recording import execute
from tests.running import SOUND, eventually, running, settings_for, settled
from tickmind import MemoryClient
from tickmind.database import Database
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind_embedder.app import create_app as create_embedder
from tickmind_embedder.settings import EmbedderSettings
from tickmind_recorder.app import create_app as create_recorder
from tickmind_recorder.settings import RecorderSettings
from tickmind_retriever.app import create_app as create_retriever
from tickmind_retriever.settings import RetrieverSettings


async def test_recalls_what_was_told_and_done_end_to_end(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    """case 20: a talk and a move, recorded, embedded and recalled."""
    apps = [
        create_recorder(settings_for(RecorderSettings, database_settings, broker_settings)),
        create_embedder(settings_for(EmbedderSettings, database_settings, broker_settings)),
        create_retriever(settings_for(RetrieverSettings, database_settings, broker_settings)),
    ]
    assert broker_settings.amqp_url is not None
    async with running(*apps), MemoryClient(broker_settings.amqp_url.get_secret_value()) as memory:
        receipt = await memory.publish_tick(
            "town-7",
            42,
            [
                {
                    "agent": "bob",
                    "action": "talk",
                    "speech": "The market sells fresh fish",
                    "heard_by": ["alice"],
                },
                {"agent": "alice", "action": "move", "target": [15, 8], "place": "market"},
                {"agent": "carol", "action": "stay"},
            ],
        )
        assert receipt.confirmed

        assert await settled(database, "town-7", memories=3) == SOUND

        answer = await memory.recall(
            "town-7", "alice", "Alice walks past the market", tick=200, timeout_s=30
        )

    assert answer.status == "ok", answer
    assert [m["content"] for m in answer.memories] == [
        "bob told me: The market sells fresh fish",
        "I moved to (15, 8), market",
    ]
    assert "bob told me: The market sells fresh fish" in answer.fragment
    assert (answer.recorded_tick, answer.embedded_tick) == (42, 42)


async def test_each_tick_is_remembered_in_the_next_where_that_is_waited_for(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    apps = [
        create_recorder(settings_for(RecorderSettings, database_settings, broker_settings)),
        create_embedder(settings_for(EmbedderSettings, database_settings, broker_settings)),
        create_retriever(settings_for(RetrieverSettings, database_settings, broker_settings)),
    ]
    assert broker_settings.amqp_url is not None
    async with running(*apps), MemoryClient(broker_settings.amqp_url.get_secret_value()) as memory:
        for tick in range(1, 8):
            said = {"agent": "bob", "action": "talk", "speech": f"This is day {tick}"}
            assert (await memory.publish_tick("town-7", tick, [said])).confirmed
            answer = await memory.recall(
                "town-7",
                "bob",
                f"What is said of day {tick}?",
                tick=tick + 1,
                wait_for_tick=tick,
                wait_until="embedded",
                wait_ms=30_000,
                timeout_s=60,
                from_tick=tick,
            )
            assert [m["content"] for m in answer.memories] == [f"I said: This is day {tick}"]
            assert (answer.recorded_tick, answer.embedded_tick) == (tick, tick)


async def test_read_only_database_is_told_by_those_who_write(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    """case 43: what answers and lets nobody write makes recorder and embedder unready, until their
    next writes pass; nothing is lost."""
    recorder = create_recorder(settings_for(RecorderSettings, database_settings, broker_settings))
    embedder = create_embedder(
        settings_for(EmbedderSettings, database_settings, broker_settings, embedder_sweep_s=0.5)
    )
    name = database.engine.url.database
    async with running(recorder, embedder), MemoryClient(broker_settings.broker_url()) as memory:
        await execute(
            database,
            f'ALTER DATABASE "{name}" SET default_transaction_read_only = on',
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'tickmind-%'",
        )
        decision = {"agent": "bob", "action": "talk", "speech": "We sell fish", "heard_by": []}
        assert (await memory.publish_tick("town-7", 1, [decision])).confirmed
        for app in (recorder, embedder):
            await eventually(
                app.checks["store"],
                lambda fault: fault is not None and "read-only" in fault,
                what=f"{app.name} unready",
            )
            assert await app.checks["database"]() is None
        await execute(database, f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        assert await settled(database, "town-7", memories=1) == SOUND
        for app in (recorder, embedder):
            await eventually(
                app.checks["store"], lambda fault: fault is None, what=f"{app.name} ready"
            )
