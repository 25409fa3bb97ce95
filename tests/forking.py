"""Processes of `python -m tickmind.cli`, forked by one that has its modules loaded already.

Loading them takes a second, a command itself a tenth of one, and the tests run hundreds. What is
forked reads its own arguments, environment, directory and pipes, and ends as any process does. This
file is a program twice over: the server that forks, and in front of each fork a process that
whoever asks for it can wait for and kill.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from typing import Any

__all__ = ["Forks"]

_SIZE = 4


class Forks:
    """The server, once it is started, until it is ended."""

    def __init__(self) -> None:
        """Waits until the server has loaded everything."""
        import subprocess
        import tempfile

        self._directory = tempfile.TemporaryDirectory(prefix="tickmind-forks-")
        self._path = os.path.join(self._directory.name, "socket")
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, "serve", self._path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Threads do not survive a fork.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            # Ctrl-C is for the tests; it ends with them.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.read(1), "the server of forks did not start"

    def command(self, *args: str) -> tuple[str, ...]:
        """What to run instead of `python -m tickmind.cli` with these arguments."""
        return (sys.executable, "-I", "-S", __file__, "ask", self._path, *args)

    def end(self) -> None:
        """End the server."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
        self._directory.cleanup()


def _ask(path: str, args: list[str]) -> int:
    """Have a command run on this process's own streams; its exit code."""
    told = json.dumps({"args": args, "env": dict(os.environ), "cwd": os.getcwd()}).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [len(told).to_bytes(_SIZE)], [0, 1, 2])
        connection.sendall(told)
        code = int.from_bytes(_read(connection, _SIZE), signed=True)
    if code < 0:  # by a signal: as it ended
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _read(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise EOFError
        found += part
    return found


def _serve(path: str) -> None:
    """Fork whenever one is asked for, until stdin ends. Returns in each fork, all set up."""
    import gc
    import pkgutil
    import select
    from importlib import import_module

    import tickmind.cli

    for module in pkgutil.iter_modules(tickmind.cli.__path__, "tickmind.cli."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    for name in ("database", "broker", "client", "reindexing", "removing", "store.inspection"):
        import_module(f"tickmind.{name}")
    import_module("tickmind_migrations")
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(64)
        os.write(1, b".")
        while True:
            ready, _, _ = select.select([listening, sys.stdin], [], [])
            if sys.stdin in ready:
                os._exit(0)
            connection, _ = listening.accept()
            if os.fork() == 0:
                break
            connection.close()
            _forget_ended()
    # Here is one process for each command, which waits for it.
    size, streams, _, _ = socket.recv_fds(connection, _SIZE, 3)
    told: dict[str, Any] = json.loads(_read(connection, int.from_bytes(size)))
    running, runs = os.pipe()  # the other end closes with the command
    command = os.fork()
    if command == 0:
        connection.close()
        os.close(running)
        _become(told, streams)
        return
    os.close(runs)
    ready, _, _ = select.select([connection.fileno(), running], [], [])
    given_up = connection.fileno() in ready
    if given_up:  # nobody waits for it any more
        os.kill(command, signal.SIGKILL)
    _, status = os.waitpid(command, 0)
    if not given_up:
        connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(_SIZE, signed=True))
    os._exit(0)


def _forget_ended() -> None:
    """Those of the processes that have ended, which else stay as zombies."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _become(told: dict[str, Any], streams: list[int]) -> None:
    """A new process of `python -m tickmind.cli`, as far as it can tell."""
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
        os.close(stream)
    # Those of the server know of its own that it could be sought in, or is a terminal.
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(told["cwd"])
    os.environ.clear()
    os.environ.update(told["env"])
    sys.path.insert(0, told["cwd"])
    sys.argv[1:] = told["args"]


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        sys.exit(_ask(sys.argv[2], sys.argv[3:]))
    _serve(sys.argv[2])
    import runpy

    runpy.run_module("tickmind.cli", run_name="__main__", alter_sys=True)
