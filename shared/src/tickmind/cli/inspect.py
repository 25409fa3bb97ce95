"""`status` and `gaps`: what is there, what waits, what never came."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tickmind.cli.output import examples

if TYPE_CHECKING:
    from tickmind.cli.queues import Depth
    from tickmind.cli.spending import Spending
    from tickmind.settings import DatabaseSettings
    from tickmind.store.inspection import Gap, WorldStatus
    from tickmind.store.spaces import Generation

__all__ = ["register"]

_PANEL = "Look after it"

_STATUS_EXAMPLE = examples(
    "tickmind status",
    "watch -n 2 tickmind status town-7",
)
_GAPS_EXAMPLE = examples(
    "tickmind gaps town-7",
)

#: Worlds shown at once, so that all fits a screen; the rest is counted, and --json has them all.
_WORLDS_SHOWN = 12
#: Parked reasons shown per screen.
_REASONS_SHOWN = 5
#: Gaps shown; --json has them all.
_GAPS_SHOWN = 40


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(rich_help_panel=_PANEL, epilog=_STATUS_EXAMPLE)(status)
    app.command(rich_help_panel=_PANEL, epilog=_GAPS_EXAMPLE)(gaps)


@dataclass(slots=True, kw_only=True)
class _Status:
    """What could be learnt; `faults`: what could not, and why."""

    schema: str
    space: Generation | None
    worlds: list[WorldStatus]
    parked: dict[str, dict[str, int]]
    stray_rejects: int
    spending: Spending
    queues: list[Depth] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def status(
    world: Annotated[str | None, typer.Argument(metavar="WORLD", help="This one only.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all as JSON.")] = False,
) -> int:
    """Show worlds with their memories, what waits or was given up on, what embedding them took,
    and the queues."""
    from tickmind.cli.output import note, print_json
    from tickmind.cli.servers import broker_settings, database_settings

    found = asyncio.run(_status(database_settings(), broker_settings, world))
    if as_json:
        print_json(_status_json(found))
    else:
        _show_status(found)
    for fault in found.faults:
        note(f"tickmind: {fault}")
    return 1 if found.faults else 0


async def _status(database: DatabaseSettings, broker: Any, world: str | None) -> _Status:
    from sqlalchemy import text

    from tickmind.cli.queues import depths
    from tickmind.cli.servers import open_database
    from tickmind.cli.spending import spending
    from tickmind.errors import TickmindError
    from tickmind.store.inspection import parked_reasons, stray_rejects, world_statuses
    from tickmind.store.spaces import active_generation

    async with open_database(database) as pool, pool.reading() as session:
        worlds = await world_statuses(session, world)
        if world is not None and not worlds:
            raise _unknown(world)
        found = _Status(
            schema=(
                await session.execute(text("SELECT version_num FROM alembic_version"))
            ).scalar_one(),
            space=await active_generation(session),
            worlds=worlds,
            parked=await parked_reasons(session, world),
            stray_rejects=await stray_rejects(session),
            spending=await spending(session),
        )
    try:
        found.queues = await depths(broker())
    except TickmindError as exc:  # the database's half is worth seeing all the more
        found.faults.append(str(exc))
    return found


def _unknown(world: str) -> Exception:
    from tickmind.cli.servers import CommandFailed

    return CommandFailed(
        f"no world named {world} has been recorded: `tickmind status` lists those there are"
    )


def _status_json(found: _Status) -> dict[str, Any]:
    space = found.space
    return {
        "schema": found.schema,
        "embedding_space": None
        if space is None
        else {"model": space.space.model, "dimensions": space.space.dimensions},
        "embedding": found.spending.as_json(),
        "worlds": [
            asdict(world)
            | {
                "memories": sum(world.kinds.values()),
                "parked_reasons": found.parked.get(world.world, {}),
            }
            for world in found.worlds
        ],
        "rejects_of_no_world": found.stray_rejects,
        "queues": {
            depth.queue: {"ready": depth.ready, "consumers": depth.consumers}
            for depth in found.queues
        },
        "dead_letters": _dead_letters(found),
        "faults": found.faults,
    }


def _dead_letters(found: _Status) -> int | None:
    from tickmind.topology import DEAD_LETTER_QUEUE

    return next((d.ready for d in found.queues if d.queue == DEAD_LETTER_QUEUE.name), None)


def _show_status(found: _Status) -> None:
    from tickmind.cli.output import say, table

    space = found.space
    model = (
        "no embedding space yet: no embedder has run"
        if space is None
        else f"embedding space {space.space.model}, {space.space.dimensions} dimensions"
    )
    say(f"schema {found.schema}, {model}")
    if found.worlds:
        say(
            table(
                ["world", "agents", "memories", "ticks", "pending", "parked", "rejects"],
                [_world_row(world) for world in found.worlds[:_WORLDS_SHOWN]],
            )
        )
    else:
        say("", "nothing has been recorded yet: publish a trace with `tickmind publish FILE`", "")
    for line in _notes(found):
        say(line)
    found.spending.show()
    if found.queues:
        rows = [[depth.queue, depth.ready, depth.consumers] for depth in found.queues]
        say(table(["queue", "messages ready", "consumers"], rows))


def _world_row(world: WorldStatus) -> list[object]:
    kinds = ", ".join(f"{count} {kind}" for kind, count in world.kinds.items())
    memories = sum(world.kinds.values())
    ticks = "-" if world.first_tick is None else f"{world.first_tick}..{world.last_tick}"
    return [
        world.world,
        world.agents,
        f"{memories} ({kinds})" if kinds else "0",
        ticks,
        world.pending,
        world.parked,
        world.rejects,
    ]


def _notes(found: _Status) -> Iterator[str]:
    from tickmind.cli.output import safe

    hidden = found.worlds[_WORLDS_SHOWN:]
    if hidden:
        memories = sum(sum(world.kinds.values()) for world in hidden)
        yield f"and {len(hidden)} more worlds with {memories} memories: `tickmind status WORLD`"
    reasons = [
        (world, reason, count)
        for world, counts in found.parked.items()
        for reason, count in counts.items()
    ]
    for world, reason, count in reasons[:_REASONS_SHOWN]:
        yield safe(f"parked in {world}: {count} memories, {reason}")
    if len(reasons) > _REASONS_SHOWN:
        yield f"and {len(reasons) - _REASONS_SHOWN} more reasons: `tickmind parked list`"
    if found.stray_rejects:
        yield f"{found.stray_rejects} rejects of no world: `tickmind rejects list`"
    if _dead_letters(found):
        yield f"{_dead_letters(found)} dead letters, which could not even be rejected"


def gaps(
    world: Annotated[str, typer.Argument(metavar="WORLD", help="The world's name.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print all as JSON.")] = False,
) -> None:
    """List the ticks between a world's first and last that were never received."""
    from tickmind.cli.output import print_json, say
    from tickmind.cli.servers import database_settings

    found, first, last = asyncio.run(_gaps(database_settings(), world))
    missing = sum(gap.last - gap.first + 1 for gap in found)
    if as_json:
        print_json(
            {
                "world": world,
                "first_tick": first,
                "last_tick": last,
                "missing": missing,
                "gaps": [asdict(gap) for gap in found],
            }
        )
        return
    if not found:
        say(f"every tick from {first} to {last} was received")
        return
    for gap in found[:_GAPS_SHOWN]:
        say(str(gap.first) if gap.first == gap.last else f"{gap.first}..{gap.last}")
    if len(found) > _GAPS_SHOWN:
        say(f"and {len(found) - _GAPS_SHOWN} more gaps: --json has them all")
    say(f"{missing} ticks between {first} and {last} were never received")


async def _gaps(database: DatabaseSettings, world: str) -> tuple[list[Gap], Any, Any]:
    from tickmind.cli.servers import open_database
    from tickmind.store import inspection

    async with open_database(database) as pool, pool.reading() as session:
        known = next(iter(await inspection.world_statuses(session, world)), None)
        if known is None:
            raise _unknown(world)
        return await inspection.gaps(session, world), known.first_tick, known.last_tick
