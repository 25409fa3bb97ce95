"""A span for each SQL statement of a trace that is recorded, by the conventions for databases.

Statements are named, not quoted, and what stands for their placeholders is never told.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind
from sqlalchemy import Engine, event
from sqlalchemy.engine.interfaces import ExceptionContext

from tickmind.tracing import failed

__all__ = ["summary", "trace_statements"]

_tracer = trace.get_tracer("tickmind")

#: Where an execution keeps its span.
_SPAN = "_tickmind_span"
_CHANGES = re.compile(r"\b(INSERT) INTO (\w+)|\b(UPDATE) (?!SKIP\b)(\w+)|\b(DELETE) FROM (\w+)")
_READS = re.compile(r"\b(SELECT)\b.*?\bFROM (\w+)", re.DOTALL)
#: Statements of one process: some dozens, each written once.
_MOST_STATEMENTS = 512


@lru_cache(maxsize=_MOST_STATEMENTS)
def summary(statement: str) -> str:
    """A statement in two words: what it changes first, else what it reads first."""
    found = _CHANGES.search(statement) or _READS.search(statement)
    if found is None:
        return statement.split(None, 1)[0].upper() if statement.strip() else "STATEMENT"
    return " ".join(filter(None, found.groups()))


def trace_statements(engine: Engine) -> None:
    """Give each statement a span from now on, where it is part of a trace that is recorded."""
    url = engine.url
    common: dict[str, str | int] = {"db.system.name": "postgresql"}
    if url.database:
        common["db.namespace"] = url.database
    if url.host:
        common |= {"server.address": url.host, "server.port": url.port or 5432}

    def begin(
        _connection: Any,
        _cursor: Any,
        statement: str,
        _parameters: Any,
        execution: Any,
        _many: bool,
    ) -> None:
        if not trace.get_current_span().is_recording():
            return
        named = summary(statement)
        attributes = {
            **common,
            "db.query.summary": named,
            "db.operation.name": named.split(" ", 1)[0],
        }
        begun = _tracer.start_span(named, kind=SpanKind.CLIENT, attributes=attributes)
        setattr(execution, _SPAN, begun)

    def end(
        _connection: Any,
        _cursor: Any,
        _statement: str,
        _parameters: Any,
        execution: Any,
        _many: bool,
    ) -> None:
        _end(execution)

    def broken(told: ExceptionContext) -> None:
        _end(told.execution_context, told.original_exception)

    event.listen(engine, "before_cursor_execute", begin)
    event.listen(engine, "after_cursor_execute", end)
    event.listen(engine, "handle_error", broken)


def _end(execution: Any, exc: BaseException | None = None) -> None:
    begun: Span | None = getattr(execution, _SPAN, None)
    if begun is None:
        return
    setattr(execution, _SPAN, None)
    code = getattr(exc, "sqlstate", None)
    if exc is not None:
        failed(begun, exc)
    if isinstance(code, str):
        begun.set_attribute("db.response.status_code", code)
    begun.end()
