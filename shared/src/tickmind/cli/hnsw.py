"""`hnsw`: indexes of single very large agents, which an operator makes and takes away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tickmind.cli.output import examples

if TYPE_CHECKING:
    from tickmind.cli.hnsw_indexes import Index

__all__ = ["register"]

_PANEL = "Look after it"

_EXAMPLE = examples(
    "tickmind hnsw add town-7 alice",
    "tickmind hnsw list",
    "tickmind hnsw refresh",
    "tickmind hnsw drop town-7 alice",
)

World = Annotated[str, typer.Argument(metavar="WORLD", help="The world's name.")]
Agent = Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name.")]
Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    hnsw = typer.Typer(no_args_is_help=True, epilog=_EXAMPLE)
    hnsw.command("list", epilog=_EXAMPLE)(list_indexes)
    hnsw.command("add", epilog=_EXAMPLE)(add)
    hnsw.command("refresh", epilog=_EXAMPLE)(refresh)
    hnsw.command("drop", epilog=_EXAMPLE)(drop)
    about = "Rank single very large agents by an HNSW index of their own: add, refresh, drop."
    app.add_typer(hnsw, name="hnsw", help=about, rich_help_panel=_PANEL)


def list_indexes(as_json: Json = False) -> None:
    """List the indexes, and how much came since each was built."""
    from tickmind.cli.hnsw_indexes import listed
    from tickmind.cli.output import print_json, say
    from tickmind.cli.servers import database_settings

    found = asyncio.run(listed(database_settings()))
    if as_json:
        print_json([_json(index) for index in found])
    elif not found:
        say("no HNSW index: `tickmind hnsw add WORLD AGENT` makes one for a very large agent")
    else:
        _show(found)


def add(
    world: World,
    agent: Agent,
    force: Annotated[
        bool, typer.Option("--force", help="However few memories the agent has.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Build an index over what an agent remembers by now; recalls use it within seconds.

    What comes later is ranked as before, and is taken in by `refresh`. Recording and recalls go on.
    It takes the rights of whoever runs `tickmind migrate`, and a direct connection.
    """
    from tickmind.cli.hnsw_indexes import added
    from tickmind.cli.output import print_json
    from tickmind.cli.servers import database_settings

    index = asyncio.run(added(database_settings(), world, agent, force=force))
    if as_json:
        print_json(_json(index))
    else:
        _show([index])


def refresh(as_json: Json = False) -> None:
    """Build all indexes anew where something came since; drop those that nothing uses any more.

    After `tickmind space reindex` and `tickmind space activate`, and when much has come.
    """
    from tickmind.cli.hnsw_indexes import refreshed
    from tickmind.cli.output import print_json, say
    from tickmind.cli.servers import database_settings

    found = asyncio.run(refreshed(database_settings()))
    if as_json:
        print_json([_json(index) for index in found])
    elif not found:
        say("no HNSW index is left")
    else:
        _show(found)


def drop(world: World, agent: Agent, as_json: Json = False) -> None:
    """Drop an agent's index; recalls go on by signatures."""
    from tickmind.cli.hnsw_indexes import dropped
    from tickmind.cli.output import print_json, say
    from tickmind.cli.servers import database_settings

    names = asyncio.run(dropped(database_settings(), world, agent))
    if as_json:
        print_json({"dropped": names})
    else:
        say(f"dropped {', '.join(names)}")


def _json(index: Index) -> dict[str, Any]:
    return {
        "name": index.name,
        "world": index.world,
        "agent": index.agent,
        "generation": index.generation_id,
        "state": index.state,
        "before": index.before,
        "newer": index.newer,
        "bytes": index.size_bytes,
    }


def _show(indexes: list[Index]) -> None:
    from tickmind.cli.output import say, table

    rows = [
        [
            *(index.world or "-", index.agent or "-", index.generation_id or "-", index.state),
            *(index.before or "-", index.newer, f"{index.size_bytes / 1e6:.0f}"),
        ]
        for index in indexes
    ]
    headings = ["world", "agent", "generation", "state", "before tick", "newer", "MB"]
    say(table(headings, rows))
