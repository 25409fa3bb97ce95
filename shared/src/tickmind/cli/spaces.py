"""What `tickmind space` does to the database."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import typer

from tickmind.cli.asking import agreed
from tickmind.cli.output import note, progress
from tickmind.cli.servers import CommandFailed, open_database
from tickmind.database import Database
from tickmind.errors import ConfigurationError
from tickmind.pieces import split
from tickmind.removing import collect
from tickmind.serving import ExplicitSettings, name_of, served_by, space_of
from tickmind.settings import DatabaseSettings, EmbeddingSettings, load
from tickmind.store import changing, dropping
from tickmind.store.changing import SpaceState

__all__ = [
    "activated",
    "added",
    "collected",
    "dropped",
    "filled",
    "find",
    "listed",
    "settings_to_add",
    "the_active",
]

_PREFIX = "embedding_"
#: Memories marked in one transaction, which linking waits for (measured: 5,000 take 0.25 s on two
#: busy cores).
_MARKED_AT_ONCE = 5000
#: Rows of each table deleted in one transaction.
_DELETED_AT_ONCE = 5000
#: Between two looks at how far it is.
_LOOK_S = 0.5
#: A person should look where nothing has moved for so long.
_STALLED_S = 60.0
#: A memory this young may be on its way into a space and is no reason to put its activation off:
#: a world that is being recorded always has some.
FRESH_S = 30.0
#: Retrievers look at the active generation every 2 s: only then the one before may go.
FOLLOWED_S = 5.0


async def listed(settings: DatabaseSettings) -> list[SpaceState]:
    async with open_database(settings) as pool:
        return await _states(pool)


async def _states(pool: Database) -> list[SpaceState]:
    async with pool.reading() as session:
        return await changing.space_states(session)


async def find(pool: Database, named: str | None) -> SpaceState:
    """The space that is meant, by its id or its model; None: the one that is being filled.

    Raises CommandFailed.
    """
    states = await _states(pool)
    if named is None:
        found = [state for state in states if state.status == "building"]
        what = "being filled"
    else:
        found = [state for state in states if named == str(state.id)]
        found = found or [state for state in states if named == state.model]
        what = f"named {named}"
    if len(found) == 1:
        return found[0]
    if found:
        raise CommandFailed(
            f"{len(found)} spaces are {what}: name one by its id, see `tickmind space list`"
        )
    raise CommandFailed(f"no space is {what}; see `tickmind space list`")


async def the_active(pool: Database) -> SpaceState | None:
    return next((state for state in await _states(pool) if state.status == "active"), None)


async def _now(pool: Database, space_id: int) -> SpaceState:
    """A space as it is now. Raises CommandFailed."""
    for state in await _states(pool):
        if state.id == space_id:
            return state
    raise CommandFailed(f"space {space_id} was dropped meanwhile")


def settings_to_add(
    profile: str | None, given: Mapping[str, Any], more: Sequence[str] | None
) -> EmbeddingSettings:
    """The provider of a new space: of a profile, or of the environment, and what is said besides.

    Raises ConfigurationError and BadParameter.
    """
    values = {_PREFIX + name: value for name, value in given.items() if value is not None}
    for each in more or ():
        name, equals, value = each.partition("=")
        field = _PREFIX + name.strip().lower()
        if not equals or field not in EmbeddingSettings.model_fields or "api_key" in field:
            # Not the value: it may be a key.
            raise typer.BadParameter(
                f"{name}: NAME=VALUE is needed, of a setting other than a key", param_hint="--set"
            )
        values[field] = value
    if profile is None:
        settings = load(EmbeddingSettings, **values)
    else:
        settings = load(ExplicitSettings, embedding_profile=profile, **values)
    split(
        "", max_chars=settings.embedding_max_chars, overlap_chars=settings.embedding_overlap_chars
    )
    url = urlsplit(settings.embedding_base_url)
    if url.scheme not in ("http", "https") or not url.hostname or served_by(settings) is None:
        msg = "the endpoint must look like https://host/v1, without a password in it"
        raise ConfigurationError(msg)
    return settings


async def added(database: DatabaseSettings, settings: EmbeddingSettings) -> tuple[SpaceState, int]:
    """The space as it is now, and how many memories are to be embedded for it."""
    async with open_database(database) as pool:
        async with pool.writing() as session:
            id_, status = await changing.add_space(session, space_of(settings), served_by(settings))
        if status == "dropping":
            msg = f"space {id_} is being dropped: `tickmind space drop {id_}` first, to its end"
            raise CommandFailed(msg)
        marked, _ = await _mark(pool, id_)
        return await _now(pool, id_), marked


async def _mark(pool: Database, space_id: int) -> tuple[int, int]:
    """Mark what a space is missing; how many memories that were, and the highest id seen."""
    marked = after = 0
    with progress("Marking") as bar:
        while True:
            async with pool.writing() as session:
                chunk = await changing.mark_missing(
                    session, space_id, after=after, most=_MARKED_AT_ONCE
                )
            marked, after = marked + chunk.marked, chunk.highest
            if not chunk.seen:
                return marked, after
            bar.to(0, about=f"{marked} memories")


async def filled(
    database: DatabaseSettings, named: str | None, *, wait: bool
) -> tuple[SpaceState, int]:
    """The space as it is now, and how many memories were missing. Raises CommandFailed."""
    async with open_database(database) as pool:
        state = await find(pool, named)
        marked, until = await _fill(pool, state)
        if wait:
            await _until_filled(pool, state, until)
        return await _now(pool, state.id), marked


async def _fill(pool: Database, state: SpaceState) -> tuple[int, int]:
    if state.status == "dropping":
        raise CommandFailed(f"space {state.id} is being dropped")
    if state.status == "retired":
        async with pool.writing() as session:
            await changing.refill(session, state.id)
    return await _mark(pool, state.id)


async def _until_filled(pool: Database, state: SpaceState, until: int) -> None:
    """Wait until the memories of before have their vectors, or were given up on."""
    loop = asyncio.get_running_loop()
    least, moved_at = None, loop.time()
    total = None
    with progress("Embedding") as bar:
        while True:
            async with pool.reading() as session:
                left = await changing.waiting(session, state.id, until=until)
            if not left:
                await _now(pool, state.id)  # its rows may have gone with it
                return
            total = max(left, total or 0)
            bar.to(total - left, total, about=f"{total - left} of {total} memories")
            if least is None or left < least:
                least, moved_at = left, loop.time()
            elif loop.time() - moved_at > _STALLED_S:
                moved_at = loop.time()
                note(
                    f"nothing was embedded for {_STALLED_S:g} s, {left} memories wait: is an"
                    " embedder running, and what does its /readyz say?"
                )
            await asyncio.sleep(_LOOK_S)


async def activated(
    database: DatabaseSettings, named: str, *, force: bool
) -> tuple[SpaceState | None, SpaceState]:
    """The space before, None where it was this one, and the one that is active now.

    Raises CommandFailed where recalls would forget something, unless forced.
    """
    async with open_database(database) as pool:
        state = await find(pool, named)
        before = await the_active(pool)
        if before is None or before.id == state.id:
            return None, state
        was_used = state.status == "retired"
        _, until = await _fill(pool, state)
        if was_used and not force:
            note(
                f"space {state.id} gets what came since it was last used; Ctrl-C leaves it so, and"
                " --force does not wait"
            )
            await _until_filled(pool, state, until)
        async with pool.writing() as session:
            behind = await changing.behind(session, state.id, fresh_s=FRESH_S)
            if behind.overdue and not force:
                given_up = f", {behind.parked} of them given up on" if behind.parked else ""
                raise CommandFailed(
                    f"{behind.memories} memories that recalls find now are not in space"
                    f" {state.id} yet{given_up}: `tickmind space backfill {state.id}` waits for"
                    " them, --force does without"
                )
            if not await changing.activate(session, state.id):
                raise CommandFailed(f"space {state.id} was changed by someone else: try again")
        if behind.memories:
            note(f"{behind.memories} memories are not in it yet, and follow")
        return before, await _now(pool, state.id)


async def dropped(database: DatabaseSettings, named: str, *, yes: bool) -> SpaceState | None:
    """The space as it was; None: the person said no. Raises CommandFailed."""
    async with open_database(database) as pool:
        state = await find(pool, named)
        refused = CommandFailed(
            f"recalls use space {state.id}: activate another first, then drop this one"
        )
        if state.status == "active":
            raise refused
        question = (
            f"Drop space {state.id}, {name_of(state.space)}, with {state.indexed} indexed memories"
            f" and {state.embeddings} vectors? To have it back costs them again."
        )
        if not agreed(question, yes=yes):
            return None
        async with pool.reading() as session:
            since_s = await dropping.since_activation_s(session)
        if since_s is not None and state.status == "retired":
            await asyncio.sleep(max(0.0, FOLLOWED_S - since_s))
        async with pool.writing() as session:
            if not await dropping.begin_drop(session, state.id):
                raise refused
        rows = 0
        with progress("Dropping", total=state.indexed + state.embeddings) as bar:
            while True:
                async with pool.writing() as session:
                    gone = await dropping.delete_some(session, state.id, most=_DELETED_AT_ONCE)
                if not gone:
                    break
                rows += gone
                bar.to(rows)
        async with pool.writing() as session:
            await dropping.delete_space(session, state.id)
        return state


async def collected(database: DatabaseSettings) -> int:
    """How many vectors were deleted."""
    async with open_database(database) as pool:
        return await collect(pool.writing)
