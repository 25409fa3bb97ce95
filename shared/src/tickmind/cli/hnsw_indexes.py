"""What the commands of `tickmind hnsw` do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import text

from tickmind.cli.output import note, progress
from tickmind.cli.servers import CommandFailed, open_database
from tickmind.database import Database, pgvector_version
from tickmind.settings import DatabaseSettings
from tickmind.store import hnsw
from tickmind.store.hnsw import Hnsw, Kept
from tickmind.store.spaces import Generation, active_generation
from tickmind.store.whom import whom

__all__ = [
    "PAYS_FROM",
    "Index",
    "added",
    "drop_those_of",
    "dropped",
    "listed",
    "note_superseded",
    "refreshed",
]

#: From so many memories on a recall by an index takes about half of what one by signatures takes,
#: or less, from `exactness` in benchmarks/NOTES.md.
PAYS_FROM = 50_000
#: While another makes or drops indexes, whether it has finished is looked up this often.
_LOOK_S = 0.1
#: Since when a search goes on until it has enough (`hnsw.iterative_scan`, pgvector's changelog).
_PGVECTOR = (0, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """An index, and whose it is, where that is known.

    `state`: `used`; `superseded`, of a generation that recalls do not use; `orphaned`, its agent is
    gone; `incomplete`, its making was interrupted. `newer`: memories that came since.
    """

    name: str
    state: Literal["used", "superseded", "orphaned", "incomplete"]
    size_bytes: int
    world: str | None = None
    agent: str | None = None
    generation_id: int | None = None
    before: int | None = None
    newer: int = 0


async def listed(settings: DatabaseSettings) -> list[Index]:
    """All there are. Raises CommandFailed."""
    async with open_database(settings) as pool:
        return await _listed(pool)


async def added(settings: DatabaseSettings, world: str, agent: str, *, force: bool) -> Index:
    """An agent's index, built over what it remembers now. Raises CommandFailed."""
    async with _changing(settings) as pool:
        await _require_pgvector(pool)
        generation = await _signed(pool)
        agent_id = await _agent_id(pool, world, agent, generation)
        made = await _built(pool, generation, agent_id, least=0 if force else PAYS_FROM)
        if made is None:
            raise CommandFailed(f"{agent} has no memory with a signature")
        (index,) = [index for index in await _listed(pool) if index.name == made.name]
        return index


async def refreshed(settings: DatabaseSettings) -> list[Index]:
    """All that are left, each over what its agent remembers now. Raises CommandFailed."""
    async with _changing(settings) as pool:
        await _require_pgvector(pool)
        generation = await _signed(pool)
        for index, kept in await _with_owners(pool):
            if kept.hnsw is None or index.state == "orphaned":
                await _drop(pool, index.name)
            elif index.state == "superseded" or index.newer:
                await _built(pool, generation, kept.hnsw.agent_id)
        return await _listed(pool)


async def dropped(settings: DatabaseSettings, world: str, agent: str) -> list[str]:
    """Names of an agent's indexes, which are gone. Raises CommandFailed."""
    async with _changing(settings) as pool:
        names = await _names_of(pool, world, agent)
        if not names:
            raise CommandFailed(f"{agent} of the world {world} has no HNSW index")
        for name in names:
            await _drop(pool, name)
        return names


async def note_superseded(settings: DatabaseSettings) -> None:
    """Say so where agents have an index that recalls do not use any more."""
    agents = [
        f"{index.agent} of {index.world}"
        for index in await listed(settings)
        if index.state == "superseded"
    ]
    if agents:
        note(f"HNSW indexes to be built anew by `tickmind hnsw refresh`: {', '.join(agents)}")


async def drop_those_of(pool: Database, world: str, agent: str | None) -> None:
    """Drop the indexes of an agent, or of a world's agents, that are about to be deleted: VACUUM
    would have to take each memory out of them. Where it cannot be done, says so and goes on."""
    names = await _names_of(pool, world, agent)
    if not names:
        return
    if pool.pgbouncer or not await _owns(pool):
        note(
            f"{', '.join(names)}: not dropped here; `tickmind hnsw refresh` does so, by the owner"
            " of the tables and not through PgBouncer"
        )
        return
    async with _alone(pool):
        for name in names:
            await _drop(pool, name)


@asynccontextmanager
async def _changing(settings: DatabaseSettings) -> AsyncIterator[Database]:
    """A database whose indexes we may make and drop, and nobody else meanwhile. Raises
    CommandFailed."""
    async with open_database(settings) as pool:
        if pool.pgbouncer:
            raise CommandFailed("indexes are made and dropped by a direct connection to PostgreSQL")
        await _require_owner(pool)
        async with _alone(pool):
            yield pool


@asynccontextmanager
async def _alone(pool: Database) -> AsyncIterator[None]:
    async with pool.reading() as session:
        taken = await hnsw.take_schema(session)
        if not taken:
            note("(waiting for a migration, or for another who makes or drops indexes)")
        while not taken:
            await asyncio.sleep(_LOOK_S)
            taken = await hnsw.take_schema(session)
        try:
            yield
        finally:
            await hnsw.let_schema_go(session)


async def _listed(pool: Database) -> list[Index]:
    return [index for index, _ in await _with_owners(pool)]


async def _with_owners(pool: Database) -> list[tuple[Index, Kept]]:
    found = []
    async with pool.reading() as session:
        active = await active_generation(session)
        for kept in await hnsw.kept(session):
            whose = await hnsw.whose(session, kept.hnsw) if kept.hnsw is not None else None
            index = Index(name=kept.name, size_bytes=kept.size_bytes, state="incomplete")
            if kept.hnsw is not None:
                of = kept.hnsw
                used = active is not None and active.id == of.generation_id
                index = Index(
                    name=kept.name,
                    size_bytes=kept.size_bytes,
                    state="orphaned" if whose is None else "used" if used else "superseded",
                    world=whose.world if whose is not None else None,
                    agent=whose.agent if whose is not None else None,
                    generation_id=of.generation_id,
                    before=of.before,
                    newer=whose.newer if whose is not None else 0,
                )
            found.append((index, kept))
    return found


async def _names_of(pool: Database, world: str, agent: str | None) -> list[str]:
    return [
        index.name
        for index in await _listed(pool)
        if index.world == world and agent in (None, index.agent)
    ]


async def _signed(pool: Database) -> Generation:
    """The generation that recalls use. Raises CommandFailed where it has no signatures."""
    async with pool.reading() as session:
        generation = await active_generation(session)
    if generation is None or not generation.signed:
        raise CommandFailed(
            "the recall index has no signatures yet: an embedder gives it some once there are 8192"
            " vectors, or `tickmind space reindex` does now"
        )
    return generation


async def _agent_id(pool: Database, world: str, agent: str, generation: Generation) -> int:
    async with pool.reading() as session:
        found = await whom(session, world, [agent], space_id=generation.space_id)
    if agent not in found.agents:
        raise CommandFailed(f"the world {world} has no agent named {agent}")
    return found.agents[agent]


async def _built(
    pool: Database, generation: Generation, agent_id: int, *, least: int = 0
) -> Hnsw | None:
    """The agent's index anew, in the place of those it had; None: there is nothing to index. Raises
    CommandFailed where there is less than `least`."""
    async with pool.reading() as session:
        rows, wanted = await hnsw.extent(session, generation.id, agent_id)
    if rows < least:
        raise CommandFailed(
            f"the agent has {rows} memories with a signature: below {least} ranking by signatures"
            " alone costs hardly more; --force builds an index all the same"
        )
    if wanted is not None:
        with progress(f"Indexing {rows} memories"):
            async with pool.reading() as session:
                await hnsw.build(session, wanted, rows)
    async with pool.reading() as session:
        others = [
            kept.name
            for kept in await hnsw.kept(session)
            if kept.hnsw is not None and kept.hnsw.agent_id == agent_id and kept.hnsw != wanted
        ]
    for name in others:
        await _drop(pool, name)
    return wanted


async def _drop(pool: Database, name: str) -> None:
    async with pool.reading() as session:
        await hnsw.drop(session, name)


_OWNS = text("""
    SELECT pg_has_role(relowner, 'USAGE') FROM pg_class
    WHERE oid = CAST('recall_index' AS regclass)
""")


async def _owns(pool: Database) -> bool:
    async with pool.reading() as session:
        return bool((await session.execute(_OWNS)).scalar_one())


async def _require_owner(pool: Database) -> None:
    if not await _owns(pool):
        raise CommandFailed(
            "only the owner of the tables makes and drops indexes: name the database user that"
            " runs `tickmind migrate`"
        )


async def _require_pgvector(pool: Database) -> None:
    async with pool.reading() as session:
        version = await (await session.connection()).run_sync(pgvector_version)
    if version is None or version < _PGVECTOR:
        found = ".".join(map(str, version or ("none",)))
        raise CommandFailed(
            f"an HNSW index needs pgvector 0.8 or newer, this database has {found}: update it with"
            " ALTER EXTENSION vector UPDATE"
        )
