"""The provider as a server in the running event loop, on a loopback port.

async with running_provider(ProviderOptions(native_width=8)) as provider:
    provider.faults.add(Status(code=503), Next(requests=3))
    ...  # calls to provider.base_url
    assert provider.ledger.times_billed("hello") == 1
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tickmind.local.ports import free_port, release_port
from tickmind.local.provider.app import create_app
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.state import ProviderState

__all__ = ["Provider", "running_provider"]

_HOST = "127.0.0.1"

# Longer than clients keep an idle connection (httpx2: 5 s), so that no call meets a closing one.
_KEEP_ALIVE_S = 75

# Requests under way when the provider stops may take their latency (a few 100 ms), not more.
_RUN_OUT_S = 1.0


class Provider(ProviderState):
    """A provider that can be started and stopped; its state outlives a stop.

    `port` 0: a free one, kept from the first start on. A stopped provider refuses connections.
    """

    def __init__(
        self,
        options: ProviderOptions | None = None,
        *,
        port: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(options, clock=clock)
        self.abort = self._end_connection
        self._app = create_app(self)
        self._port = port
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Root of the server, above /v1 and /control."""
        return f"http://{_HOST}:{self._port}"

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as its base URL."""
        return f"{self.url}/v1"

    def give_up_port(self) -> None:
        """Others may have it: this one is started no more."""
        release_port(self._port)

    async def start(self) -> None:
        """Accept connections. Raises OSError when the port is taken."""
        # One that no client's own connection takes while it is stopped.
        self._port = self._port or free_port()
        listener = _listen(self._port)
        config = uvicorn.Config(
            self._app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait({self._serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
            await self._serving

    async def stop(self) -> None:
        """Drop every connection and refuse new ones."""
        if self._server is not None and self._serving is not None:
            self._server.drop_connections()
            self.faults.release()
            self._server.stopping.set()
            await self._serving
        self._server = self._serving = None

    def _end_connection(self, client: tuple[str, int], reset: bool) -> None:
        """Close the caller's connection at once; with a TCP reset where asked."""
        assert self._server is not None
        for protocol in list(self._server.server_state.connections):
            if isinstance(protocol, H11Protocol) and protocol.client == client:
                if reset:
                    # Lingering for 0 s turns the close into a reset (socket(7), SO_LINGER).
                    protocol.transport.get_extra_info("socket").setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                    )
                protocol.transport.abort()


@contextlib.asynccontextmanager
async def running_provider(
    options: ProviderOptions | None = None,
    *,
    port: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Provider]:
    """Run a provider for the length of the block; it accepts connections from the first line on.

    `clock` times rules, limits and ledger (seconds); latency and pauses take real time.
    """
    provider = Provider(options, port=port, clock=clock)
    await provider.start()
    try:
        yield provider
    finally:
        await provider.stop()
        provider.give_up_port()


def _listen(port: int) -> socket.socket:
    """A bound socket. asyncio switches Nagle's algorithm off only where the protocol is named;
    left on, it delays every short answer by 40 ms (measured: 49 ms a call against 4 ms)."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((_HOST, port))
    except OSError:
        listener.close()
        raise
    return listener


class _Server(uvicorn.Server):
    """uvicorn within a loop that is not its own: no signal handlers, no polling, a prompt end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self.stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the owner of the loop."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self.ready.set()

    async def main_loop(self) -> None:
        """Serve until told to stop."""
        await self.stopping.wait()

    def drop_connections(self) -> None:
        """Accept no more, and close what is open without an answer."""
        for server in self.servers:
            server.close()
        for protocol in list(self.server_state.connections):
            protocol.transport.abort()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests whose caller is gone run out, for a short while."""
        self.drop_connections()
        if self.server_state.tasks:
            _, late = await asyncio.wait(list(self.server_state.tasks), timeout=_RUN_OUT_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for server in self.servers:
            await server.wait_closed()
