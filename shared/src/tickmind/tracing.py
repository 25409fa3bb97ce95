"""Spans by OpenTelemetry's semantic conventions, one for each batch or call, never for an event.

Without an SDK a span is nothing; the trace a message came with is passed on all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode

from tickmind.errors import TickmindError

__all__ = ["SpanKind", "exemplar", "failed", "finished", "messaging", "span", "tracing"]

_tracer = trace.get_tracer("tickmind")

#: Traces a span is linked to: as many as the SDK keeps (OTEL_SPAN_LINK_COUNT_LIMIT).
_MOST_LINKS = 128


def tracing() -> bool:
    """Whether spans go anywhere: an SDK is set up in this process."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@contextmanager
def span(
    name: str,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    joins: Sequence[Context] = (),
    attributes: Mapping[str, str | int | float] | None = None,
    begun_ns: int | None = None,
) -> Iterator[Span]:
    """The current span for the length of the block; what is raised within marks it as failed.

    `joins`: contexts of those it works for. It belongs to the trace of the first that is sampled,
    and is linked to the others. None: to the current trace. `begun_ns`: since the epoch, where it
    began before.
    """
    parent = _parent(joins)
    if not tracing():
        if parent is None:
            yield trace.INVALID_SPAN
            return
        token = context.attach(parent)
        try:
            yield trace.get_current_span()
        finally:
            context.detach(token)
        return
    with _tracer.start_as_current_span(
        name,
        context=parent,
        kind=kind,
        attributes=attributes,
        links=_links(joins, parent),
        start_time=begun_ns,
        # Messages of exceptions may hold what a database or provider quotes of a text.
        record_exception=False,
        set_status_on_exception=False,
    ) as current:
        try:
            yield current
        except Exception as exc:
            failed(current, exc)
            raise


def finished(name: str, *, begun_ns: int) -> None:
    """A span of the current trace that ends now."""
    if trace.get_current_span().is_recording():
        _tracer.start_span(name, start_time=begun_ns).end()


def failed(current: Span, exc: BaseException) -> None:
    """Mark a span as failed, by the kind of failure alone."""
    kind = exc.reason if isinstance(exc, TickmindError) else type(exc).__name__
    current.set_attribute("error.type", kind)
    current.set_status(StatusCode.ERROR)


def messaging(operation: str, destination: str, **more: str | int) -> dict[str, str | int]:
    """Attributes of a span that publishes or processes (`operation`: send, process)."""
    name = "publish" if operation == "send" else operation
    return {
        "messaging.system": "rabbitmq",
        "messaging.operation.type": operation,
        "messaging.operation.name": name,
        "messaging.destination.name": destination,
        **{f"messaging.{key}": value for key, value in more.items()},
    }


def exemplar() -> dict[str, str] | None:
    """What a histogram keeps beside a value: the trace it belongs to, where that is recorded."""
    current = trace.get_current_span().get_span_context()
    if not current.trace_flags.sampled or not tracing():
        return None
    return {
        "trace_id": trace.format_trace_id(current.trace_id),
        "span_id": trace.format_span_id(current.span_id),
    }


def _context_of(carried: Context) -> SpanContext:
    return trace.get_current_span(carried).get_span_context()


def _parent(joins: Sequence[Context]) -> Context | None:
    """Whose trace it is: what nobody samples can be no one's parent where another is sampled."""
    for carried in joins:
        if _context_of(carried).trace_flags.sampled:
            return carried
    return joins[0] if joins else None


def _links(joins: Iterable[Context], parent: Context | None) -> list[Link]:
    """To all but the parent, each once."""
    found: dict[tuple[int, int], SpanContext] = {}
    for carried in joins:
        of = _context_of(carried)
        if carried is not parent and of.is_valid:
            found[of.trace_id, of.span_id] = of
    if parent is not None:
        of = _context_of(parent)
        found.pop((of.trace_id, of.span_id), None)
    return [Link(of) for of in list(found.values())[:_MOST_LINKS]]
