"""What `tickmind space reindex` does: it builds, or waits for who does."""

from __future__ import annotations

import asyncio

from tickmind.cli.output import progress
from tickmind.cli.servers import CommandFailed, open_database
from tickmind.cli.spaces import the_active
from tickmind.database import Database
from tickmind.reindexing import Reindexing, Taken, Told
from tickmind.settings import DatabaseSettings
from tickmind.store.changing import SpaceState

__all__ = ["reindexed"]

#: While another builds, whether it has finished is looked up this often.
_LOOK_S = 0.5


async def reindexed(settings: DatabaseSettings) -> SpaceState | None:
    """The active space with its new generation; None: too few vectors to know a mean by.

    Raises CommandFailed where there is no space.
    """
    async with open_database(settings) as pool:
        before = await the_active(pool)
        if before is None:
            raise CommandFailed("no space is active yet: the first embedder makes one")
        with progress("Reindexing", total=before.indexed) as bar:

            def told(so_far: Told) -> None:
                bar.to(min(so_far.done, before.indexed), about=f"{so_far.step}: {so_far.done}")

            reindexing = Reindexing(pool.writing, told=told)
            try:
                if await reindexing.build() is None:
                    return None
            except Taken:
                await _until_another(pool, before)
        return await the_active(pool)


async def _until_another(pool: Database, before: SpaceState) -> None:
    """Wait until another process has built what we wanted. Raises CommandFailed where it stopped,
    or the space was changed."""
    while True:
        now = await the_active(pool)
        if now is None or now.id != before.id:
            raise CommandFailed("the space that recalls use was changed meanwhile: try again")
        if now.generation_id != before.generation_id:
            return
        if not now.building:
            raise CommandFailed("another process was at the recall index just now: try again")
        await asyncio.sleep(_LOOK_S)
