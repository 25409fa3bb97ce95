"""The door that tests of the network's faults stand on: does it do what it says?"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from tests.proxy import Door, Weather, door
from tickmind.local.ports import PORTS
from tickmind.local.provider.running import running_provider


class _Echo:
    """A server that sends back what it gets; `ended` tells of each connection that is over."""

    def __init__(self) -> None:
        self.ended: asyncio.Queue[None] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            self.ended.put_nowait(None)
            writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[tuple[_Echo, Door]]:
    server = _Echo()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    async with listener, door(listener.sockets[0].getsockname()) as opened:
        yield server, opened


async def _said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: bytes) -> bytes:
    writer.write(text)
    return await reader.readexactly(len(text))


async def test_weather_delays_each_way(echo: tuple[_Echo, Door]) -> None:
    _, opened = echo
    reader, writer = await asyncio.open_connection("127.0.0.1", opened.port)
    loop = asyncio.get_running_loop()
    opened.weather = Weather(latency_s=0.05)

    begun = loop.time()
    assert await _said(reader, writer, b"slow") == b"slow"
    took_s = loop.time() - begun
    writer.close()

    assert took_s >= 0.1


def test_weather_takes_its_jitter_from_its_source_and_its_time_by_length() -> None:
    one, other = (Weather(jitter_s=1.0, bytes_per_s=100, source=random.Random(7)) for _ in range(2))

    drawn = [one.takes_s(50) for _ in range(20)]

    assert drawn == [other.takes_s(50) for _ in range(20)]
    assert all(0.5 <= seconds <= 1.5 for seconds in drawn)
    assert Weather(latency_s=0.2).takes_s(65536) == 0.2


async def test_deserted_connection_stays_open_to_one_side_alone(echo: tuple[_Echo, Door]) -> None:
    server, opened = echo
    reader, writer = await asyncio.open_connection("127.0.0.1", opened.port)
    assert await _said(reader, writer, b"there") == b"there"

    opened.desert()
    await asyncio.wait_for(server.ended.get(), 5)
    writer.write(b"anyone?")
    await writer.drain()
    newcomer = await asyncio.open_connection("127.0.0.1", opened.port)
    assert await _said(*newcomer, b"served") == b"served"
    assert not reader.at_eof()

    opened.cut_deserted()
    assert await asyncio.wait_for(reader.read(1), 5) == b""
    writer.close()
    assert await _said(*newcomer, b"still served") == b"still served"
    newcomer[1].close()


async def test_what_is_to_be_started_again_listens_where_no_client_does() -> None:
    """Else a client that knocks at the port meanwhile may meet itself there, and keep it."""
    async with door(("127.0.0.1", 1)) as opened, running_provider() as provider:
        for port in (opened.port, int(provider.url.rsplit(":", 1)[1])):
            assert port in PORTS
        await opened.shut()
        before = opened.port
        await opened.unlock()
        assert opened.port == before
