"""Free ports on the loopback interface."""

from __future__ import annotations

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
_given: set[int] = set()


def free_port(preferred: int | None = None) -> int:
    """A loopback TCP port nobody listens on, `preferred` if it is still free."""
    if preferred is not None and preferred not in _given and _bindable(preferred):
        _given.add(preferred)
        return preferred
    for _ in range(1000):
        port = PORTS[secrets.randbelow(len(PORTS))]
        if port not in _given and _bindable(port):
            _given.add(port)
            return port
    raise TransientError(
        f"No free port between {PORTS.start} and {PORTS.stop} on {LOOPBACK}: "
        "end some of the programs that listen there and try again."
    )


def release_port(port: int) -> None:
    """Allow `port` to be given away again, once its server has ended."""
    _given.discard(port)


def _bindable(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do themselves: connections in TIME_WAIT do not keep a port busy.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
