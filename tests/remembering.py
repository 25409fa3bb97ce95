"""Memories put into a database as the recorder stores them, and embedders driven by hand."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.database import Database
from tickmind.embedding import Embedder
from tickmind.identity import content_hash
from tickmind.memory import Memory
from tickmind.serving import space_of
from tickmind.settings import DatabaseSettings
from tickmind.signature import Signer, new_basis
from tickmind.store import building
from tickmind.store.embedding import store_vectors
from tickmind.store.inspection import Audit, audit
from tickmind.store.locking import hold_worlds
from tickmind.store.recall_signature import Prefilter
from tickmind.store.recording import (
    AgentId,
    Receipt,
    ensure_agents,
    ensure_worlds,
    insert_memories,
    insert_receipts,
)
from tickmind.store.signing import Signers
from tickmind.store.spaces import Generation, Space, ensure_space
from tickmind_embedder.handler import Handler, Metrics
from tickmind_embedder.settings import EmbedderSettings

__all__ = [
    "audited",
    "counted",
    "drained",
    "embedder_settings",
    "handling",
    "insert",
    "known",
    "leases_run_out",
    "made",
    "remember",
    "signed",
]


async def remember(database: Database, contents: Sequence[str], **options: Any) -> None:
    """Store one memory for each text, committed; options as `insert` has them."""
    async with database.writing() as session:
        await insert(session, contents, **options)


async def insert(
    session: AsyncSession,
    contents: Sequence[str],
    *,
    world: str = "town",
    agent: str = "alice",
    tick: int | Sequence[int] = 1,
    importance: int | Sequence[int] = 5,
    kind: str | Sequence[str] = "observation",
    core: bool = False,
) -> None:
    """As the recorder's transaction does it: memories with what is pending, and the receipt."""
    count = len(contents)
    ticks = [tick] * count if isinstance(tick, int) else list(tick)
    importances = [importance] * count if isinstance(importance, int) else list(importance)
    kinds = [kind] * count if isinstance(kind, str) else list(kind)
    worlds = await ensure_worlds(session, [world])
    await hold_worlds(session, worlds.values())
    agents = await ensure_agents(session, [(worlds[world], agent)])
    who = AgentId(id=agents[worlds[world], agent], world_id=worlds[world])
    rows: list[tuple[AgentId, int | None, Memory]] = [
        (
            who,
            None,
            Memory(
                world=world,
                agent=agent,
                tick=ticks[place],
                kind=kinds[place],
                content=content,
                importance=importances[place],
                event_key=os.urandom(16),
                is_core=core,
            ),
        )
        for place, content in enumerate(contents)
    ]
    await insert_memories(session, rows)
    await insert_receipts(
        session,
        [Receipt(world_id=worlds[world], tick=at, decisions=1, sim_time=None) for at in set(ticks)],
    )


async def known(
    database: Database, vectors: dict[str, NDArray[np.float32]], space: Space
) -> Generation:
    """Give texts these vectors, linking whoever remembers them; the generation they are in."""
    async with database.writing() as session:
        generation = await ensure_space(session, space)
        hashed = {content_hash(content): vector for content, vector in vectors.items()}
        await store_vectors(session, generation.space_id, hashed)
    return generation


async def signed(database: Database, generation: Generation, *, most: int = 200) -> Prefilter:
    """Give a generation signatures, by its mean, as if it had been built with them; what ranks the
    best `most` candidates by them."""
    assert generation.mean is not None
    basis = new_basis(generation.space.dimensions, np.random.default_rng(7))
    async with database.writing() as session:
        await session.execute(
            text("UPDATE index_generation SET mean = :mean, basis = :basis WHERE id = :id"),
            {"mean": generation.mean.astype("<f4").tobytes(), "basis": basis, "id": generation.id},
        )
        build = await building.current_build(session)
        assert build is not None
        for step in (
            building.sign_some(session, Signers(), build, generation.id, after=b"", most=1_000_000),
            building.resign_some(session, generation.id, after=0, most=1_000_000),
        ):
            await step
    return Prefilter(signer=Signer(generation.mean, basis), most=most)


def embedder_settings(
    database: DatabaseSettings, base_url: str | None = None, **options: Any
) -> EmbedderSettings:
    """Settings of an embedder without a broker; vectors of 64, from hashes or from `base_url`."""
    given: dict[str, Any] = {
        "database_url": database.database_url,
        "embedding_dimensions": 64,
        "embedding_provider": "hash" if base_url is None else "openai",
        "embedding_model": "test",
        "embedder_listen": False,
        "health_port": 0,
    }
    if base_url is not None:
        given["embedding_base_url"] = base_url
    return EmbedderSettings(**(given | options))


async def made(database: Database, settings: EmbedderSettings) -> Generation:
    """The active generation, as an embedder makes it in a database that has none."""
    async with database.writing() as session:
        return await ensure_space(session, space_of(settings))


@asynccontextmanager
async def handling(
    database: Database, settings: EmbedderSettings, *, registry: CollectorRegistry | None = None
) -> AsyncIterator[Handler]:
    """A handler to be driven by hand, of a space that is made where there is none."""
    await made(database, settings)
    async with Embedder(settings) as embedder:
        yield Handler(
            database,
            embedder,
            Metrics(registry or CollectorRegistry()),
            lease_s=settings.embedder_lease_s,
            max_attempts=settings.embedder_max_attempts,
        )


async def drained(handler: Handler) -> None:
    """Sweep, claim and embed until nothing can be claimed; ProviderPaused as it comes."""
    await handler.sweep(full=True)
    while jobs := await handler.claim():
        await handler.embed(jobs)


async def leases_run_out(database: Database) -> None:
    """As if as long had passed as whoever holds jobs may hold them."""
    async with database.writing() as session:
        await session.execute(
            text("UPDATE embedding_job SET lease_until = clock_timestamp() - interval '1 s'")
        )


async def audited(database: Database) -> Audit:
    async with database.reading() as session:
        return await audit(session)


async def counted(database: Database, what: str, **parameters: Any) -> int:
    """`counted(database, "embedding_job WHERE attempts > 0")`."""
    async with database.reading() as session:
        return int(
            (await session.execute(text(f"SELECT count(*) FROM {what}"), parameters)).scalar_one()
        )
