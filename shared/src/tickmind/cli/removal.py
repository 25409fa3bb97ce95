"""`delete world` and `delete agent`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tickmind.cli.output import examples

if TYPE_CHECKING:
    from tickmind.settings import DatabaseSettings

__all__ = ["register"]

_PANEL = "Look after it"

_EXAMPLE = examples(
    "tickmind delete world town-7",
    "tickmind delete agent town-7 alice --yes",
)

World = Annotated[str, typer.Argument(metavar="WORLD", help="The world's name.")]
Agent = Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Json = Annotated[bool, typer.Option("--json", help="Print what went as JSON.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    delete = typer.Typer(no_args_is_help=True, epilog=_EXAMPLE)
    delete.command("world", epilog=_EXAMPLE)(delete_world)
    delete.command("agent", epilog=_EXAMPLE)(delete_agent)
    about = "Delete a world or an agent with all its memories; asks first."
    app.add_typer(delete, name="delete", help=about, rich_help_panel=_PANEL)


def delete_world(world: World, yes: Yes = False, as_json: Json = False) -> int:
    """Delete a world: its agents, memories, receipts and rejects; then vectors nobody needs."""
    return _delete(world, None, yes=yes, as_json=as_json)


def delete_agent(world: World, agent: Agent, yes: Yes = False, as_json: Json = False) -> int:
    """Delete an agent and its memories; what others heard from it stays theirs."""
    return _delete(world, agent, yes=yes, as_json=as_json)


def _delete(world: str, agent: str | None, *, yes: bool, as_json: bool) -> int:
    from tickmind.cli.output import print_json, say
    from tickmind.cli.servers import database_settings

    gone = asyncio.run(_deleted(database_settings(), world, agent, yes=yes))
    if gone is None:
        return 1
    if as_json:
        print_json(gone)
    else:
        whose = world if agent is None else f"{agent} of {world}"
        say(f"deleted {whose}: {gone['memories']} memories, {gone['embeddings']} unused vectors")
    return 0


async def _deleted(
    settings: DatabaseSettings, world: str, agent: str | None, *, yes: bool
) -> dict[str, Any] | None:
    """What went, in numbers; None: the person said no. Raises CommandFailed."""
    from tickmind.cli.asking import agreed
    from tickmind.cli.hnsw_indexes import drop_those_of
    from tickmind.cli.output import progress
    from tickmind.cli.servers import open_database
    from tickmind.removing import collect, delete

    async with open_database(settings) as pool:
        question, gone = await (
            _of_world(pool, world) if agent is None else _of_agent(pool, world, agent)
        )
        if not agreed(question, yes=yes):
            return None
        await drop_those_of(pool, world, agent)
        done = 0
        with progress("Deleting", total=gone["memories"]) as bar:

            def told(memories: int) -> None:
                nonlocal done
                done += memories
                bar.to(done)

            await delete(pool.writing, world, agent, told=told)
            return {**gone, "embeddings": await collect(pool.writing)}


async def _of_world(pool: Any, world: str) -> tuple[str, dict[str, Any]]:
    """The question, and what would go."""
    from tickmind.cli.servers import CommandFailed
    from tickmind.store.inspection import reject_ids, world_statuses

    async with pool.reading() as session:
        found = await world_statuses(session, world)
        rejects = len(await reject_ids(session, world))
    if not found and not rejects:
        raise CommandFailed(f"no world named {world} has been recorded")
    agents = sum(status.agents for status in found)
    memories = sum(sum(status.kinds.values()) for status in found)
    gone = {"world": world, "agents": agents, "memories": memories, "rejects": rejects}
    return (
        f"Delete the world {world}: {agents} agents, {memories} memories, {rejects} rejects?",
        gone,
    )


async def _of_agent(pool: Any, world: str, agent: str) -> tuple[str, dict[str, Any]]:
    """The question, and what would go."""
    from tickmind.cli.servers import CommandFailed
    from tickmind.store.removal import agent_memories

    async with pool.reading() as session:
        memories = await agent_memories(session, world, agent)
    if memories is None:
        raise CommandFailed(f"the world {world} has no agent named {agent}")
    gone = {"world": world, "agent": agent, "memories": memories}
    return f"Delete {agent} of the world {world}: {memories} memories?", gone
