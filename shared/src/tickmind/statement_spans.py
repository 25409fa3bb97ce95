"""A span for each SQL statement of a trace that is recorded, by the conventions for databases.

Statements are named, not quoted, and what stands for their placeholders is never told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind
from sqlalchemy import URL, Engine, event
from sqlalchemy.engine.interfaces import ExceptionContext

from tickmind.tracing import failed

__all__ = ["statement_span", "summary", "trace_statements"]

_tracer = trace.get_tracer("tickmind")

#: Where an execution keeps its span.
_SPAN = "_tickmind_span"
#: What says most of a statement first. A name with a bracket is a function's.
_SAYING = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"\b(INSERT) INTO (\w+)",
        r"\b(DELETE) FROM (\w+)",
        r"\b(UPDATE) (?!SKIP\b)(\w+)",
        r"\b(SELECT)\b.*?\bFROM (\w+)\b(?! ?\()",
        r"\b(SELECT) (\w+)\(",
    )
)
#: Statements of one process: some dozens, each written once.
_MOST_STATEMENTS = 512


@lru_cache(maxsize=_MOST_STATEMENTS)
def summary(statement: str) -> str:
    """A statement in two words: what it adds to, deletes from or changes; else what it reads."""
    for pattern in _SAYING:
        found = pattern.search(statement)
        if found is not None:
            return " ".join(found.groups())
    return (statement.split(None, 1) or ["STATEMENT"])[0].upper()


def trace_statements(engine: Engine) -> None:
    """Give each statement a span from now on, where it is part of a trace that is recorded."""
    url = engine.url

    def begin(
        _connection: Any,
        _cursor: Any,
        statement: str,
        _parameters: Any,
        execution: Any,
        _many: bool,
    ) -> None:
        if trace.get_current_span().is_recording():
            setattr(execution, _SPAN, _begun(url, statement))

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


@contextmanager
def statement_span(url: URL, statement: str) -> Iterator[None]:
    """The same for one statement that SQLAlchemy does not execute."""
    if not trace.get_current_span().is_recording():
        yield
        return
    begun = _begun(url, statement)
    try:
        yield
    except BaseException as exc:
        _finish(begun, exc)
        raise
    _finish(begun)


def _begun(url: URL, statement: str) -> Span:
    named = summary(statement)
    attributes: dict[str, str | int] = {
        "db.system.name": "postgresql",
        "db.query.summary": named,
        "db.operation.name": named.split(" ", 1)[0],
    }
    if url.database:
        attributes["db.namespace"] = url.database
    if url.host:
        attributes |= {"server.address": url.host, "server.port": url.port or 5432}
    return _tracer.start_span(named, kind=SpanKind.CLIENT, attributes=attributes)


def _end(execution: Any, exc: BaseException | None = None) -> None:
    begun: Span | None = getattr(execution, _SPAN, None)
    if begun is None:
        return
    setattr(execution, _SPAN, None)
    _finish(begun, exc)


def _finish(begun: Span, exc: BaseException | None = None) -> None:
    code = getattr(exc, "sqlstate", None)
    if exc is not None:
        failed(begun, exc)
    if isinstance(code, str):
        begun.set_attribute("db.response.status_code", code)
    begun.end()
