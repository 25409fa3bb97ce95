"""What the services tell Prometheus, as it is scraped."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aio_pika
import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from tests.fleet import finished
from tests.otlp import collecting
from tests.recording import client, execute, recorder, until_remembered, wire
from tests.running import eventually, settings_for
from tickmind import tracing, watching
from tickmind.database import Database
from tickmind.errors import PermanentError
from tickmind.local.ports import free_port
from tickmind.local.provider.faults import Status
from tickmind.local.provider.running import Provider
from tickmind.pushing import pushing
from tickmind.schema import SCHEMA_VERSION
from tickmind.service import App, run
from tickmind.settings import BrokerSettings, DatabaseSettings, HealthSettings
from tickmind_embedder.app import create_app as create_embedder
from tickmind_embedder.settings import EmbedderSettings
from tickmind_recorder.handler import Handler
from tickmind_retriever.app import create_app as create_retriever
from tickmind_retriever.settings import RetrieverSettings

_TALK = {"agent": "bob", "action": "talk", "speech": "We sell fish", "heard_by": ["alice"]}
_OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class _Served:
    """A service's health endpoints."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    async def get(self, path: str, accept: str = "text/plain") -> httpx2.Response:
        async with httpx2.AsyncClient() as http:
            return await http.get(self._url + path, headers={"accept": accept})

    async def alive(self) -> bool:
        try:
            return (await self.get("/livez")).status_code == 200
        except httpx2.TransportError:
            return False

    async def ready(self) -> bool:
        return await self.alive() and (await self.get("/readyz")).status_code == 200

    async def value(self, sample: str) -> float | None:
        """A sample's value, its labels as they are exposed; None: it is not told."""
        text = (await self.get("/metrics")).text
        found = re.search(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else None

    async def until(self, sample: str, value: float) -> None:
        await eventually(lambda: self.value(sample), lambda now: now == value, what=sample)


@asynccontextmanager
async def _serving(app: App, *, ready: bool = True) -> AsyncIterator[_Served]:
    port, stop = free_port(), asyncio.Event()
    settings = HealthSettings(health_host="127.0.0.1", health_port=port)
    running = asyncio.create_task(run(app, settings, stop))
    served = _Served(port)
    try:
        await eventually(served.ready if ready else served.alive, bool, what=app.name)
        yield served
    finally:
        stop.set()
        await running


@pytest.fixture(autouse=True)
def _always_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "FRESH_S", 0.0)


def _embedder(
    database: DatabaseSettings, broker: BrokerSettings, provider: Provider, **options: object
) -> App:
    given = {
        "embedding_provider": "openai",
        "embedding_base_url": provider.base_url,
        "embedding_api_key": "a key",
        "embedding_model": "test",
        "embedding_budget": "ours",
        "embedding_price": 2.0,
        "embedding_limits": "100 texts/min",
        "embedder_sweep_s": 0.2,
    }
    return create_embedder(settings_for(EmbedderSettings, database, broker, **(given | options)))


async def test_queues_are_told_even_those_that_nobody_consumes_or_declared(
    database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    app = recorder(database_settings, broker_settings)
    async with _serving(app) as served, wire(broker_settings) as opened:
        await served.until('tickmind_queue_consumers{queue="tickmind.recorder"}', 1)
        await served.until('tickmind_queue_consumers{queue="tickmind.recall"}', 0)
        letter = aio_pika.Message(b"what could not even be rejected")
        await opened.channel.default_exchange.publish(letter, "tickmind.dead-letters")
        await served.until('tickmind_queue_messages{queue="tickmind.dead-letters"}', 1)


async def test_every_service_tells_its_version_its_schema_and_its_pool(
    database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    app = recorder(database_settings, broker_settings, database_pool_size=7)
    async with _serving(app) as served:
        build = f'tickmind_build_info{{schema="{SCHEMA_VERSION}",version="0.1.0"}}'
        assert await served.value(build) == 1
        assert await served.value("tickmind_database_pool_size") == 7
        assert await served.value("tickmind_database_pool_in_use") == 0


async def test_what_waits_is_told_with_its_age_until_it_has_its_vector(
    database_settings: DatabaseSettings,
    database: Database,
    broker_settings: BrokerSettings,
    provider: Provider,
) -> None:
    provider.faults.add(Status(code=503))
    async with _serving(recorder(database_settings, broker_settings)):
        async with client(broker_settings) as memory:
            await memory.publish_tick("town-7", 1, [_TALK])
        await until_remembered(database, 2)
    await execute(database, "UPDATE memory SET recorded_at = now() - interval '1 hour'")
    app = _embedder(database_settings, broker_settings, provider)
    async with _serving(app, ready=False) as served:
        await served.until('tickmind_pending_memories{space="active"}', 2)
        age = await served.value('tickmind_pending_oldest_seconds{space="active"}')
        assert age is not None
        assert 3600 <= age < 3700
        await eventually(
            lambda: served.value('tickmind_embedding_errors_total{kind="server"}'),
            bool,
            what="failed calls",
        )
        provider.faults.clear()
        await finished(database)
        await served.until('tickmind_pending_memories{space="active"}', 0)
        await served.until('tickmind_pending_oldest_seconds{space="active"}', 0)


async def test_calls_are_counted_in_tokens_and_dollars_and_as_a_share_of_the_budget(
    database_settings: DatabaseSettings,
    database: Database,
    broker_settings: BrokerSettings,
    provider: Provider,
) -> None:
    embedder = _embedder(database_settings, broker_settings, provider)
    async with _serving(recorder(database_settings, broker_settings)), _serving(embedder) as served:
        async with client(broker_settings) as memory:
            await memory.publish_tick("town-7", 1, [_TALK])
        await until_remembered(database, 2)
        await finished(database)
        billed = provider.ledger.totals().tokens_billed
        assert billed
        await served.until("tickmind_embedding_inputs_total", 2)
        await served.until("tickmind_embedding_tokens_total", billed)
        await served.until("tickmind_embedding_cost_dollars_total", billed * 2e-6)
        await served.until(
            'tickmind_embedding_budget_used_ratio{budget="ours",limit="100 texts/min"}', 0.02
        )
        await served.until('tickmind_embedding_blocked_seconds{budget="ours"}', 0)
        calls = await served.value("tickmind_embedding_call_seconds_count")
        assert calls == len(provider.ledger.calls)


async def test_budget_that_is_used_up_is_told_as_waited_for(
    database_settings: DatabaseSettings,
    database: Database,
    broker_settings: BrokerSettings,
    provider: Provider,
) -> None:
    embedder = _embedder(
        database_settings, broker_settings, provider, embedding_limits="1 texts/2s"
    )
    async with _serving(recorder(database_settings, broker_settings)), _serving(embedder) as served:
        async with client(broker_settings) as memory:
            await memory.publish_tick("town-7", 1, [_TALK])
        await until_remembered(database, 2)
        await finished(database)
        waited = await served.value("tickmind_embedding_budget_waited_seconds_total")
        assert waited is not None
        assert 1 < waited < 60


async def test_dead_letter_is_counted(
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise PermanentError("not even as a reject")

    monkeypatch.setattr(Handler, "store", refuse)
    monkeypatch.setattr(Handler, "reject", refuse)
    async with _serving(recorder(database_settings, broker_settings)) as served:
        async with client(broker_settings) as memory:
            await memory.publish_tick("town-7", 1, [_TALK])
        await served.until("tickmind_dead_letters_total", 1)
        await served.until('tickmind_queue_messages{queue="tickmind.dead-letters"}', 1)


async def test_decisions_are_told_by_action_and_what_became_of_them(
    database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    async with _serving(recorder(database_settings, broker_settings)) as served:
        async with client(broker_settings) as memory:
            stay = {"agent": "carol", "action": "stay"}
            move = {"agent": "dan", "action": "move", "target": [1, 2]}
            await memory.publish_tick("town-7", 1, [_TALK, stay, move])
        await served.until("tickmind_decisions_total", 3)
        await served.until('tickmind_decisions_kept_total{action="talk"}', 1)
        await served.until('tickmind_decisions_kept_total{action="move"}', 1)
        dropped = 'tickmind_decisions_dropped_total{action="stay",reason="policy"}'
        await served.until(dropped, 1)


async def test_latency_of_a_recall_names_its_trace_to_who_asks_for_openmetrics(
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The SDK for this test alone: the process may have but one for all.
    sdk = TracerProvider()
    monkeypatch.setattr(tracing, "_tracer", sdk.get_tracer("test"))
    monkeypatch.setattr(tracing, "tracing", lambda: True)
    app = create_retriever(settings_for(RetrieverSettings, database_settings, broker_settings))
    async with _serving(app) as served, client(broker_settings) as memory:
        with sdk.get_tracer("test").start_as_current_span("decide") as decide:
            await memory.recall("town-7", "alice", "the market", tick=1, timeout_s=30)
        plain = await served.get("/metrics")
        exposed = await served.get("/metrics", _OPENMETRICS)
    trace_id = trace.format_trace_id(decide.get_span_context().trace_id)
    assert plain.headers["content-type"].startswith("text/plain")
    assert trace_id not in plain.text
    assert exposed.headers["content-type"].startswith("application/openmetrics-text")
    assert exposed.text.endswith("# EOF\n")
    lines = [line for line in exposed.text.splitlines() if trace_id in line]
    assert lines
    assert all(line.startswith("tickmind_recall_seconds_bucket{") for line in lines)


async def test_same_metrics_are_pushed_to_a_collector_that_is_named_for_them(
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with collecting() as collector:

        async def consumed() -> set[str]:
            told = collector.metrics.get("tickmind-retriever", {}).get("tickmind_queue_consumers")
            points = told.gauge.data_points if told is not None else ()
            return {point.attributes[0].value.string_value for point in points}

        monkeypatch.setenv(
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{collector.endpoint}/v1/metrics"
        )
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
        app = create_retriever(settings_for(RetrieverSettings, database_settings, broker_settings))
        async with _serving(app), client(broker_settings) as memory:
            await eventually(consumed, lambda queues: "tickmind.recall" in queues, what="queues")
            monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "3600000")  # only as it ends, now
            await memory.recall("town-7", "alice", "the market", tick=1, timeout_s=30)
        pushed = collector.metrics["tickmind-retriever"]
    families = {
        family.name + ("_total" if family.type == "counter" else ""): family
        for family in app.registry.collect()
    }
    assert pushed.keys() == families.keys()
    recalls = pushed["tickmind_recalls_total"].sum
    assert recalls.is_monotonic
    assert sum(point.as_double for point in recalls.data_points) == 1
    [latency] = pushed["tickmind_recall_seconds"].histogram.data_points
    assert latency.count == sum(latency.bucket_counts) == 1
    assert len(latency.bucket_counts) == len(latency.explicit_bounds) + 1
    assert latency.sum == app.registry.get_sample_value("tickmind_recall_seconds_sum")
    place = next(n for n, bound in enumerate(latency.explicit_bounds) if latency.sum <= bound)
    assert latency.bucket_counts[place] == 1


@pytest.mark.parametrize(
    ("environment", "on"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_METRICS_EXPORTER": "otlp"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c"}, True),
        (
            {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c", "OTEL_METRICS_EXPORTER": "none"},
            False,
        ),
        ({"OTEL_METRICS_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_metrics_are_pushed_where_a_collector_is_meant_to_have_them(
    environment: dict[str, str], on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert pushing() is on
