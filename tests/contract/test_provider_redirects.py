"""Where an embedding API sends us elsewhere, nothing goes there: no text and no key."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.remembering import embedder_settings
from tickmind.embedding_api import OpenAIProvider
from tickmind.errors import ProviderRefused
from tickmind.settings import DatabaseSettings


class _Server:
    """Answers each request by `say`, and keeps it."""

    def __init__(self, say: Callable[[asyncio.StreamWriter, _Server], object]) -> None:
        self.say = say
        self.requests: list[bytes] = []
        self.port = 0

    async def visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (
                        int(line.split(b":")[1])
                        for line in head.split(b"\r\n")
                        if line.lower().startswith(b"content-length:")
                    ),
                    0,
                )
                self.requests.append(head + await reader.readexactly(length))
                await self.say(writer, self)  # type: ignore[misc]
        writer.close()


@asynccontextmanager
async def _serving(
    say: Callable[[asyncio.StreamWriter, _Server], object],
) -> AsyncIterator[_Server]:
    server = _Server(say)
    listening = await asyncio.start_server(server.visit, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()


def _provider(server: _Server) -> OpenAIProvider:
    settings = embedder_settings(DatabaseSettings(), f"http://127.0.0.1:{server.port}/v1")
    return OpenAIProvider(settings)


async def _silent(_: asyncio.StreamWriter, __: _Server) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_texts_and_key_follow_no_redirect(status: int) -> None:
    """To another host above all, which nobody named."""
    async with _serving(_silent) as elsewhere:

        async def say(writer: asyncio.StreamWriter, _: _Server) -> None:
            writer.write(
                f"HTTP/1.1 {status} Elsewhere\r\ncontent-length: 0\r\n"
                f"location: http://127.0.0.1:{elsewhere.port}/v1/embeddings\r\n\r\n".encode()
            )
            await writer.drain()

        async with _serving(say) as server:
            provider = _provider(server)
            with pytest.raises(ProviderRefused, match="sends us elsewhere"):
                await provider.call(["a text"])
            assert await provider.fault() is None  # it answers
            await provider.close()
        assert len(server.requests) == 2
        assert elsewhere.requests == []
