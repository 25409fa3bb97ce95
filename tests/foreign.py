"""Messages whose properties are bytes of anyone's making, as far as RabbitMQ lets them pass."""

from __future__ import annotations

import random
import struct
from typing import Any

import aio_pika
from pamqp.commands import Basic

__all__ = ["ForeignMessage", "Key", "any_properties"]

#: Tags of values in a table of headers, with their widths; RabbitMQ 3.10 knows all of them.
_PLAIN = {
    b"t": 1,
    b"b": 1,
    b"B": 1,
    b"s": 2,
    b"u": 2,
    b"I": 4,
    b"i": 4,
    b"l": 8,
    b"f": 4,
    b"d": 8,
    b"D": 5,
    b"T": 8,
    b"V": 0,
}


class Key(str):
    """A routing key that goes as these bytes."""

    _raw: bytes

    def __new__(cls, raw: bytes) -> Key:
        key = super().__new__(cls, raw.decode(errors="replace"))
        key._raw = raw
        return key

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return self._raw


class _Marshalled:
    """What aiormq asks of properties."""

    message_id = "given"

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def marshal(self) -> bytes:
        return self._raw


class ForeignMessage(aio_pika.Message):
    """`raw`: the properties as they go over the wire."""

    def __init__(self, body: bytes, raw: bytes) -> None:
        super().__init__(body)
        self._marshalled = _Marshalled(raw)

    @property
    def properties(self) -> Any:
        return self._marshalled


def any_properties(rng: random.Random, **given: bytes) -> bytes:
    """Flags and properties. `given`: short strings that are not left to chance; what expires or
    names a user is left out, since RabbitMQ checks it."""
    flags, content = 0, b""
    for name in Basic.Properties.attributes():
        kind = Basic.Properties.amqp_type(name)
        if name in given:
            value = _short(given[name])
        elif name in ("expiration", "user_id", "cluster_id", "reply_to") or rng.random() < 0.4:
            continue
        elif kind == "shortstr":
            value = _short(_bytes(rng, 255))
        elif kind == "table":
            value = _table(rng, 0)
        elif kind == "timestamp":
            value = rng.choice((rng.randbytes(8), b"\xff" * 8, struct.pack(">Q", 1_785_661_200)))
        elif name == "delivery_mode":
            value = b"\x02"
        else:
            value = rng.randbytes(1)
        flags |= Basic.Properties.flags[name]
        content += value
    return struct.pack(">H", flags) + content


def _short(raw: bytes) -> bytes:
    return bytes([len(raw)]) + raw


def _long(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


def _bytes(rng: random.Random, most: int) -> bytes:
    length = rng.choice((0, 1, rng.randint(0, 30), rng.randint(0, most)))
    return rng.choice((rng.randbytes(length), b"\xff" * length, b"a" * length))


def _table(rng: random.Random, level: int) -> bytes:
    names = (b"traceparent", b"tracestate", b"baggage", b"sent_at", b"x-death", b"\xff", b"", b"n")
    fields = []
    for _ in range(rng.randint(0, 5)):
        name = rng.choice((rng.choice(names), _bytes(rng, 60)))
        fields.append(_short(name) + _value(rng, level))
    return _long(b"".join(fields))


def _value(rng: random.Random, level: int) -> bytes:
    kind = rng.choice((*_PLAIN, b"S", b"S", b"S", b"x", b"A", b"F"))
    if kind in (b"f", b"d"):  # RabbitMQ closes the connection for what is no number
        raw = struct.pack(f">{kind.decode()}", rng.uniform(-1e30, 1e30))
    elif kind in _PLAIN:
        raw = rng.choice((rng.randbytes(_PLAIN[kind]), b"\xff" * _PLAIN[kind]))
    elif kind in (b"S", b"x"):
        trace = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        raw = _long(rng.choice((_bytes(rng, 2000), trace, trace[: rng.randint(0, 60)])))
    elif level > 3:
        raw = _long(b"")
    elif kind == b"A":
        raw = _long(b"".join(_value(rng, level + 1) for _ in range(rng.randint(0, 3))))
    else:
        raw = _table(rng, level + 1)
    return kind + raw
