"""The recall index built anew, in the background: step by step, by whoever holds the lease.

Every step is one short transaction and may be done twice, so a process that dies costs nothing but
time: the next goes on where it finds the database. The lease is a row with a time on it; should
two build at once all the same, they do the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from uuid import uuid4

import numpy as np
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.database_errors import DatabaseUnavailable
from tickmind.store import building, dropping
from tickmind.store.building import Build
from tickmind.store.signing import Signers

__all__ = ["KEPT_S", "Reindexing", "Taken", "Told"]

_TASK = "reindex"
#: A builder that died holds others up for so long. Kept with each step (measured below a second).
_LEASE_S = 30.0
#: Longest that giving it back may hold an ending process up.
_LET_GO_S = 2.0
#: Vectors signed in one transaction: 1536 wide, 0.1 s of arithmetic and 6 MB.
_SIGNED_AT_ONCE = 1000
#: Index rows copied, or deleted, in one transaction, which deleting an agent waits for (measured:
#: 0.1 s on two busy cores).
_ROWS_AT_ONCE = 2000
#: A generation whose place was taken is kept while a recall that has begun may still ask it: none
#: has a longer deadline.
KEPT_S = 60.0


class Taken(Exception):
    """Another process builds, or has just finished what we were at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """How far it is: so many of this step are done."""

    step: str
    done: int


class Reindexing:
    """Builds over the space that recalls use. Every method may run twice; all raise
    DatabaseUnavailable, and Taken where another is at it.

    `share`: of the time that is worked at most; the rest is left to recalls and the recorder.
    """

    def __init__(
        self,
        writing: Callable[[], AbstractAsyncContextManager[AsyncSession]],
        *,
        share: float = 1.0,
        told: Callable[[Told], None] = lambda _: None,
    ) -> None:
        self._writing = writing
        self._share = share
        self._told = told
        self._token = uuid4()
        self._signers = Signers()

    async def current(self) -> Build | None:
        """How it stands now."""
        async with self._writing() as session:
            return await building.current_build(session)

    async def build(self, *, least: int = 0) -> Build | None:
        """Build a generation, or go on with one, and have recalls answered from it; the one that
        they were answered from, and the new one. None: there are fewer than `least` distinct
        vectors, or too few to know a mean by."""
        try:
            build = await self._begun(least)
            if build is None or build.building_id is None:
                return None
            while True:
                await self._sign(build, build.building_id)
                await self._copy(build)
                await self._resign(build.building_id)
                if await self._activated(build):
                    return build
        finally:
            await self._let_go()

    async def _begun(self, least: int) -> Build | None:
        async with self._writing() as session:
            build = await building.current_build(session)
            if build is None:
                return None
            known = await building.distinct_vectors(session, build.space_id, most=least)
        if known < least and build.building_id is None:
            return None
        async with self._writing() as session:
            await self._hold(session)
        async with self._writing() as session:
            # From the machine's own entropy: what was drawn is kept, nobody draws it again.
            return await building.begin_build(session, np.random.default_rng())

    async def _activated(self, build: Build) -> bool:
        """False: there is more to do. Raises Taken."""
        async with self._writing() as session:
            await self._hold(session)
            if await building.activate_build(session, build):
                return True
            if await building.current_build(session) != build:
                raise Taken
            return False

    async def tend(self, build: Build) -> None:
        """Sign what a release without signatures left unsigned in the active generation."""
        try:
            await self._sign(build, build.active_id)
            await self._resign(build.active_id)
        finally:
            await self._let_go()

    async def drop_superseded(self) -> int:
        """Delete generations whose place was taken, in short transactions; how many."""
        async with self._writing() as session:
            if not await dropping.superseded(session, kept_s=KEPT_S):
                return 0
        try:
            async with self._writing() as session:
                await self._hold(session)
            async with self._writing() as session:
                ids = await dropping.begin_drop_of_superseded(session, kept_s=KEPT_S)
            for id_ in ids:
                await self._drop(id_)
            return len(ids)
        finally:
            await self._let_go()

    async def _drop(self, generation_id: int) -> None:
        for first in (0, b""):
            after: int | bytes | None = first

            async def step(session: AsyncSession) -> int:
                nonlocal after
                assert after is not None
                after = await dropping.delete_some_of_generation(
                    session, generation_id, after=after, most=_ROWS_AT_ONCE
                )
                return 0 if after is None else _ROWS_AT_ONCE

            await self._all("dropping", step)
        async with self._writing() as session:
            await dropping.delete_generation(session, generation_id)

    async def _sign(self, build: Build, generation_id: int) -> None:
        after = b""

        async def step(session: AsyncSession) -> int:
            nonlocal after
            seen, after = await building.sign_some(
                session, self._signers, build, generation_id, after=after, most=_SIGNED_AT_ONCE
            )
            return seen

        await self._all("signing", step)

    async def _copy(self, build: Build) -> None:
        after = 0

        async def step(session: AsyncSession) -> int:
            nonlocal after
            seen, _, after = await building.copy_some(
                session, build, after=after, most=_ROWS_AT_ONCE
            )
            return seen

        await self._all("copying", step)

    async def _resign(self, generation_id: int) -> None:
        after = 0

        async def step(session: AsyncSession) -> int:
            nonlocal after
            seen, after = await building.resign_some(
                session, generation_id, after=after, most=_ROWS_AT_ONCE
            )
            return seen

        await self._all("completing", step)

    async def _all(self, name: str, step: Callable[[AsyncSession], Awaitable[int]]) -> None:
        """Steps, each a transaction, until one has found nothing."""
        loop = asyncio.get_running_loop()
        done = 0
        while True:
            begun = loop.time()
            async with self._writing() as session:
                await self._hold(session)
                found = await step(session)
            if not found:
                return
            done += found
            self._told(Told(step=name, done=done))
            await asyncio.sleep((loop.time() - begun) * (1 / self._share - 1))

    async def _hold(self, session: AsyncSession) -> None:
        """Raises Taken."""
        if not await building.hold_lease(session, _TASK, self._token, lease_s=_LEASE_S):
            raise Taken

    async def _let_go(self) -> None:
        """For the next; where the database does not take it, the lease runs out."""
        with contextlib.suppress(TimeoutError, DatabaseUnavailable):
            async with asyncio.timeout(_LET_GO_S), self._writing() as session:
                await building.let_go(session, _TASK, self._token)
