"""Logs, traces and the clock in message headers. Off costs nothing; nothing here names a text."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
import types
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from opentelemetry import context, propagate

from tickmind.errors import TickmindError

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

__all__ = [
    "SENT_AT",
    "configure_logging",
    "configure_traces",
    "log",
    "outgoing_headers",
    "read_headers",
    "resource_of",
]

_logger = logging.getLogger("tickmind")

#: Header with the publisher's clock: milliseconds since the epoch.
SENT_AT = "sent_at"


class _Told:
    """An event as handlers other than ours print it, those of an engine say: with its fields."""

    __slots__ = ("_fields", "event")

    def __init__(self, event: str, fields: Mapping[str, object]) -> None:
        self.event = event
        self._fields = fields

    def __str__(self) -> str:
        return self.event + _shown(self._fields)


def _shown(fields: Mapping[str, object]) -> str:
    return "".join(f" {key}={value}" for key, value in fields.items())


def log(logger: logging.Logger, level: int, event: str, **fields: object) -> None:
    """One event with its fields. `event` is a fixed name; ids, counts and reasons as fields."""
    logger.log(level, _Told(event, fields), extra={"fields": fields})


def _traceback(exc: BaseException | None) -> str:
    """Where it happened and what it was, its causes first. Of exceptions that are not ours the
    message is left out: what a database, a parser or a provider says quotes texts and vectors."""
    if exc is None:
        return ""
    told = type(exc).__qualname__
    if isinstance(exc, TickmindError):
        told += f": {exc}"
    elif isinstance(code := getattr(exc, "sqlstate", None), str):
        told += f": SQLSTATE {code}"
    elif isinstance(exc, OSError) and exc.errno is not None:
        told += f": {os.strerror(exc.errno)}"
    lines = [*traceback.format_tb(exc.__traceback__), told]
    if isinstance(exc, BaseExceptionGroup):
        lines += [f"- {_traceback(one)}" for one in exc.exceptions]
    cause = exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__)
    before = [f"{_traceback(cause)}\n"] if cause is not None else []
    return "".join([*before, *lines])


def _ended_by(
    _: type[BaseException], exc: BaseException, __: types.TracebackType | None = None
) -> None:
    """What nothing caught, told as any log is, rather than in the interpreter's way."""
    _logger.critical("crashed", exc_info=exc)


class _Formatter(logging.Formatter):
    def __init__(self, style: Literal["json", "text"], service: str) -> None:
        super().__init__()
        self._json = style == "json"
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, "fields", {})
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        stamp += f".{int(record.msecs):03d}Z"
        trouble = _traceback(record.exc_info[1]) if record.exc_info else None
        event = record.msg.event if isinstance(record.msg, _Told) else record.getMessage()
        if self._json:
            line = {
                "time": stamp,
                "level": record.levelname.lower(),
                "service": self._service,
                "logger": record.name,
                "event": event,
                **fields,
            }
            if trouble:
                line["exception"] = trouble
            return json.dumps(line, ensure_ascii=False, default=str)
        text = f"{stamp} {record.levelname.lower():7} {event}{_shown(fields)}"
        return f"{text}\n{trouble}" if trouble else text


def configure_logging(service: str, *, level: str, style: Literal["json", "text"]) -> None:
    """Log to standard error, one event a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(style, service))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    sys.excepthook = _ended_by
    root.setLevel(level.upper())
    # These report each reconnect and each request in their own words; we say what follows.
    for name in ("aio_pika", "aiormq", "httpx2", "httpcore2", "openai", "uvicorn.access"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    # Of callbacks at the end of a connection, too: what they failed of is that end.
    for name in ("aiormq.connection", "aio_pika.tools"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def configure_traces(service: str) -> None:
    """Export traces over OTLP/HTTP where OTEL_EXPORTER_OTLP_ENDPOINT says to; else stay off.

    Sampling, batching and time-outs are the SDK's own settings (OTEL_TRACES_SAMPLER, OTEL_BSP_…).
    """
    if not (
        os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    ):
        return
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if disabled or os.environ.get("OTEL_TRACES_EXPORTER", "otlp") == "none":
        return
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=resource_of(service))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def resource_of(service: str) -> Resource:
    """Who tells: the environment's name (OTEL_SERVICE_NAME, …) or ours, and our version."""
    from opentelemetry.sdk.resources import Resource

    told = Resource.create({"service.version": version("tickmind")})
    if not str(told.attributes["service.name"]).startswith("unknown_service"):
        return told
    return told.merge(Resource({"service.name": service}))


def outgoing_headers() -> dict[str, Any]:
    """Headers of a message sent now: the current trace context, and our clock."""
    headers: dict[str, Any] = {SENT_AT: int(time.time() * 1000)}
    propagate.inject(headers)
    return headers


def read_headers(headers: Mapping[str, Any]) -> context.Context:
    """The trace context a message carries."""
    return propagate.extract({k: v for k, v in headers.items() if isinstance(v, str)})
