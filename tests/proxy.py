"""A door before a real server, which a test can shut, cut, hold, slow down and desert: the
network's faults."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tickmind.local.ports import free_port, release_port

__all__ = ["Door", "Weather", "door"]

#: PostgreSQL's request for TLS: length 8, code 80877103 (documentation, "Message Formats").
_SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
#: The most that travels in one piece, bytes.
_PIECE = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How bytes travel, each way by itself.

    A piece takes `latency_s` and up to `jitter_s` more, drawn from `source`, and its length over
    `bytes_per_s`. Pieces go one after the other, as through a window of 64 KiB.
    """

    latency_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float = float("inf")
    source: random.Random = field(default_factory=lambda: random.Random(1))

    def takes_s(self, length: int) -> float:
        """How long a piece of so many bytes is under way."""
        jitter_s = self.source.uniform(0.0, self.jitter_s)
        return self.latency_s + jitter_s + length / self.bytes_per_s


#: Kept of what a connection said.
_HEARD_BYTES = 1024 * 1024


class Door:
    """Passes bytes between whoever connects to `port` and the server behind.

    `weather`: how they travel, to be changed at any time; None: at once. `server` may be changed,
    too: whoever comes from then on is led to another.

    `tls`: what is said before the door is TLS, of PostgreSQL's kind where `postgres` says so.
    """

    def __init__(
        self,
        server: tuple[str, int] | Path,
        *,
        host: str,
        tls: ssl.SSLContext | None,
        postgres: bool,
    ) -> None:
        self.server = server
        self.weather: Weather | None = None
        self._host = host
        self._tls = tls
        self._postgres = postgres
        self._listener: asyncio.Server | None = None
        self._flow = _flowing()
        self._writers: set[asyncio.StreamWriter] = set()
        self._visitors: set[asyncio.Task[None]] = set()
        self._visits: set[_Visit] = set()
        self.port = 0
        #: Connections that ever came through.
        self.visits = 0
        #: What each of them said, where TLS does not end at the door as it went over the wire;
        #: of `tls` what came out of it.
        self.heard: list[bytearray] = []

    async def unlock(self) -> None:
        """Take connections, on the same port each time: one that no client's own connection takes
        while the door is shut, were it one that knocks there and so meets itself."""
        self.port = self.port or free_port()
        self._listener = await asyncio.start_server(
            self._visit,
            self._host,
            self.port,
            ssl=None if self._postgres else self._tls,
        )

    async def shut(self) -> None:
        """Refuse new connections, and cut those there are."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self.cut()

    async def cut(self) -> None:
        """Reset every connection there is; new ones are taken."""
        for writer in self._writers:
            writer.transport.abort()
        for visitor in self._visitors:
            visitor.cancel()
        if self._visitors:
            await asyncio.wait(self._visitors)

    def hold(self, *, newcomers: bool = True) -> None:
        """Pass nothing on, in silence, as a network that is gone; to `newcomers` either?"""
        self._flow.clear()
        if not newcomers:
            self._flow = _flowing()  # theirs

    def release(self) -> None:
        self._flow.set()

    def say(self, words: bytes) -> None:
        """To everyone who came through, as if the server had said it."""
        for visit in self._visits:
            visit.outer.write(words)

    def desert(self) -> None:
        """Reset every connection towards the server, and say nothing to who came through: what
        they send from now on vanishes. Newcomers are served."""
        for visit in self._visits:
            visit.deserted = True
            if visit.inner is not None:
                visit.inner.transport.abort()

    def cut_deserted(self) -> None:
        """Reset the deserted connections that nobody has left yet."""
        for visit in self._visits:
            if visit.deserted:
                visit.outer.transport.abort()

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._visitors.add(task)
        task.add_done_callback(self._visitors.discard)
        self.visits += 1
        self.heard.append(bytearray())
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._serve(reader, writer, self.heard[-1])

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, heard: bytearray
    ) -> None:
        self._writers.add(writer)
        flow = self._flow
        visit = _Visit(outer=writer)
        self._visits.add(visit)
        try:
            if self._postgres and self._tls:
                request = await reader.readexactly(8)
                heard += request
                if request != _SSL_REQUEST:
                    return  # plaintext, where TLS was to be
                writer.write(b"S")
                await writer.start_tls(self._tls)
            if isinstance(self.server, Path):
                answers, inner = await asyncio.open_unix_connection(self.server)
            else:
                answers, inner = await asyncio.open_connection(*self.server)
            visit.inner = inner
            self._writers.add(inner)
            ways = [
                asyncio.create_task(self._pass(reader, inner, flow, heard)),
                asyncio.create_task(self._pass(answers, writer, flow, bytearray())),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
            while visit.deserted and await reader.read(_PIECE):
                pass
        finally:
            self._visits.discard(visit)
            for end in (writer, visit.inner):
                if end is not None:
                    self._writers.discard(end)
                    end.close()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        flow: asyncio.Event,
        heard: bytearray,
    ) -> None:
        while data := await reader.read(_PIECE):
            if len(heard) < _HEARD_BYTES:  # a door that is left open for long keeps no more
                heard += data
            if self.weather is not None:
                await asyncio.sleep(self.weather.takes_s(len(data)))
            await flow.wait()
            writer.write(data)
            await writer.drain()


@dataclass(slots=True, eq=False)
class _Visit:
    """One connection through the door. `deserted`: nobody is behind it any more."""

    outer: asyncio.StreamWriter
    inner: asyncio.StreamWriter | None = None
    deserted: bool = False


def _flowing() -> asyncio.Event:
    flow = asyncio.Event()
    flow.set()
    return flow


@asynccontextmanager
async def door(
    server: tuple[str, int] | Path,
    *,
    host: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
    postgres: bool = False,
) -> AsyncIterator[Door]:
    """An open door to a server at (host, port) or a Unix socket, shut on leaving."""
    opened = Door(server, host=host, tls=tls, postgres=postgres)
    await opened.unlock()
    try:
        yield opened
    finally:
        await opened.shut()
        release_port(opened.port)
