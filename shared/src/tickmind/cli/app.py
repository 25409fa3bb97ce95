"""The command tree, in the order in which one uses it."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tickmind.cli import (
    asyncapi,
    estimate,
    hnsw,
    inspect,
    policy,
    rejects,
    removal,
    services,
    space,
    stack,
    traffic,
)
from tickmind.cli.output import examples

__all__ = ["create_app"]

_HELP = (
    "Long-term memory for the agents of a simulation.",
    "An engine publishes what its agents did at the end of each tick. When an agent is about to"
    " decide, the engine asks what that agent remembers about what it sees, and gets a piece of"
    " prompt back.",
    "Servers are named by the environment: TICKMIND_DATABASE_URL, TICKMIND_AMQP_URL and more, see"
    " the --help of a service. Where it names none, commands use the stack that `tickmind up` runs"
    " here.",
)
_EXAMPLE = examples(
    "tickmind demo",
    "tickmind up  (and in another terminal, same directory:)",
    "tickmind publish town.jsonl",
    'tickmind recall town-7 alice "Alice walks past the market"',
)


class _InOrderOfUse(TyperGroup):
    """Lists commands and groups as registered here, not all commands before all groups."""

    def list_commands(self, ctx: Any) -> list[str]:
        known = super().list_commands(ctx)
        return sorted(known, key=lambda name: _ORDER.index(name))


_ORDER = (
    *("demo", "up"),
    *("migrate", "recorder", "embedder", "retriever"),
    *("publish", "recall"),
    *("status", "gaps", "rejects", "parked", "space", "hnsw", "delete"),
    *("policy", "estimate", "asyncapi"),
)


def create_app() -> typer.Typer:
    """The whole command line; nothing is read or connected yet."""
    app = typer.Typer(
        name="tickmind",
        cls=_InOrderOfUse,
        help="\n\n".join(_HELP),
        epilog=_EXAMPLE,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for module in (
        *(stack, services, traffic, inspect, rejects, space, hnsw, removal),
        *(policy, estimate, asyncapi),
    ):
        module.register(app)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"tickmind {version('tickmind')}")
        raise typer.Exit


def _root(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass
