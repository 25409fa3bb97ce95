"""Partial HNSW indexes of single large agents, which an operator makes and takes away.

An index is of one generation, one agent, and ticks before one: what is recorded later costs it
nothing, and is ranked by its signatures. It holds `scored_bits`, so that the nearest by Hamming
distance are the best by score, about. What it covers is kept in its comment, given once it is
complete; without one it is used by nobody.

PostgreSQL uses a partial index where it can prove, when it plans, that the statement asks for
nothing else. It proves nothing of parameters (a plan made once for any agent could not use an
index of one), so generation, agent, tick and LIMIT stand in the statement as numbers: those of the
comment, read as integers, written as such. Each such agent has a statement of its own, and
whichever plan PostgreSQL keeps for it may use the index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from asyncpg import BitString
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.memory import Weights
from tickmind.schema import SCHEMA_LOCK
from tickmind.scored_bits import ScoredBits
from tickmind.signature import BITS

__all__ = [
    "MOST_NEAREST",
    "NEAREST",
    "Hnsw",
    "Kept",
    "Whose",
    "build",
    "drop",
    "extent",
    "kept",
    "let_schema_go",
    "older",
    "take_schema",
    "whose",
]

#: Memories that are taken from an index, from `exactness` in benchmarks/NOTES.md; and the most that
#: pgvector gathers at once (`hnsw.ef_search`, its documentation).
NEAREST, MOST_NEAREST = 400, 1000
_NAME = "hnsw_recall_index"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hnsw:
    """An index over the memories of one agent, in one generation, of ticks below `before`."""

    generation_id: int
    agent_id: int
    before: int
    bits: ScoredBits

    @property
    def name(self) -> str:
        """The index's, below PostgreSQL's 63 bytes."""
        return f"{_NAME}_{self.generation_id:d}_{self.agent_id:d}_{self.before:d}"

    def weighs(self, weights: Weights, *, tick: int, half_life_ticks: float) -> bool:
        """Whether the index knows which are the best by these."""
        some = bytes(BITS // 8)
        return self.sought(some, weights, tick=tick, half_life_ticks=half_life_ticks) is not None

    def sought(
        self, signature: bytes | None, weights: Weights, *, tick: int, half_life_ticks: float
    ) -> BitString | None:
        """What the best are nearest to; None: this index does not know which are the best."""
        if signature is None:
            return None
        bits = self.bits.of_question(signature, weights, tick=tick, half_life_ticks=half_life_ticks)
        return None if bits is None else BitString(bits)


# What is set holds for this statement, and is set before the index is asked: the inner query has to
# wait for it. An index that has rows of deleted memories in it goes on until it has enough.
_OLDER = """
    SELECT nearest.* FROM (
         SELECT concat(set_config('hnsw.ef_search', '{most:d}', true),
                       set_config('hnsw.iterative_scan', 'relaxed_order', true)) AS done OFFSET 0
     ) AS tuned
     CROSS JOIN LATERAL (
         SELECT r.memory_id, r.tick, r.kind, r.importance, r.is_core, r.content_hash, r.signature
         FROM recall_index r
         WHERE tuned.done IS NOT NULL AND {covered}
         ORDER BY {bits} <~> (CAST(:hnsw_bits AS bit({length:d})[]))[CAST(q.asked AS integer)]
         LIMIT {most:d}
     ) AS nearest
"""


def older(hnsw: Hnsw, most: int) -> str:
    """The rows of recall_index, as a subquery, that this index holds to be the best for a question
    `q`; parameters: `hnsw_bits`, what each question seeks (`Hnsw.sought`)."""
    return _OLDER.format(
        most=most, covered=_covered(hnsw), bits=hnsw.bits.expression(), length=hnsw.bits.length
    )


def _covered(hnsw: Hnsw) -> str:
    return (
        f"generation_id = {hnsw.generation_id:d} AND agent_id = {hnsw.agent_id:d}"
        f" AND tick < {hnsw.before:d}"
    )


class _About(BaseModel):
    """What an index's comment says of it."""

    model_config = ConfigDict(frozen=True, strict=True)

    generation: int
    agent: int
    before: int
    first: int
    # Read from JSON, which has lists.
    ticks: Annotated[tuple[int, ...], Field(strict=False, min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """An index there is. `hnsw` None: it was never completed."""

    name: str
    size_bytes: int
    hnsw: Hnsw | None


_KEPT = text("""
    SELECT c.relname AS name, pg_relation_size(c.oid) AS size_bytes,
           CASE WHEN i.indisvalid THEN obj_description(c.oid, 'pg_class') END AS about
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = CAST('recall_index' AS regclass) AND starts_with(c.relname, :name)
    ORDER BY c.relname
""")


async def kept(session: AsyncSession) -> list[Kept]:
    """All such indexes, of whatever generation."""
    rows = (await session.execute(_KEPT, {"name": f"{_NAME}_"})).all()
    return [Kept(name=row.name, size_bytes=row.size_bytes, hnsw=_read(row.about)) for row in rows]


def _read(about: str | None) -> Hnsw | None:
    try:
        read = _About.model_validate_json(about or "")
    except ValidationError:
        return None
    return Hnsw(
        generation_id=read.generation,
        agent_id=read.agent,
        before=read.before,
        bits=ScoredBits(first=read.first, ticks=read.ticks),
    )


_EXTENT = text("""
    SELECT count(*) AS rows, min(tick) AS first, max(tick) AS last FROM recall_index
    WHERE generation_id = :generation_id AND agent_id = :agent_id AND signature IS NOT NULL
""")


async def extent(
    session: AsyncSession, generation_id: int, agent_id: int
) -> tuple[int, Hnsw | None]:
    """How many signed memories an agent has, and the index over all of them; None: it has none."""
    parameters = {"generation_id": generation_id, "agent_id": agent_id}
    row = (await session.execute(_EXTENT, parameters)).one()
    if not row.rows:
        return 0, None
    bits = ScoredBits.over(row.first, row.last)
    hnsw = Hnsw(generation_id=generation_id, agent_id=agent_id, before=row.last + 1, bits=bits)
    return row.rows, hnsw


_TAKE_SCHEMA = text("SELECT pg_try_advisory_lock(:key)")
_LET_SCHEMA_GO = text("SELECT pg_advisory_unlock(:key)")


async def take_schema(session: AsyncSession) -> bool:
    """Be the only one who makes or drops indexes, or migrates, until `let_schema_go` or the end of
    the connection; False: another is. Asked again rather than waited for: a statement that waits
    has a snapshot, for whose end the other would wait. `session`: as `build`'s."""
    found = await session.execute(_TAKE_SCHEMA, {"key": SCHEMA_LOCK})
    return bool(found.scalar_one())


async def let_schema_go(session: AsyncSession) -> None:
    """The same session's that has taken it."""
    await session.execute(_LET_SCHEMA_GO, {"key": SCHEMA_LOCK})


#: Edges of a memory, and candidates looked at for them: pgvector's own defaults are 16 and 64.
_M, _EF_CONSTRUCTION = 24, 128
#: Memory for each row while an index is built: with less, pgvector goes on on disk, many times
#: slower. Measured: 0.75 kB.
_BYTES_A_ROW = 1600
_LEAST_MB, _MOST_MB = 64, 8192


async def build(session: AsyncSession, hnsw: Hnsw, rows: int) -> None:
    """Make this index of about so many rows; recording and recalls go on. One that was never
    completed is made anew.

    `session`: in no transaction, and with the tables' owner's rights.
    """
    connection = await session.connection()
    memory_mb = min(_MOST_MB, max(_LEAST_MB, rows * _BYTES_A_ROW // 2**20))
    await drop(session, hnsw.name)
    about = _About(
        generation=hnsw.generation_id,
        agent=hnsw.agent_id,
        before=hnsw.before,
        first=hnsw.bits.first,
        ticks=hnsw.bits.ticks,
    )
    await connection.exec_driver_sql(f"SET maintenance_work_mem = '{memory_mb:d}MB'")
    try:
        await connection.exec_driver_sql(
            f"CREATE INDEX CONCURRENTLY {hnsw.name} ON recall_index"
            f" USING hnsw ({hnsw.bits.expression()} bit_hamming_ops)"
            f" WITH (m = {_M:d}, ef_construction = {_EF_CONSTRUCTION:d}) WHERE {_covered(hnsw)}"
        )
        await connection.exec_driver_sql(
            f"COMMENT ON INDEX {hnsw.name} IS '{about.model_dump_json()}'"
        )
    finally:
        await connection.exec_driver_sql("RESET maintenance_work_mem")


async def drop(session: AsyncSession, name: str) -> None:
    """Take an index away, where it is there. `session`: as `build`'s; `name`: as `kept` has it."""
    if not name.startswith(f"{_NAME}_") or not name.replace("_", "").isalnum():
        raise ValueError(f"{name!r} is no index of ours")
    connection = await session.connection()
    await connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """An agent, and its memories from a tick on, which an index does not cover."""

    world: str
    agent: str
    newer: int


_WHOSE = text("""
    SELECT w.name AS world, a.name AS agent,
           (SELECT count(*) FROM recall_index r
            WHERE r.generation_id = :generation_id AND r.agent_id = a.id
              AND r.tick >= :before) AS newer
    FROM agent a JOIN world w ON w.id = a.world_id WHERE a.id = :agent_id
""")


async def whose(session: AsyncSession, hnsw: Hnsw) -> Whose | None:
    """Whose index this is; None: the agent is gone."""
    parameters = {
        "generation_id": hnsw.generation_id,
        "agent_id": hnsw.agent_id,
        "before": hnsw.before,
    }
    row = (await session.execute(_WHOSE, parameters)).one_or_none()
    return None if row is None else Whose(**row._asdict())
