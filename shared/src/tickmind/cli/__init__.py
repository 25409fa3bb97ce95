"""The `tickmind` command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

__all__ = ["main"]


#: What a shell gives for a process ended by SIGTERM: 128 + 15.
_TERMINATED = 143


def main() -> int | None:
    """Run the command that the arguments name; its exit code.

    0: done; 1: something failed; 2: wrong usage or settings; 130: ended by Ctrl-C.
    """
    if os.getpid() == 1:
        # The kernel keeps from the first process of a container every signal that it has no
        # handler for: without this one, a container could not be stopped before its command has
        # set its own.
        signal.signal(signal.SIGTERM, _terminated)
    try:
        from tickmind.cli.errors import run
    except ModuleNotFoundError as exc:
        if (exc.name or "").split(".")[0] not in ("typer", "rich"):
            raise
        print(
            f"tickmind: the command needs {exc.name}, which is not installed:"
            " pip install 'tickmind[server]'",
            file=sys.stderr,
        )
        return 1
    return run()


def _terminated(*_: object) -> NoReturn:
    raise SystemExit(_TERMINATED)
