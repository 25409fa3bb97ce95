"""`migrate`, and the three services: found as installed packages, never imported by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from tickmind.cli.output import examples
from tickmind.errors import ConfigurationError

if TYPE_CHECKING:
    from tickmind.settings import DatabaseSettings, Settings

__all__ = ["register"]

_PANEL = "Run it"

SERVICES = {
    "recorder": "Run the recorder: grades what agents did and stores it as memories.",
    "embedder": "Run the embedder: has the memories' texts embedded, each once.",
    "retriever": "Run the retriever: answers what agents remember, before the deadline.",
}

_MIGRATE_EXAMPLE = examples(
    "TICKMIND_DATABASE_URL=postgresql://me:secret@db/tickmind tickmind migrate",
)
_SERVICE_EXAMPLE = examples(
    "export TICKMIND_DATABASE_URL=postgresql://me:secret@db/tickmind",
    "export TICKMIND_AMQP_URL=amqp://me:secret@mq",
    "tickmind {name}",
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(rich_help_panel=_PANEL, epilog=_MIGRATE_EXAMPLE)(migrate)
    for name, about in SERVICES.items():
        app.command(
            name,
            cls=_ServiceCommand,
            help=about + "\n\nIts settings come from the environment; they are listed below.",
            rich_help_panel=_PANEL,
            epilog=_SERVICE_EXAMPLE.format(name=name),
        )(_run(name))


def migrate() -> None:
    """Bring the database to this release's schema. Safe to run any number of times at once.

    Needs a direct connection to PostgreSQL, not one through PgBouncer.
    """
    from tickmind.cli.output import say
    from tickmind.cli.servers import database_settings

    upgrade = _entry("tickmind.migrations", "upgrade", "tickmind-migrations").load()
    asyncio.run(_migrate(upgrade, database_settings(), say))


async def _migrate(
    upgrade: Callable[..., Any], settings: DatabaseSettings, report: Callable[[str], None]
) -> None:
    from sqlalchemy.exc import SQLAlchemyError

    from tickmind.cli.servers import RUN_AGAIN, CommandFailed, first_line
    from tickmind.database_errors import DRIVER_ERRORS, is_transient

    try:
        await upgrade(settings, report)
    except (SQLAlchemyError, *DRIVER_ERRORS, OSError) as exc:
        again = RUN_AGAIN if is_transient(exc) else ""
        raise CommandFailed(f"PostgreSQL cannot be migrated: {first_line(exc)}{again}") from exc


def _run(name: str) -> Callable[[], int]:
    def run() -> int:
        main: Callable[[], int] = _service(name).load()
        return main()

    return run


def _service(name: str) -> EntryPoint:
    return _entry("tickmind.services", name, f"tickmind-{name}")


def _entry(group: str, name: str, package: str) -> EntryPoint:
    """What an installed package offers. Raises ConfigurationError where it is not installed."""
    found = next(iter(entry_points(group=group, name=name)), None)
    if found is None:
        msg = f"{package} is not installed here: pip install {package}"
        raise ConfigurationError(msg)
    return found


class _ServiceCommand(TyperCommand):
    """A command whose help lists the service's settings."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from importlib import import_module

        from rich.padding import Padding
        from rich.text import Text

        from tickmind.cli.output import say

        super().format_help(ctx, formatter)
        module = import_module(_service(ctx.info_name or "").module)
        for name, kind, default, about in _settings(module.SETTINGS):
            told = f"  {kind}" + (f", default {default}" if default else "")
            say(Text.assemble(" ", (name, "bold cyan"), told))
            if about:
                say(Padding(Text(about, style="dim"), (0, 0, 0, 5), expand=False))
        say(
            "",
            " Of each variable X, X_FILE may name a file that holds the value, for secrets.",
        )


def _settings(settings: type[Settings]) -> Iterator[list[str]]:
    """Each setting: its variable, type, default and description."""
    from tickmind.settings import PREFIX

    described_all = settings.model_json_schema()["properties"]
    # Its own first: those it shares with others are known sooner.
    own = [name for name in described_all if name in settings.__annotations__]
    for name in (*own, *(name for name in described_all if name not in own)):
        described = described_all[name]
        default = described.get("default")
        hidden = default is None or default == "" or "password" in described.get("format", "")
        yield [
            PREFIX + name.upper(),
            _type(described),
            "" if hidden else str(default).lower() if isinstance(default, bool) else str(default),
            described.get("description", ""),
        ]


def _type(described: dict[str, Any]) -> str:
    """A JSON schema in the fewest words."""
    if "anyOf" in described:
        kinds = [_type(kind) for kind in described["anyOf"] if kind.get("type") != "null"]
        return " or ".join(kinds)
    if "enum" in described:
        return " | ".join(map(str, described["enum"]))
    kind = str(described["type"])
    kind = {"string": "text", "boolean": "true | false"}.get(kind, kind)
    if "format" in described:
        kind = {"password": "secret", "path": "file"}.get(described["format"], kind)
    low = described.get("minimum", described.get("exclusiveMinimum"))
    high = described.get("maximum", described.get("exclusiveMaximum"))
    if low is None and high is None:
        return kind
    above = ">" if "exclusiveMinimum" in described else ""
    return f"{kind} {above}{low:.15g}.." + (f"{high:.15g}" if high is not None else "")
