"""A receiver of traces and metrics over OTLP/HTTP, in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.trace.v1 import trace_pb2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tickmind.local.ports import free_port

__all__ = ["Collector", "Received", "collecting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A span as it was exported; ids in hexadecimal. `links`: (trace id, span id)."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[tuple[str, str], ...]
    attributes: dict[str, Any]
    seconds: float


@dataclass(slots=True)
class Collector:
    """What came in so far."""

    port: int
    spans: list[Received] = field(default_factory=list)
    #: The last export of each service, by the metric's name.
    metrics: dict[str, dict[str, metrics_pb2.Metric]] = field(default_factory=dict)

    @property
    def endpoint(self) -> str:
        """For OTEL_EXPORTER_OTLP_ENDPOINT."""
        return f"http://127.0.0.1:{self.port}"

    def of(self, trace_id: str) -> list[Received]:
        return [span for span in self.spans if span.trace_id == trace_id]

    def named(self, name: str) -> list[Received]:
        return [span for span in self.spans if span.name == name]

    def parent(self, of: Received) -> Received | None:
        return next((span for span in self.spans if span.span_id == of.parent_id), None)

    def above(self, of: Received) -> list[str]:
        """Names of the spans a span is part of, the nearest first."""
        names = []
        found = self.parent(of)
        while found is not None:
            names.append(found.name)
            found = self.parent(found)
        return names


@contextlib.asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """Receive traces until the block ends."""
    collector = Collector(free_port())

    async def traces(request: Request) -> Response:
        assert request.headers["content-type"] == "application/x-protobuf"
        exported = ExportTraceServiceRequest.FromString(await request.body())
        collector.spans += _received(exported)
        answer = ExportTraceServiceResponse().SerializeToString()
        return Response(answer, media_type="application/x-protobuf")

    async def metrics(request: Request) -> Response:
        exported = ExportMetricsServiceRequest.FromString(await request.body())
        for resource in exported.resource_metrics:
            service = _attributes(resource.resource.attributes)["service.name"]
            collector.metrics[service] = {
                metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics
            }
        answer = ExportMetricsServiceResponse().SerializeToString()
        return Response(answer, media_type="application/x-protobuf")

    routes = [
        Route("/v1/traces", traces, methods=["POST"]),
        Route("/v1/metrics", metrics, methods=["POST"]),
    ]
    app = Starlette(routes=routes)
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=collector.port,
        lifespan="off",
        log_config=None,
        access_log=False,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve())
    ready = asyncio.create_task(server.ready.wait())
    try:
        await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        yield collector
    finally:
        ready.cancel()
        server.should_exit = True
        await serving


class _Server(uvicorn.Server):
    """Without signal handlers; says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.ready.set()


def _received(exported: ExportTraceServiceRequest) -> Iterator[Received]:
    for resource in exported.resource_spans:
        service = _attributes(resource.resource.attributes)["service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Received(
                    service=service,
                    name=span.name,
                    kind=trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
                    attributes=_attributes(span.attributes),
                    seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind else None
