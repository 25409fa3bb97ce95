"""The `tickmind` command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int | None:
    """Run the command that the arguments name; its exit code.

    0: done; 1: something failed; 2: wrong usage or settings; 130: ended by Ctrl-C.
    """
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
