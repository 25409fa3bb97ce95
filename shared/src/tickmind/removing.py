"""A world or an agent taken away, and the vectors nobody uses any more, in short transactions.

Linking waits for each of them, and goes on in between. Whatever is interrupted may be begun again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.store import removal

__all__ = ["Writing", "collect", "collect_some", "delete"]

Writing = Callable[[], AbstractAsyncContextManager[AsyncSession]]

#: Rows deleted in one transaction, which linking waits for: memories with what hangs on them,
#: vectors, jobs looked through.
_AT_ONCE = 1000
#: Unused vectors looked for in one pass over the index: 20 MB of hashes.
_FOUND_AT_ONCE = 100_000


async def delete(
    writing: Writing,
    world: str,
    agent: str | None = None,
    *,
    told: Callable[[int], None] = lambda _: None,
    at_once: int = _AT_ONCE,
) -> bool:
    """Delete an agent, or a world, with all memories; whether there was one. `told`: of each
    chunk of memories that went, how many. What is recorded meanwhile goes with the rest."""
    async with writing() as session:
        ids = await removal.agent_ids(session, world, agent)
    for id_ in ids:
        tick: int | None = 0
        while tick is not None:
            async with writing() as session:
                gone = await removal.delete_some_memories(
                    session, id_, from_tick=tick, most=at_once
                )
            tick = gone.tick
            told(gone.memories)
    async with writing() as session:
        if agent is None:
            return await removal.delete_world(session, world)
        return await removal.delete_agent(session, world, agent)


async def collect(writing: Writing, *, at_once: int = _AT_ONCE) -> int:
    """Delete all vectors and jobs of texts that no memory holds; how many vectors."""
    last: removal.Text | None = (0, b"")
    while last is not None:
        async with writing() as session:
            last = await removal.collect_jobs(session, after=last, most=at_once)
    collected = 0
    while True:
        found, gone = await _collected(writing, most=_FOUND_AT_ONCE, at_once=at_once)
        collected += gone
        # None of so many: what is unused is so no more, or the spaces are being changed.
        if found < _FOUND_AT_ONCE or not gone:
            return collected


async def collect_some(writing: Writing, *, most: int) -> int:
    """Delete at most `most` vectors of texts no memory holds; how many. Nothing waits for it where
    there are none."""
    async with writing() as session:
        if not await removal.look_for_unused(session, most=1):
            return 0
    _, gone = await _collected(writing, most=most, at_once=most)
    return gone


async def _collected(writing: Writing, *, most: int, at_once: int) -> tuple[int, int]:
    """One pass: how many unused vectors were found, and how many of them are gone."""
    async with writing() as session:
        since = await removal.since_now(session)
    async with writing() as session:
        found = await removal.look_for_unused(session, most=most)
    gone = 0
    for first in range(0, len(found), at_once):
        async with writing() as session:
            gone += await removal.collect(session, since, found[first : first + at_once])
    return len(found), gone
