"""What comes beside a message: properties, headers, routing keys, addresses, clocks."""

from __future__ import annotations

import math
import struct
from typing import Any
from urllib.parse import quote

from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry import trace
from pamqp import commands, decode

from tickmind.foreign import read_foreign_properties
from tickmind.telemetry import outgoing_headers, read_headers
from tickmind.topology import MAX_KEY_BYTES, TICK_ENDED_PREFIX, tick_ended_key, valid_reply_to
from tickmind.tracing import span
from tickmind_recorder.handler import _world_of
from tickmind_retriever.ages import Ages
from tickmind_retriever.reply_to import answerable

_NAMES = st.binary(max_size=20)


def _entry(name: bytes, kind: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + kind + value


def _sized(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


_WIDTHS = {b"t": 1, b"b": 1, b"B": 1, b"s": 2, b"u": 2, b"I": 4, b"i": 4, b"l": 8, b"L": 8}
_WIDTHS |= {b"f": 4, b"d": 8, b"D": 5, b"T": 8, b"V": 0}


def _tagged(kind: bytes, width: int) -> st.SearchStrategy[tuple[bytes, bytes]]:
    return st.tuples(st.just(kind), st.binary(min_size=width, max_size=width))


#: Values of a table of headers as AMQP and RabbitMQ know them, with their tags.
_PLAIN = st.one_of(
    *(_tagged(kind, width) for kind, width in _WIDTHS.items()),
    st.tuples(st.sampled_from([b"S", b"x"]), st.binary(max_size=40).map(_sized)),
)
_ITEMS = st.recursive(
    _PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(
            lambda items: (b"A", _sized(b"".join(kind + raw for kind, raw in items)))
        ),
        st.lists(st.tuples(_NAMES, inner), max_size=4).map(
            lambda fields: (
                b"F",
                _sized(b"".join(_entry(name, kind, raw) for name, (kind, raw) in fields)),
            )
        ),
    ),
    max_leaves=8,
)
_TABLES = st.lists(st.tuples(_NAMES, _ITEMS), max_size=5).map(
    lambda fields: _sized(b"".join(_entry(name, kind, raw) for name, (kind, raw) in fields))
)
_FLAGS = commands.Basic.Properties.flags


def _read(flags: int, content: bytes) -> commands.Basic.Properties:
    read_foreign_properties()
    properties = commands.Basic.Properties()
    properties.unmarshal(flags, content)
    return properties


@given(_TABLES, st.binary(max_size=255), st.binary(min_size=8, max_size=8))
def test_any_properties_are_read_as_far_as_they_can_be(
    table: bytes, text: bytes, timestamp: bytes
) -> None:
    """A property that cannot be read is absent, and those after it are read all the same."""
    short = bytes([len(text)]) + text
    read = _read(
        sum(_FLAGS[name] for name in ("content_type", "headers", "correlation_id", "timestamp"))
        + _FLAGS["app_id"],
        short + table + short + timestamp + b"\x03end",
    )

    assert read.app_id == "end"
    assert read.headers is None or isinstance(read.headers, dict)
    assert read.correlation_id == text.decode(errors="replace")
    read_headers(read.headers or {})


@given(st.binary(max_size=255))
@example(b"\xff" * 255)
@example(bytes(range(16)))
def test_a_correlation_id_goes_back_as_it_came(raw: bytes) -> None:
    """Text or not: sixteen random bytes are one, too."""
    read = _read(_FLAGS["correlation_id"], bytes([len(raw)]) + raw)

    reply = commands.Basic.Properties(correlation_id=str(read.correlation_id))

    assert reply.marshal()[3:] == raw
    assert "\ufffd" in str(read.correlation_id) or read.correlation_id == raw.decode()


@given(_TABLES.map(lambda table: table[4:]))
def test_a_table_cut_anywhere_is_absent(content: bytes) -> None:
    read_foreign_properties()
    for end in range(len(content)):
        _, value = decode.METHODS["table"](_sized(content[:end]))
        assert value is None or isinstance(value, dict)


_HEADERS = st.dictionaries(
    st.sampled_from(["traceparent", "tracestate", "baggage", "sent_at", "x"]) | st.text(max_size=9),
    st.text(max_size=60)
    | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}.?", fullmatch=True)
    | st.integers()
    | st.binary(max_size=20)
    | st.none()
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@given(_HEADERS)
@example({"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"})
@example({"traceparent": "ff-" + "a" * 32 + "-" + "b" * 16 + "-01"})
@example({"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "tracestate": "a=" * 5000})
@example({"baggage": "a=" + "%ff" * 5000 + ",=,;,a=b;c"})
def test_any_headers_carry_a_trace_or_none(headers: dict[str, Any]) -> None:
    """And what is told to others on its behalf is a header that can be sent."""
    carried = read_headers(headers)

    with span("test", joins=[carried]):
        given_on = outgoing_headers()
    assert given_on["sent_at"] > 0
    for value in given_on.values():
        assert len(str(value).encode()) < 20_000
    of = trace.get_current_span(carried).get_span_context()
    assert of.is_valid == ("traceparent" in given_on)


@given(st.text(max_size=300) | st.binary(max_size=300).map(quote) | st.just(""))
@example("%00")
@example("%ED%A0%80%")
@example("%FF" * 60)
def test_any_routing_key_names_a_world_that_can_be_stored_or_none(rest: str) -> None:
    world = _world_of(TICK_ENDED_PREFIX + rest)

    if world is not None and "\ud800" <= max(rest, default="") <= "\udfff":
        return  # no short string of AMQP holds one
    if world is not None:
        assert 0 < len(world) <= 200
        assert "\x00" not in world
        world.encode()


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200))
def test_a_world_comes_back_from_its_routing_key(world: str) -> None:
    key = tick_ended_key(world)

    assert len(key.encode()) <= MAX_KEY_BYTES
    if len(key) < MAX_KEY_BYTES:
        assert _world_of(key) == (world.replace("\x00", "") or None)


@given(st.text(max_size=300) | st.from_regex(r"amq\.rabbitmq\.reply-to[.A-Za-z0-9+/=]{0,80}"))
def test_any_reply_to_is_answerable_or_not(reply_to: str) -> None:
    if answerable(reply_to):
        assert valid_reply_to(reply_to)
        assert 0 < len(reply_to.encode(errors="replace")) <= MAX_KEY_BYTES


_CLOCKS = st.integers() | st.floats() | st.text() | st.none() | st.booleans() | st.binary()


@given(st.lists(st.tuples(st.sampled_from("ab"), _CLOCKS, st.floats(0, 1e10)), max_size=20))
def test_any_clock_gives_an_age(asked: list[tuple[str, Any, float]]) -> None:
    ages = Ages()
    for sender, sent_at, now in asked:
        age_s = ages.age_s(sender, sent_at, now)
        assert math.isfinite(age_s)
        assert age_s >= 0
