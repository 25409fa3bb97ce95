"""Waiting until a world's memory has reached a tick: one look at the database for all who wait."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError

from tickmind.database import Database
from tickmind.errors import TickmindError
from tickmind.memory import Watermarks
from tickmind.store.watermarks import watermarks

__all__ = ["Awaiting"]


#: A look takes 0.3 ms, and a recorder stores at most every 20 ms (its batches).
_LOOK_S = 0.02
#: A connection that takes longer is left for another.
_LOOK_MOST_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Waiter:
    world: str
    space_id: int
    tick: int
    embedded: bool
    reached: asyncio.Future[None]

    def told(self, marks: Watermarks) -> None:
        mark = marks.embedded if self.embedded else marks.recorded
        if mark is not None and mark >= self.tick and not self.reached.done():
            self.reached.set_result(None)


class Awaiting:
    """Looks while anybody waits, every `_LOOK_S`, one statement for each space asked about."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiters: set[_Waiter] = set()
        self._looking: asyncio.Task[None] | None = None

    async def reached(
        self, world: str, tick: int, *, space_id: int, embedded: bool, at_most_s: float
    ) -> bool:
        """Wait until the highest tick recorded, or embedded in that space, is `tick` or later, or
        the time is over. A database that does not answer is waited for as well."""
        if at_most_s <= 0:
            return False
        waiter = _Waiter(
            world=world,
            space_id=space_id,
            tick=tick,
            embedded=embedded,
            reached=asyncio.get_running_loop().create_future(),
        )
        self._waiters.add(waiter)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        try:
            async with asyncio.timeout(at_most_s):
                await waiter.reached
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True

    async def _look(self) -> None:
        try:
            while self._waiters:
                for space_id in {waiter.space_id for waiter in self._waiters}:
                    await self._look_at(space_id)
                await asyncio.sleep(_LOOK_S)
        finally:
            self._looking = None

    async def _look_at(self, space_id: int) -> None:
        waiters = [waiter for waiter in self._waiters if waiter.space_id == space_id]
        try:
            worlds = {waiter.world for waiter in waiters}
            async with asyncio.timeout(_LOOK_MOST_S), self._database.reading() as session:
                found = await watermarks(session, worlds, space_id=space_id)
        except (TickmindError, SQLAlchemyError, TimeoutError):
            return  # looked at again soon; the recall's own statements say more
        for waiter in waiters:
            if waiter.world in found:
                waiter.told(found[waiter.world])

    async def close(self) -> None:
        """End looking; who waits goes on without."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
