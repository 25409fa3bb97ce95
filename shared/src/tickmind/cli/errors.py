"""From any fault to one sentence and an exit code: the only boundary of the command line."""

from __future__ import annotations

import logging
import os
import sys

import typer

from tickmind.cli.app import create_app
from tickmind.cli.output import safe
from tickmind.errors import ConfigurationError, InvalidMessage, TickmindError

__all__ = ["INTERRUPTED", "run"]

#: What a shell gives for a process ended by SIGINT: 128 + 2.
INTERRUPTED = 130


def run() -> int:
    """Run the command line. Only what is a fault of ours ends in a traceback."""
    # The parts below warn through logging; what matters to the person is said by the command.
    logging.getLogger().addHandler(logging.NullHandler())
    if not sys.stdout.isatty() and "FORCE_COLOR" not in os.environ:
        os.environ["_TYPER_FORCE_DISABLE_TERMINAL"] = "1"  # it colours help for CI services
    for stream in (sys.stdout, sys.stderr):
        # A terminal of another encoding shows an escape rather than ending us.
        getattr(stream, "reconfigure", lambda **_: None)(errors="backslashreplace")
    try:
        code = create_app()(standalone_mode=False)
    except KeyboardInterrupt:
        return INTERRUPTED
    except typer.TyperException as exc:
        return _wrong_usage(exc)
    except TickmindError as exc:
        return _failed(exc, 2 if isinstance(exc, ConfigurationError | InvalidMessage) else 1)
    except OSError as exc:  # a full disk, a directory that is gone
        return _failed(exc, 1)
    return code if isinstance(code, int) else 0


def _failed(exc: Exception, code: int) -> int:
    print(f"tickmind: {safe(str(exc), lines=True)}", file=sys.stderr)
    return code


def _wrong_usage(exc: typer.TyperException) -> int:
    context = getattr(exc, "ctx", None)
    message = " ".join(exc.format_message().split())
    if context is None:
        print(f"tickmind: {safe(message)}", file=sys.stderr)
    elif not message:  # a group without a command: its help was shown
        return 2
    else:
        message = message.rstrip(".")
        path = context.command_path
        print(f"{path}: {safe(message)} (see {path} --help)", file=sys.stderr)
    return 2
