"""A door before a real server, which a test can shut, cut and hold: the network's faults."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

__all__ = ["Door", "door"]

#: PostgreSQL's request for TLS: length 8, code 80877103 (documentation, "Message Formats").
_SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"


class Door:
    """Passes bytes between whoever connects to `port` and the server behind.

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
        self._server = server
        self._host = host
        self._tls = tls
        self._postgres = postgres
        self._listener: asyncio.Server | None = None
        self._flow = _flowing()
        self._writers: set[asyncio.StreamWriter] = set()
        self._visitors: set[asyncio.Task[None]] = set()
        self.port = 0
        #: Connections that ever came through.
        self.visits = 0

    async def unlock(self) -> None:
        """Take connections, on the same port each time."""
        self._listener = await asyncio.start_server(
            self._visit,
            self._host,
            self.port,
            ssl=None if self._postgres else self._tls,
        )
        self.port = self._listener.sockets[0].getsockname()[1]

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

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._visitors.add(task)
        task.add_done_callback(self._visitors.discard)
        self.visits += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._serve(reader, writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        flow = self._flow
        inner: asyncio.StreamWriter | None = None
        try:
            if self._postgres and self._tls:
                request = await reader.readexactly(8)
                if request != _SSL_REQUEST:
                    return  # plaintext, where TLS was to be
                writer.write(b"S")
                await writer.start_tls(self._tls)
            if isinstance(self._server, Path):
                answers, inner = await asyncio.open_unix_connection(self._server)
            else:
                answers, inner = await asyncio.open_connection(*self._server)
            self._writers.add(inner)
            ways = [
                asyncio.create_task(_pass(reader, inner, flow)),
                asyncio.create_task(_pass(answers, writer, flow)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            for end in (writer, inner):
                if end is not None:
                    self._writers.discard(end)
                    end.close()


def _flowing() -> asyncio.Event:
    flow = asyncio.Event()
    flow.set()
    return flow


async def _pass(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flow: asyncio.Event
) -> None:
    while data := await reader.read(65536):
        await flow.wait()
        writer.write(data)
        await writer.drain()


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
