"""Which servers a command talks to, and how they are opened."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tickmind.cli.output import called, note
from tickmind.errors import ConfigurationError, TickmindError

if TYPE_CHECKING:
    from aio_pika.abc import AbstractConnection

    from tickmind.client import MemoryClient
    from tickmind.database import Database
    from tickmind.settings import BrokerSettings, DatabaseSettings

__all__ = [
    "RUN_AGAIN",
    "CommandFailed",
    "announced",
    "broker_settings",
    "database_settings",
    "first_line",
    "open_broker",
    "open_client",
    "open_database",
]

#: The place and the name of the note by which a running stack is found.
STATE_DIR = "TICKMIND_STATE_DIR"
DEFAULT_STATE_DIR = ".tickmind"
NOTE = "stack.json"

#: What follows where a command was cut off by what may pass.
RUN_AGAIN = ": what is done stays done, run this again"

#: What was told of stacks by this process.
_noted: set[str] = set()

#: The clock behind a process's start counts in 10 ms, and may be adjusted.
_START_TOLERANCE_S = 1.0

_DATABASE, _BROKER = "TICKMIND_DATABASE_", "TICKMIND_AMQP_"


class CommandFailed(TickmindError):
    """What was asked for cannot be done; the text says why and what would help."""


def note_path(state_dir: Path | None = None) -> Path:
    """Where the note of a stack of this working directory is."""
    return (state_dir or Path(os.environ.get(STATE_DIR, DEFAULT_STATE_DIR))) / NOTE


@contextlib.contextmanager
def announced(path: Path, settings: Mapping[str, str]) -> Iterator[None]:
    """Leave a note of a running stack for other commands; removed at the end.

    `settings`: the stack's environment variables. Only its owner may read the note, since URLs
    hold passwords.
    """
    import psutil

    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    pid = os.getpid()
    body = {"pid": pid, "started": psutil.Process(pid).create_time(), "settings": dict(settings)}
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(body, file)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _stack() -> dict[str, str] | None:
    """The environment of the stack that runs here; None: none does."""
    path = note_path()
    try:
        body = json.loads(path.read_text())
        pid, started = int(body["pid"]), float(body["started"])
        settings = {str(key): str(value) for key, value in body["settings"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not _alive(pid, started):  # it was killed before it could remove its note
        return None
    told = f"(using the stack that runs in {path.parent.absolute()})"
    if told not in _noted:  # a command asks for each of its servers
        _noted.add(told)
        note(told)
    return settings


def _alive(pid: int, started: float) -> bool:
    try:
        import psutil
    except ModuleNotFoundError:  # no stack was started by this installation
        return False
    try:
        return abs(psutil.Process(pid).create_time() - started) < _START_TOLERANCE_S
    except psutil.Error:
        return False


def _named(prefix: str, field: str) -> dict[str, Any]:
    """What to override in the settings: nothing where the environment names the servers."""
    given = {name for name in os.environ if name.startswith((_DATABASE, _BROKER))}
    if any(name.startswith(prefix) for name in given):
        return {}
    if given:  # a server from here and another from there would be a nasty surprise
        msg = f"{sorted(given)[0]} is set, but no {prefix}*: set {prefix}URL too"
        raise ConfigurationError(msg)
    stack = _stack()
    if stack is None:
        msg = (
            "no server is named and no stack runs here: set TICKMIND_DATABASE_URL and"
            f" TICKMIND_AMQP_URL, or start a stack with `{called()} up`"
        )
        raise ConfigurationError(msg)
    return {field: stack[f"{prefix}URL"]}


def database_settings() -> DatabaseSettings:
    """The database of the environment or of the local stack. Raises ConfigurationError."""
    from tickmind.settings import DatabaseSettings, load

    return load(DatabaseSettings, **_named(_DATABASE, "database_url"))


def broker_settings() -> BrokerSettings:
    """The broker of the environment or of the local stack. Raises ConfigurationError."""
    from tickmind.settings import BrokerSettings, load

    return load(BrokerSettings, **_named(_BROKER, "amqp_url"))


@asynccontextmanager
async def open_database(settings: DatabaseSettings) -> AsyncIterator[Database]:
    """A database with our schema. Raises CommandFailed, also for what fails inside."""
    from sqlalchemy.exc import SQLAlchemyError

    from tickmind.database import Database
    from tickmind.database_errors import DRIVER_ERRORS, DatabaseUnavailable

    database = Database(settings, application="tickmind-cli")
    try:
        fault = await database.check()
        if fault is not None:
            raise CommandFailed(fault)
        yield database
    except DatabaseUnavailable as exc:
        raise CommandFailed(f"{exc}{RUN_AGAIN}") from exc
    except (SQLAlchemyError, *DRIVER_ERRORS) as exc:
        raise CommandFailed(f"PostgreSQL refused: {first_line(exc)}") from exc
    finally:
        await database.dispose()


def first_line(exc: BaseException) -> str:
    """The driver's own words, without the statement and its parameters."""
    words = str(getattr(exc, "orig", None) or exc) or type(exc).__name__
    return words.splitlines()[0]


@asynccontextmanager
async def open_broker(settings: BrokerSettings) -> AsyncIterator[AbstractConnection]:
    """A plain connection. Raises BrokerUnavailable, CommandFailed for what fails inside."""
    from aiormq.exceptions import AMQPError

    from tickmind.connecting import connect

    connection = await connect(settings, name="cli")
    try:
        yield connection
    except AMQPError as exc:
        raise CommandFailed(f"RabbitMQ refused: {first_line(exc)}") from exc
    finally:
        await connection.close()


@asynccontextmanager
async def open_client(settings: BrokerSettings) -> AsyncIterator[MemoryClient]:
    """A client whose broker answers: what an engine would wait for is told at once here."""
    from tickmind.client import MemoryClient

    async with open_broker(settings):
        pass
    url, ca_file = settings.broker_url(), settings.amqp_ca_file
    async with MemoryClient(url, ca_file=ca_file) as client:
        yield client
