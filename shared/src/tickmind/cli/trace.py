"""Traces: JSON lines in the contract's form, read one by one and checked before they are sent."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

from pydantic import ValidationError

from tickmind.decoding import cleaned, decode_tick, explain
from tickmind.errors import ConfigurationError, InvalidMessage
from tickmind.messages import Decision, TickEnvelope

__all__ = ["MAX_LINE_BYTES", "Line", "check", "numbered", "opened", "read", "seekable"]

_CHUNK_BYTES = 256 * 1024
#: Longest line of a trace (16 MiB): a tick of 100,000 decisions. Longer ones are no trace, or
#: one without line breaks.
MAX_LINE_BYTES = 16 * 1024 * 1024
_NO_OBJECT = "not a JSON object"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a trace.

    `message`: what to send, None where `fault` says why not. `refused`: decisions that the
    recorder will reject, and why; the rest of the line is sound.
    """

    number: int
    message: dict[str, Any] | None = None
    fault: str | None = None
    refused: tuple[str, ...] = ()


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """File descriptor of a trace, `-`: standard input. Raises ConfigurationError."""
    if str(path) == "-":
        yield 0
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as exc:
        raise ConfigurationError(f"cannot read {path}: {exc.strerror}") from exc
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise ConfigurationError(f"cannot read {path}: it is a directory")
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def seekable(descriptor: int) -> Iterator[int]:
    """The same content in a file that can be read twice."""
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        yield descriptor
        return
    with TemporaryFile() as copy:
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            copy.write(chunk)
        copy.seek(0)
        yield copy.fileno()


async def read(descriptor: int) -> AsyncIterator[bytes]:
    """Lines, without their ends, as they come; waiting for a pipe holds up nothing else.

    Raises ConfigurationError for a line of more than MAX_LINE_BYTES.
    """
    number, rest = 1, bytearray()
    while chunk := await _chunk(descriptor):
        *whole, last = chunk.split(b"\n")
        for part in whole:
            rest += part
            _bounded(number, rest)
            yield bytes(rest)
            number, rest = number + 1, bytearray()
        rest += last
        _bounded(number, rest)
    if rest:
        yield bytes(rest)


def _bounded(number: int, line: bytes | bytearray) -> None:
    if len(line) > MAX_LINE_BYTES:
        msg = (
            f"line {number} has more than {MAX_LINE_BYTES} bytes: write the tick as several lines,"
            " with some of its decisions each"
        )
        raise ConfigurationError(msg)


async def _chunk(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
    except PermissionError:  # epoll: a regular file, which never makes one wait
        return os.read(descriptor, _CHUNK_BYTES)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, _CHUNK_BYTES)


def numbered(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers from 1; blank ones are passed over.

    Raises ConfigurationError for a line of more than MAX_LINE_BYTES.
    """
    lines = iter(lambda: file.readline(MAX_LINE_BYTES + 2), b"")
    for number, line in enumerate(lines, start=1):
        _bounded(number, line.removesuffix(b"\n"))
        if line.strip():
            yield number, line


def check(number: int, line: bytes) -> Line:
    """One line against the contract."""
    odd: list[str] = []

    def constant(name: str) -> float:
        odd.append(name)
        return float(name)

    try:
        text = line.decode().removeprefix("\ufeff")
        # As the recorder reads it: a name of NUL alone is empty, and what is sent says so, too.
        value = json.loads(text, parse_constant=constant, strict=False)
        if "\\u" in text or "\x00" in text:
            value = cleaned(value)
        if not isinstance(value, dict):
            return Line(number=number, fault=_NO_OBJECT)
        envelope = TickEnvelope.model_validate(value)
        refused = tuple(_refused(envelope.decisions, suspicious=bool(odd)))
    except UnicodeDecodeError as exc:
        return Line(number=number, fault=f"not UTF-8 (byte {exc.start})")
    except ValidationError as exc:
        return Line(number=number, fault=explain(exc))
    except RecursionError:
        return Line(number=number, fault="nested too deeply to be a message")
    except json.JSONDecodeError as exc:
        return Line(number=number, fault=f"not JSON: {exc}")
    except ValueError:  # the only other one: Python's limit on the digits of an integer
        digits = sys.get_int_max_str_digits()
        return Line(number=number, fault=f"holds an integer of more than {digits} digits")
    if not all(isinstance(decision, dict) for decision in envelope.decisions):
        return Line(number=number, fault="; ".join(refused))
    return Line(number=number, message=value, refused=refused)


def _refused(decisions: Iterable[Any], *, suspicious: bool) -> Iterator[str]:
    """Why the recorder would reject decisions. `suspicious`: one of them holds NaN."""
    for place, decision in enumerate(decisions, start=1):
        if not isinstance(decision, dict):
            yield f"decision {place}: {_NO_OBJECT}"
            continue
        if not suspicious:
            try:
                Decision.model_validate(decision)
            except ValidationError:
                pass
            else:
                continue
        # Its own verdict, since it cleans texts before it looks at them.
        alone = {"world": "w", "tick": 0, "decisions": [decision]}
        try:
            rejected = decode_tick(json.dumps(alone).encode()).rejected
        except InvalidMessage as exc:
            yield f"decision {place}: {exc}"
            continue
        for one in rejected:
            yield f"decision {place}: {one.detail}"
