"""Ports that were given away are nobody else's, until they are released."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tickmind.local.ports import LOOPBACK, free_port, release_port

#: Another process that finds a port of two free.
_OTHER = """
import sys
from tickmind.local import ports
class Ports(list):
    start, stop = "one", "the other"
ports.PORTS = Ports(map(int, sys.argv[1:]))
print(ports.free_port())
"""


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a server have a held port")
def test_another_process_finds_it_taken(port: int) -> None:
    free = free_port()
    release_port(free)
    for _ in range(3):
        assert _found_by_another(port, port, port, free) == free
    release_port(port)
    assert _found_by_another(port) == port


def test_server_that_it_was_given_to_has_it(port: int) -> None:
    for _ in range(2):  # and has it again, restarted
        with (
            socket.create_server((LOOPBACK, port)) as server,
            socket.create_connection((LOOPBACK, port)) as client,
        ):
            accepted, _ = server.accept()
            accepted.close()
            assert client.recv(1) == b""
    release_port(port)


def test_nobody_answers_before_its_server(port: int) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, port)).close()
    release_port(port)


def test_it_may_be_given_away_again_once_it_is_released(port: int) -> None:
    other = free_port(port)
    assert other != port
    release_port(other)
    release_port(port)
    assert free_port(port) == port
    release_port(port)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a server have a held port")
def test_port_that_is_preferred_is_nobody_elses_either(port: int) -> None:
    release_port(port)
    assert free_port(port) == port
    free = free_port()
    release_port(free)
    assert _found_by_another(port, port, port, free) == free
    release_port(port)


def _found_by_another(*ports: int) -> int:
    command = [sys.executable, "-c", _OTHER, *map(str, ports)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
