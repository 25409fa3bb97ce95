"""Traces as a collector gets them: the services as processes, an engine with an SDK of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from tests.fleet import finished
from tests.otlp import Collector, Received, collecting
from tests.processes import asked_to_end
from tests.recording import until_remembered
from tests.running import eventually
from tickmind.database import Database
from tickmind.local.ports import free_port
from tickmind.local.provider.running import Provider
from tickmind.settings import BrokerSettings, DatabaseSettings

#: Words that stand in memories and observations, and must stand in no span.
_SECRETS = ("Zanzibar", "quetzal", "Timbuktu")
_PUBLISH = "publish tickmind.events:tick.ended.v1.{world}"
_HINT = "publish tickmind.events:memory.recorded.v1"
_ALL = ("recorder", "embedder", "retriever")

# An engine: each of its rounds is a trace. Prints their ids.
_ENGINE = """
import asyncio, json, sys
from opentelemetry import trace
from tickmind import MemoryClient
from tickmind.telemetry import configure_traces

configure_traces("engine")
tracer = trace.get_tracer("engine")

async def publish(memory, tick, said):
    with tracer.start_as_current_span("tick") as span:
        talk = {"agent": "bob", "action": "talk", "speech": said, "heard_by": ["alice"]}
        receipt = await memory.publish_tick("town-7", tick, [talk])
        assert receipt.confirmed, receipt
        return f"{span.get_span_context().trace_id:032x}"

async def recall(memory, seen):
    with tracer.start_as_current_span("decide") as span:
        answer = await memory.recall("town-7", "alice", seen, tick=200, timeout_s=20)
        assert answer.status == "ok", answer
        return f"{span.get_span_context().trace_id:032x}"

async def main():
    async with MemoryClient(sys.argv[1]) as memory:
        rounds = [
            publish(memory, place, text) if what == "publish" else recall(memory, text)
            for place, (what, text) in enumerate(json.loads(sys.argv[2]))
        ]
        print(json.dumps(await asyncio.gather(*rounds)))

asyncio.run(main())
"""


class _Town:
    """Services that run, and what they and the engine export."""

    def __init__(
        self, collector: Collector, broker: BrokerSettings, environment: dict[str, str]
    ) -> None:
        self.collector = collector
        self._url = broker.broker_url()
        self._environment = environment

    async def engine(self, *rounds: tuple[str, str]) -> list[str]:
        """Let an engine do its rounds at the same time: the trace of each."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-c", _ENGINE, self._url, json.dumps(rounds)),
            env=self._environment,
            stdin=DEVNULL,
            stdout=PIPE,
        )
        try:
            async with asyncio.timeout(60):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0
        traces: list[str] = json.loads(output)
        return traces

    async def until(self, trace_id: str, *names: str) -> list[Received]:
        """The spans of a trace, once those named are among them."""

        async def found() -> list[Received]:
            return self.collector.of(trace_id)

        return await eventually(
            found,
            lambda spans: set(names) <= {span.name for span in spans},
            what=f"{names} of trace {trace_id}",
        )


@asynccontextmanager
async def _town(
    database: DatabaseSettings,
    broker: BrokerSettings,
    provider: Provider,
    services: Sequence[str] = _ALL,
    **environment: str,
) -> AsyncIterator[_Town]:
    assert database.database_url is not None
    given = {
        "TICKMIND_DATABASE_URL": database.database_url.get_secret_value(),
        "TICKMIND_AMQP_URL": broker.broker_url(),
        "TICKMIND_EMBEDDING_BASE_URL": provider.base_url,
        "TICKMIND_EMBEDDING_API_KEY": "a key",
        "TICKMIND_EMBEDDING_MODEL": "test",
        "TICKMIND_EMBEDDING_DIMENSIONS": "64",
        "TICKMIND_HEALTH_HOST": "127.0.0.1",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        **environment,
    }
    async with collecting() as collector, AsyncExitStack() as stack:
        given = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, **given}
        started = [await stack.enter_async_context(_process(name, given)) for name in services]
        for name, ready in zip(services, started, strict=True):
            await eventually(ready, bool, what=f"{name} ready", timeout_s=60)
        yield _Town(collector, broker, given)


@asynccontextmanager
async def _process(
    name: str, environment: dict[str, str]
) -> AsyncIterator[Callable[[], Awaitable[bool]]]:
    """Run a service until the block ends; gives whether it is ready."""
    port = str(free_port())
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", f"tickmind_{name}"),
        env=environment | {"TICKMIND_HEALTH_PORT": port},
        stdin=DEVNULL,
        stderr=DEVNULL,
    )

    async def ready() -> bool:
        assert process.returncode is None, f"the {name} has ended"
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        except OSError:
            return False
        writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return b" 200 " in answer.splitlines()[0]

    try:
        yield ready
    finally:
        await asked_to_end(process)


def _the(spans: Sequence[Received], name: str) -> Received:
    [found] = [span for span in spans if span.name == name]
    return found


def _holds_no_text(spans: Sequence[Received]) -> None:
    for span in spans:
        told = f"{span.name} {json.dumps(span.attributes)}"
        assert not [word for word in _SECRETS if word in told], told


async def test_tick_is_one_trace_from_publish_to_rows_and_recall_one_to_its_reply(
    database_settings: DatabaseSettings,
    database: Database,
    broker_settings: BrokerSettings,
    provider: Provider,
) -> None:
    async with _town(database_settings, broker_settings, provider) as town:
        [ticked] = await town.engine(("publish", "Zanzibar lies on the quetzal road"))
        await until_remembered(database, 2)
        await finished(database)
        await town.until(ticked, "store", "INSERT recall_index", "INSERT embedding")
        [asked] = await town.engine(("recall", "Alice thinks of Timbuktu"))
        await town.until(asked, "decide", "publish reply", "rank_together")

    # Each service exports when it will, and what is left when it ends.
    see = town.collector
    tick, recall = see.of(ticked), see.of(asked)
    publish = _the(tick, _PUBLISH)
    assert (publish.service, publish.kind) == ("engine", "PRODUCER")
    assert see.above(publish) == ["tick"]
    recorded = _the(tick, "process tickmind.recorder")
    assert (recorded.service, recorded.kind) == ("tickmind-recorder", "CONSUMER")
    assert recorded.parent_id == publish.span_id
    assert recorded.attributes["messaging.system"] == "rabbitmq"
    assert recorded.attributes["messaging.operation.type"] == "process"
    assert recorded.attributes["messaging.batch.message_count"] == 1
    [memories] = [span for span in tick if span.name == "INSERT memory"]
    assert (memories.kind, memories.parent_id) == ("CLIENT", recorded.span_id)
    assert memories.attributes["db.system.name"] == "postgresql"
    assert memories.attributes["db.operation.name"] == "INSERT"
    assert memories.attributes["db.namespace"] == database.engine.url.database
    hint = _the(tick, _HINT)
    assert (hint.kind, hint.parent_id) == ("PRODUCER", recorded.span_id)
    woken = [span for span in tick if span.name == "process tickmind.embedder"]
    assert {(span.service, span.kind) for span in woken} == {("tickmind-embedder", "CONSUMER")}
    assert {span.parent_id for span in woken} == {hint.span_id}
    calls = [span for span in tick if span.name == "POST /embeddings"]
    assert calls
    for call in calls:
        assert (call.service, call.kind) == ("tickmind-embedder", "CLIENT")
        assert see.above(call)[:3] == ["embed", "process tickmind.embedder", _HINT]
        assert call.attributes["http.request.method"] == "POST"
        assert call.attributes["http.response.status_code"] == 200
        assert call.attributes["url.full"] == f"{provider.base_url}/embeddings"
        assert call.attributes["server.address"] == "127.0.0.1"
    assert sum(call.attributes["tickmind.texts"] for call in calls) == 2
    assert "embed" in see.above(next(span for span in tick if span.name == "claim"))
    vectors = [span for span in tick if span.name == "INSERT embedding"]
    assert all(see.above(span)[:2] == ["store", "embed"] for span in vectors)

    request = _the(recall, "publish tickmind.recall")
    assert (request.service, request.kind) == ("engine", "CLIENT")
    assert see.above(request) == ["decide"]
    answered = _the(recall, "process tickmind.recall")
    assert (answered.service, answered.kind) == ("tickmind-retriever", "CONSUMER")
    assert answered.parent_id == request.span_id
    assert see.above(_the(recall, "POST /embeddings"))[:2] == ["embed", "process tickmind.recall"]
    for name in ("embed", "look_up", "rank_together", "publish reply"):
        assert _the(recall, name).parent_id == answered.span_id, name
    assert _the(recall, "publish reply").kind == "PRODUCER"
    _holds_no_text(see.spans)


async def test_batch_of_many_traces_belongs_to_one_and_is_linked_to_the_others(
    database_settings: DatabaseSettings,
    database: Database,
    broker_settings: BrokerSettings,
    provider: Provider,
) -> None:
    async with _town(
        database_settings,
        broker_settings,
        provider,
        ("recorder",),
        TICKMIND_RECORDER_BATCH_MS="2000",
    ) as town:
        traces = await town.engine(*[("publish", f"Zanzibar, the {n}.") for n in range(5)])
        await until_remembered(database, 10)
        see = town.collector

        async def batches() -> list[Received]:
            return see.named("process tickmind.recorder")

        found = await eventually(
            batches,
            lambda spans: (
                sum(span.attributes["messaging.batch.message_count"] for span in spans) == 5
            ),
            what="batches",
        )
        for trace_id in traces:
            await town.until(trace_id, _PUBLISH)

    assert len(found) < 5
    reached = {(span.trace_id, span.parent_id) for span in found}
    reached |= {link for span in found for link in span.links}
    published = {(span.trace_id, span.span_id) for span in see.named(_PUBLISH)}
    assert reached == published
    assert {trace_id for trace_id, _ in published} == set(traces)
    _holds_no_text(see.spans)


async def test_sampler_of_the_environment_decides_what_is_exported(
    database_settings: DatabaseSettings,
    database: Database,
    broker_settings: BrokerSettings,
    provider: Provider,
) -> None:
    async with _town(
        database_settings,
        broker_settings,
        provider,
        ("recorder",),
        OTEL_TRACES_SAMPLER="traceidratio",
        OTEL_TRACES_SAMPLER_ARG="0",
    ) as town:
        await town.engine(("publish", "Zanzibar"))
        await until_remembered(database, 2)
    # Both have ended, and with it exported what they had.
    assert town.collector.spans == []


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
async def test_no_sdk_is_loaded_where_traces_are_off(environment: dict[str, Any]) -> None:
    loaded = """
import sys
from tickmind.telemetry import configure_traces
from tickmind_recorder.app import create_app
from tickmind_recorder.settings import RecorderSettings
configure_traces("test")
create_app(RecorderSettings())
print([name for name in sys.modules if name.startswith("opentelemetry.sdk")])
"""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", loaded, env=clean | environment, stdout=PIPE
    )
    output, _ = await process.communicate()
    assert output.decode().strip() == "[]"
