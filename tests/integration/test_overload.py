"""More recalls than can be answered: as many are answered as without the others."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from tests.integration.test_recall_choice import embedded
from tests.integration.test_recall_crowds import Statements
from tests.running import eventually, metric, running, settings_for
from tickmind import MemoryClient
from tickmind.database import Database
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind_retriever import ranker
from tickmind_retriever.app import create_app
from tickmind_retriever.settings import RetrieverSettings

#: Seconds a ranking takes: long against all else, so that capacity is the same on any machine. A
#: recall takes 15 ms of a core, and three times as many as can be answered come.
_RANKING_S = 0.6
#: Of a ranking's length the share that it has of the client's own 0.8 s where one takes 0.2.
_TIMEOUT_S = 2.4
_MEASURED_S, _OVERLOADED_S = 3.0, 9.0


@pytest.mark.parametrize("concurrency", [6, 32])
async def test_three_times_as_many_recalls_as_can_be_answered_cost_no_answers(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    monkeypatch: pytest.MonkeyPatch,
    concurrency: int,
) -> None:
    """What comes too late is refused before work is thrown away on it. Begun in vain, as it was,
    a tenth to a third of the answers are left."""
    await embedded(database, ["fish", "rain"], agent="alice")
    monkeypatch.setattr(ranker, "_AGENTS_A_STATEMENT", 1)
    Statements(monkeypatch, before=f"SELECT pg_sleep({_RANKING_S})")
    settings = settings_for(
        RetrieverSettings, database_settings, broker_settings, retriever_concurrency=concurrency
    )
    app = create_app(settings)
    async with running(app), MemoryClient(broker_settings.broker_url()) as client:
        await eventually(app.checks["broker"], lambda fault: fault is None, what="consumes")
        answered = 0
        until = time.monotonic() + _MEASURED_S

        async def ask_on() -> None:
            nonlocal answered
            while time.monotonic() < until:
                told = await client.recall("town", "alice", "fish", tick=100, timeout_s=30)
                assert told.status == "ok"
                answered += 1

        await asyncio.gather(*(ask_on() for _ in range(4)))
        capacity = answered / _MEASURED_S  # a second
        outcomes: Counter[str | None] = Counter()

        async def ask() -> None:
            told = await client.recall("town", "alice", "fish", tick=100, timeout_s=_TIMEOUT_S)
            outcomes[told.reason or told.status] += 1

        begun = time.monotonic()
        async with asyncio.TaskGroup() as asking:
            for number in range(int(3 * capacity * _OVERLOADED_S)):
                await asyncio.sleep(begun + number / (3 * capacity) - time.monotonic())
                asking.create_task(ask())
    assert outcomes["ok"] >= 0.6 * capacity * _OVERLOADED_S, outcomes
    assert metric(app, "tickmind_recalls_shed_total") > 0
