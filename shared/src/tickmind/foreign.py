"""Messages of foreign publishers, whose properties need not be what Python makes of them.

AMQP and RabbitMQ take a routing key or content type that is not UTF-8, a timestamp of nanoseconds,
and headers of any kind. pamqp, which decodes frames for aio-pika, raises for them; the connection
ends, the message is delivered again, and so on for ever, with all others behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from pamqp import decode

__all__ = ["read_foreign_properties"]

_Decoder = Callable[[bytes], tuple[int, Any]]

#: What decoding a value raises: text that is not UTF-8, dates beyond the year 9999, tables without
#: end or of unknown types, decimals out of range.
_UNREADABLE = (ValueError, ArithmeticError, OSError, LookupError, RecursionError)


def read_foreign_properties() -> None:
    """From now on this process reads what it can of a property, and the rest as absent."""
    for methods, name in ((decode.METHODS, "timestamp"), (decode.TABLE_MAPPING, b"T")):
        methods[name] = _or_absent(decode.timestamp, lambda _: 8)  # type: ignore[index]
    decode.METHODS["table"] = _or_absent(decode.field_table, _length)
    decode.METHODS["shortstr"] = _short_string


class _Foreign(str):
    """A short string that is not UTF-8: with marks for what cannot be read, and, said again to the
    broker (a correlation id of 16 random bytes), as it came."""

    __slots__ = ("_raw",)
    _raw: bytes

    def __new__(cls, raw: bytes) -> Self:
        text = super().__new__(cls, raw.decode(errors="replace"))
        text._raw = raw
        return text

    def __str__(self) -> str:  # aio-pika makes strings of strings
        return self

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return self._raw


def _short_string(value: bytes) -> tuple[int, str]:
    raw = value[1 : value[0] + 1]
    try:
        return value[0] + 1, raw.decode()
    except UnicodeDecodeError:
        return value[0] + 1, _Foreign(raw)


def _length(table: bytes) -> int:
    return 4 + int.from_bytes(table[:4], "big")


def _or_absent(decoder: _Decoder, size: Callable[[bytes], int]) -> _Decoder:
    """`decoder`, but for what it cannot read: None, in as many bytes as that takes."""

    def decode_or_skip(value: bytes) -> tuple[int, Any]:
        try:
            return decoder(value)
        except _UNREADABLE:
            return size(value), None

    return decode_or_skip
