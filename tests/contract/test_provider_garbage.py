"""Answers that no sound API gives: never more read than could be used, never an unknown error, and
nothing goes where one of them points."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tickmind import bounded_answers
from tickmind.bounded_answers import most_bytes
from tickmind.embedding_api import OpenAIProvider
from tickmind.errors import EmbeddingUnavailable, ProviderRefused, TickmindError
from tickmind.settings import EmbeddingSettings

_SOUND = json.dumps(
    {"data": [{"index": 0, "embedding": [3.0, 4.0]}], "usage": {"total_tokens": 1}}
).encode()


def _http(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode("latin-1") + body


@asynccontextmanager
async def _server(
    answer: bytes | Callable[[], AsyncIterator[bytes]], heard: list[bytes] | None = None
) -> AsyncIterator[str]:
    """A base URL whose every request gets these bytes, after which the connection is closed.

    `heard`: is given the head of each request.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if heard is not None:
                heard.append(head)
            if isinstance(answer, bytes):
                writer.write(answer)
            else:
                async for part in answer():
                    writer.write(part)
                    await writer.drain()
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


@asynccontextmanager
async def _provider(base_url: str) -> AsyncIterator[OpenAIProvider]:
    provider = OpenAIProvider(
        EmbeddingSettings(
            embedding_base_url=base_url, embedding_max_inputs=1, embedding_timeout_s=10
        )
    )
    try:
        yield provider
    finally:
        await provider.close()


@pytest.mark.parametrize(
    "answer",
    [
        _http(_SOUND),
        _http(gzip.compress(_SOUND), "Content-Encoding: gzip"),
        _http(zlib.compress(_SOUND), "Content-Encoding: deflate"),
        _http(_SOUND, "Content-Type: text/html; charset=hex"),
        _http(_SOUND, "Content-Type: application/json; charset=no-such-thing"),
        _http(_SOUND, "Content-Type: text/event-stream"),
        _http(_SOUND, "Content-Type: \xff\xfe"),
        _http(b"\xef\xbb\xbf" + _SOUND),
        _http(_SOUND.decode().encode("utf-16"), "Content-Type: application/json; charset=utf-16"),
    ],
)
async def test_a_sound_answer_in_an_odd_wrapping_is_read(answer: bytes) -> None:
    async with _server(answer) as base_url, _provider(base_url) as provider:
        reply = await provider.call(["a"])

    assert reply.vectors.tolist() == [[3.0, 4.0]]
    assert reply.tokens == 1


_BROKEN = [
    b"",
    b"\0" * 100,
    b"HTTP/1.1 200 OK\r\n",
    b"SSH-2.0-OpenSSH_9.2\r\n",
    _http(_SOUND, length=10**6),
    _http(_SOUND[:20]),
    _http(b""),
    _http(b"data: " + _SOUND + b"\n\ndata: [DONE]\n\n", "Content-Type: text/event-stream"),
    _http(b"<html>502</html>", "Content-Type: text/html"),
    _http(b"not gzip", "Content-Encoding: gzip"),
    _http(gzip.compress(_SOUND)[:-12], "Content-Encoding: gzip"),
    _http(_SOUND, "Content-Encoding: " + ", ".join(["gzip"] * 20)),
    _http(b"no", "Content-Type: application/json; charset=hex", status="500 Oh"),
    _http(b"no", "Content-Type: text/plain; charset=undefined", status="429 Slow"),
    _http(b"\xff\xfe", "Content-Type: text/plain; charset=idna", status="400 Bad"),
    _http(b"[" * 100_000, status="400 Bad"),
    _http(b'{"error": ' + b"[" * 100_000 + b"}", status="503 Busy"),
    _http(b"", "Location: http://[", status="307 There"),
    _http(b"", "Location: /v1/embeddings", status="307 There"),
    _http(b"", status="999 What"),
    _http(_SOUND, status="204 No Content"),
]


@pytest.mark.parametrize("answer", _BROKEN)
async def test_a_broken_answer_is_an_error_of_ours(answer: bytes) -> None:
    async with _server(answer) as base_url, _provider(base_url) as provider:
        with pytest.raises(TickmindError) as caught:
            await provider.call(["a"])
        assert str(caught.value)
        await provider.fault()  # in a sentence, or none; never by raising


@pytest.mark.parametrize("status", ["200 OK", "400 Bad"])
async def test_an_answer_that_unpacks_to_much_more_is_not_unpacked(status: str) -> None:
    """A thousand times its size, which is what a few megabytes to gigabytes would be."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    block = b" " * 1024 * 1024
    bomb = b"".join(packer.compress(block) for _ in range(64)) + packer.flush()
    assert len(bomb) < most_bytes(1)

    async with (
        _server(_http(bomb, "Content-Encoding: gzip", status=status)) as base_url,
        _provider(base_url) as provider,
    ):
        with pytest.raises(EmbeddingUnavailable, match="AnswerTooLarge"):
            await provider.call(["a"])


async def test_an_answer_without_end_is_not_read_to_its_end() -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        block = b" " * 65536
        while True:
            yield b"%x\r\n%s\r\n" % (len(block), block)
            sent += len(block)

    async with _server(endless) as base_url, _provider(base_url) as provider:
        with pytest.raises(EmbeddingUnavailable, match="AnswerTooLarge"):
            await provider.call(["a"])

    assert sent < most_bytes(1) + 16 * 1024 * 1024  # what lies in buffers besides


@pytest.mark.parametrize(("more", "taken"), [(0, True), (1, False)])
async def test_an_answer_of_the_largest_size_is_read_and_none_beyond(
    more: int, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_answers, "_ANSWER_BYTES", 900)
    monkeypatch.setattr(bounded_answers, "_ANSWER_BYTES_A_TEXT", 100)
    answer = _http(_SOUND.ljust(1000 + more))
    async with _server(answer) as base_url, _provider(base_url) as provider:
        if taken:
            assert (await provider.call(["a"])).vectors.shape == (1, 2)
        else:
            with pytest.raises(EmbeddingUnavailable, match="AnswerTooLarge"):
                await provider.call(["a"])


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_texts_and_key_follow_no_redirect(status: int) -> None:
    """To another host above all, which nobody named."""
    asked: list[bytes] = []
    elsewhere: list[bytes] = []
    async with _server(_http(_SOUND), elsewhere) as other_url:
        away = _http(b"", f"Location: {other_url}/embeddings", status=f"{status} Elsewhere")
        async with _server(away, asked) as base_url, _provider(base_url) as provider:
            with pytest.raises(ProviderRefused, match="sends us elsewhere"):
                await provider.call(["a text"])
            assert await provider.fault() is None  # it answers
    assert len(asked) == 2
    assert elsewhere == []
