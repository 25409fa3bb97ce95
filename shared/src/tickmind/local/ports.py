"""Free ports on the loopback interface."""

from __future__ import annotations

import os
import secrets
import socket

from tickmind.errors import TransientError

__all__ = ["LOOPBACK", "free_port", "release_port"]

LOOPBACK = "127.0.0.1"

#: Below Linux's ephemeral range (32768 to 60999, ip_local_port_range): a port from that range may
#: be taken by any outgoing connection while its server restarts, even by a client that reconnects
#: to it and so meets itself.
PORTS = range(20_000, 32_000)

#: What this process has given away: a port stays free until its server binds it, seconds later.
#: No other process is to find it free either, hence a file descriptor that is bound to it until it
#: is released; None where that cannot be.
_given: dict[int, int | None] = {}


def free_port(preferred: int | None = None) -> int:
    """A loopback TCP port nobody listens on, `preferred` if it is still free."""
    if preferred is not None and preferred not in _given:
        held = _held(preferred)
        # What is left of connections to its last server keeps us from holding it, not the server.
        if held is not None or _bindable(preferred):
            _given[preferred] = None if held is None else _shared(held, preferred)
            return preferred
    for _ in range(1000):
        port = PORTS[secrets.randbelow(len(PORTS))]
        if port not in _given and (held := _held(port)) is not None:
            _given[port] = _shared(held, port)
            return port
    raise TransientError(
        f"No free port between {PORTS.start} and {PORTS.stop} on {LOOPBACK}: "
        "end some of the programs that listen there and try again."
    )


def release_port(port: int) -> None:
    """Allow `port` to be given away again, once its server has ended."""
    held = _given.pop(port, None)
    if held is not None:
        os.close(held)


def _held(port: int) -> socket.socket | None:
    """Bound to the port, as nobody else is; None: somebody is."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        probe.bind((LOOPBACK, port))
    except OSError:
        probe.close()
        return None
    return probe


def _shared(held: socket.socket, port: int) -> int | None:
    """Bound still, so that nobody else finds the port free, but not in the way of its server; None
    where the system would not let a server have it, as others than Linux do not."""
    # On Linux two that both ask for this may be bound to one port as long as neither listens.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if not _bindable(port):
        held.close()
        return None
    return held.detach()


def _bindable(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do themselves: connections in TIME_WAIT do not keep a port busy.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
