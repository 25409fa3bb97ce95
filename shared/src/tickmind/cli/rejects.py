"""`rejects` and `parked`: what was refused or given up on, and what a person decides about it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tickmind.cli.output import examples

if TYPE_CHECKING:
    from tickmind.settings import BrokerSettings, DatabaseSettings
    from tickmind.store.inspection import ParkedText, RejectedInput

__all__ = ["register"]

_PANEL = "Look after it"

_REJECTS_EXAMPLE = examples(
    "tickmind rejects list --world town-7",
    "tickmind rejects retry 12 13",
    "tickmind rejects drop --all --yes",
)
_PARKED_EXAMPLE = examples(
    "tickmind parked list",
    "tickmind parked retry --all",
    "tickmind parked drop 9f86d081 --yes",
)

#: Rejects read at once for a retry: each holds up to 1 MiB.
_AT_ONCE = 20
#: As many characters of a hash as a table shows; any unambiguous beginning names a text.
_HASH_SHOWN = 12
#: More parked texts than a person could name.
_MOST_PARKED = 1_000_000

Ids = Annotated[list[int] | None, typer.Argument(metavar="ID", help="As `list` shows them.")]
Hashes = Annotated[list[str] | None, typer.Argument(metavar="ID", help="As `list` shows them.")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
World = Annotated[str | None, typer.Option(metavar="WORLD", help="Of this world only.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]
Most = Annotated[int, typer.Option(min=1, help="Show at most so many, oldest first.")]


def register(app: typer.Typer) -> None:
    """Add both groups."""
    rejects = typer.Typer(no_args_is_help=True, epilog=_REJECTS_EXAMPLE)
    rejects.command("list", epilog=_REJECTS_EXAMPLE)(rejects_list)
    rejects.command("retry", epilog=_REJECTS_EXAMPLE)(rejects_retry)
    rejects.command("drop", epilog=_REJECTS_EXAMPLE)(rejects_drop)
    parked = typer.Typer(no_args_is_help=True, epilog=_PARKED_EXAMPLE)
    parked.command("list", epilog=_PARKED_EXAMPLE)(parked_list)
    parked.command("retry", epilog=_PARKED_EXAMPLE)(parked_retry)
    parked.command("drop", epilog=_PARKED_EXAMPLE)(parked_drop)
    about = "Input that was refused, kept with its reason: list, retry, drop."
    app.add_typer(rejects, name="rejects", help=about, rich_help_panel=_PANEL)
    about = "Texts that could not be embedded, kept with their reason: list, retry, drop."
    app.add_typer(parked, name="parked", help=about, rich_help_panel=_PANEL)


def rejects_list(world: World = None, most: Most = 100, as_json: Json = False) -> None:
    """List refused messages and decisions with their reasons, oldest first."""
    from tickmind.cli.output import ago, print_json, say, table
    from tickmind.cli.servers import database_settings

    found, total = asyncio.run(_rejects(database_settings(), world, most))
    if as_json:
        print_json([_reject_json(row) for row in found])
        return
    if not found:
        say("nothing was rejected" + (f" in {world}" if world else ""))
        return
    rows = [
        [row.id, ago(row.last_received), row.times, row.world, row.detail, _excerpt(row.body)]
        for row in found
    ]
    say(table(["id", "last", "times", "world", "why", "what"], rows, wide="what"))
    if total > len(found):
        say(f"{total - len(found)} more: see --most")


async def _rejects(
    settings: DatabaseSettings, world: str | None, most: int
) -> tuple[list[RejectedInput], int]:
    from tickmind.cli.servers import open_database
    from tickmind.store import inspection

    async with open_database(settings) as pool, pool.reading() as session:
        found = await inspection.rejects(session, world=world, most=most)
        return found, len(await inspection.reject_ids(session, world))


def _excerpt(body: bytes, length: int = 200) -> str:
    text = body[: length * 4].decode(errors="replace")
    return text if len(text) <= length and len(body) <= length * 4 else text[:length] + "…"


def _reject_json(row: RejectedInput) -> dict[str, Any]:
    """The body as text, or in base64 where it is not UTF-8."""
    from base64 import b64encode

    shown = asdict(row)
    body = shown.pop("body")
    try:
        return {**shown, "body": body.decode()}
    except UnicodeDecodeError:
        return {**shown, "body": None, "body_base64": b64encode(body).decode()}


def rejects_retry(
    ids: Ids = None, every: All = False, world: World = None, as_json: Json = False
) -> None:
    """Publish refused input again, as it came. What is refused again comes back to the list.

    A message that was too large is kept in part only, and stays.
    """
    from tickmind.cli.output import print_json, say
    from tickmind.cli.servers import broker_settings, database_settings

    _named(ids, every)
    sent = asyncio.run(_retry_rejects(database_settings(), broker_settings(), ids, world))
    if as_json:
        print_json({"retried": sent})
    else:
        say(f"{sent} published again; what is refused again comes back to `tickmind rejects list`")


async def _retry_rejects(
    database: DatabaseSettings, broker: BrokerSettings, ids: list[int] | None, world: str | None
) -> int:
    from tickmind.cli.output import note, progress
    from tickmind.cli.republishing import republishing
    from tickmind.cli.servers import open_database
    from tickmind.errors import MessageTooLarge
    from tickmind.store import inspection

    sent = 0
    async with open_database(database) as pool, republishing(broker) as republish:
        # Those there are now: what is refused again meanwhile is not sent once more.
        wanted = await _existing(pool, ids, world)
        with progress("Publishing again", total=len(wanted)) as bar:
            for first in range(0, len(wanted), _AT_ONCE):
                async with pool.reading() as session:
                    rows = await inspection.rejects(session, ids=wanted[first : first + _AT_ONCE])
                for row in rows:
                    if row.reason == MessageTooLarge.reason:
                        note(f"reject {row.id} stays: {row.detail}")
                        continue
                    await republish(row)
                    async with pool.writing() as session:
                        await inspection.forget_retried(session, [row])
                    sent += 1
                    bar.to(sent)
    return sent


async def _existing(pool: Any, ids: list[int] | None, world: str | None) -> list[int]:
    """The rejects that are meant. Raises CommandFailed for one that is not there."""
    from tickmind.cli.servers import CommandFailed
    from tickmind.store import inspection

    async with pool.reading() as session:
        there = await inspection.reject_ids(session, world)
    if not ids:
        return there
    missing = sorted(set(ids) - set(there))
    if missing:
        listed = ", ".join(map(str, missing))
        raise CommandFailed(f"no such reject: {listed}; `tickmind rejects list` shows those left")
    return sorted(set(ids))


def rejects_drop(
    ids: Ids = None,
    every: All = False,
    world: World = None,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Forget refused input for good; asks first."""
    from tickmind.cli.output import print_json, say
    from tickmind.cli.servers import database_settings

    _named(ids, every)
    dropped = asyncio.run(_drop_rejects(database_settings(), ids, world, yes))
    if dropped is None:
        return 1
    if as_json:
        print_json({"dropped": dropped})
    else:
        say(f"{dropped} rejects dropped")
    return 0


async def _drop_rejects(
    settings: DatabaseSettings, ids: list[int] | None, world: str | None, yes: bool
) -> int | None:
    from tickmind.cli.asking import agreed
    from tickmind.cli.servers import open_database
    from tickmind.store import inspection

    async with open_database(settings) as pool:
        wanted = await _existing(pool, ids, world)
        if wanted and not agreed(f"Forget {len(wanted)} rejects for good?", yes=yes):
            return None
        async with pool.writing() as session:
            return await inspection.drop_rejects(session, wanted)


def parked_list(most: Most = 100, as_json: Json = False) -> None:
    """List texts that were given up on, why, and how many memories wait for each."""
    from tickmind.cli.output import ago, print_json, say, table
    from tickmind.cli.servers import database_settings

    found = asyncio.run(_parked(database_settings(), most))
    if as_json:
        print_json([asdict(row) for row in found])
        return
    if not found:
        say("nothing is parked")
        return
    rows = [
        [row.hash[:_HASH_SHOWN], ago(row.parked_at), row.attempts, row.memories, row.reason,
         (row.content or "")[:200]]
        for row in found
    ]  # fmt: skip
    say(table(["id", "parked", "attempts", "memories", "why", "text"], rows, wide="text"))
    if len(found) == most:
        say("there may be more: see --most")


async def _parked(settings: DatabaseSettings, most: int) -> list[ParkedText]:
    from tickmind.cli.servers import open_database
    from tickmind.store import inspection

    async with open_database(settings) as pool, pool.reading() as session:
        return await inspection.parked_texts(session, most=most)


def parked_retry(hashes: Hashes = None, every: All = False, as_json: Json = False) -> None:
    """Have parked texts embedded again, from the first attempt."""
    from tickmind.cli.output import print_json, say
    from tickmind.cli.servers import database_settings

    _named(hashes, every)
    retried = asyncio.run(_retry_parked(database_settings(), hashes))
    if as_json:
        print_json({"retried": retried})
    else:
        say(f"{retried} texts are to be embedded again")


async def _retry_parked(settings: DatabaseSettings, hashes: list[str] | None) -> int:
    from tickmind.cli.servers import open_database
    from tickmind.store import inspection

    async with open_database(settings) as pool:
        wanted = await _whole(pool, hashes)
        async with pool.writing() as session:
            return await inspection.retry_parked(session, wanted)


def parked_drop(
    hashes: Hashes = None, every: All = False, yes: Yes = False, as_json: Json = False
) -> int:
    """Give up on parked texts for good; asks first. Their memories stay, ranked below all."""
    from tickmind.cli.output import print_json, say
    from tickmind.cli.servers import database_settings

    _named(hashes, every)
    dropped = asyncio.run(_drop_parked(database_settings(), hashes, yes))
    if dropped is None:
        return 1
    if as_json:
        print_json({"dropped": dropped})
    else:
        say(f"{dropped} texts given up on")
    return 0


async def _drop_parked(
    settings: DatabaseSettings, hashes: list[str] | None, yes: bool
) -> int | None:
    from tickmind.cli.asking import agreed
    from tickmind.cli.servers import open_database
    from tickmind.store import removal

    async with open_database(settings) as pool:
        wanted = await _whole(pool, hashes)
        question = f"Never embed {len(wanted)} texts? Their memories stay, ranked below all others."
        if wanted and not agreed(question, yes=yes):
            return None
        async with pool.writing() as session:
            return await removal.give_up_parked(session, wanted)


async def _whole(pool: Any, beginnings: list[str] | None) -> list[str]:
    """The parked texts that are meant, each by an unambiguous beginning. Raises CommandFailed."""
    from tickmind.cli.servers import CommandFailed
    from tickmind.store import inspection

    async with pool.reading() as session:
        parked = await inspection.parked_texts(session, most=_MOST_PARKED)
    there = {row.hash for row in parked}  # one may be parked in two spaces
    if not beginnings:
        return sorted(there)
    meant = set()
    for beginning in beginnings:
        found = [hash_ for hash_ in there if hash_.startswith(beginning.lower())]
        if len(found) != 1:
            many = f"{len(found)} parked texts begin" if found else "no parked text begins"
            raise CommandFailed(f"{many} with {beginning}; see `tickmind parked list`")
        meant.add(found[0])
    return sorted(meant)


def _named(ids: Sequence[object] | None, every: bool) -> None:
    """Either ids or --all: neither by accident. Raises BadParameter."""
    if bool(ids) == every:
        raise typer.BadParameter("name ids, or say --all", param_hint="ID")
