"""A pooler in transaction mode: what PgBouncer may do to a client, done to it each time."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

__all__ = ["pooler"]

# PostgreSQL documentation, "Message Formats".
_SSL_REQUEST, _CANCEL_REQUEST = 80877103, 80877102
_IDLE = b"I"
#: Servers behind each client.
_SERVERS = 2


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The next message: its type, and all of it."""
    kind = await reader.readexactly(1)
    length = await reader.readexactly(4)
    rest = await reader.readexactly(struct.unpack("!I", length)[0] - 4)
    return kind, kind + length + rest


async def _until_ready(server: asyncio.StreamReader, client: asyncio.StreamWriter | None) -> bytes:
    """Pass on what a server says until it is ready; whether it is in a transaction."""
    while True:
        kind, message = await _message(server)
        if client is not None:
            client.write(message)
        if kind == b"Z":
            return message[-1:]


async def _serve(client: asyncio.StreamReader, writer: asyncio.StreamWriter, socket: Path) -> None:
    while True:
        length = await client.readexactly(4)
        rest = await client.readexactly(struct.unpack("!I", length)[0] - 4)
        code = struct.unpack("!I", rest[:4])[0]
        if code != _SSL_REQUEST:
            break
        writer.write(b"N")
    servers = []
    answer: asyncio.Task[bytes] | None = None
    try:
        for place in range(1 if code == _CANCEL_REQUEST else _SERVERS):
            servers.append(await asyncio.open_unix_connection(socket))
            reader, server = servers[-1]
            server.write(length + rest)
            if code == _CANCEL_REQUEST:
                await reader.read()
                return
            await _until_ready(reader, None if place else writer)
        place = 0
        while True:
            kind, message = await _message(client)
            reader, server = servers[place]
            if answer is None:  # which may begin before all is asked
                answer = asyncio.create_task(_until_ready(reader, writer))
            server.write(message)
            if kind in (b"S", b"Q"):
                if await answer == _IDLE:
                    place = (place + 1) % _SERVERS
                answer = None
    finally:
        if answer is not None:
            answer.cancel()
        for _, server in servers:
            server.close()


@asynccontextmanager
async def pooler(socket: Path) -> AsyncIterator[int]:
    """Its port on the loopback interface. Before a PostgreSQL that asks this user for no password.

    Each transaction is another server's than the one before, and a statement by itself is a
    transaction; a cancellation reaches the first server alone. COPY it does not know.
    """
    visits: set[asyncio.Task[None]] = set()

    async def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        visits.add(task)
        task.add_done_callback(visits.discard)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await _serve(reader, writer, socket)
        writer.close()

    listener = await asyncio.start_server(visit, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        for task in visits:
            task.cancel()
        if visits:
            await asyncio.wait(visits)
