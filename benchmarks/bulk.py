"""Memories by the million, written straight into the tables in the shape the services write.

One place for every table that a recallable memory has rows in: whatever the services come to
write for one more (signatures, terms), is written by `fill`, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass

import asyncpg
import numpy as np
from numpy.typing import NDArray

from tickmind.database import Database
from tickmind.identity import KEY_BYTES, content_hash
from tickmind.signature import BITS, Signer, new_basis
from tickmind.store import recording
from tickmind.store.signing import Signers
from tickmind.store.spaces import (
    MEAN_UNTIL,
    Generation,
    Space,
    active_generation,
    ensure_space,
    refresh_mean,
)
from tickmind.words import digests, keys
from tickmind_embedder.settings import EmbedderSettings

__all__ = ["Bulk", "copy_bytes", "empty", "fill", "interleaved"]

#: Rows made at a time: 60 MB of vectors of 256 and as much again while they are written.
_ROWS_AT_ONCE = 100_000
#: Vectors signed at a time: 60 MB of products.
_SIGNED_AT_ONCE = 10_000
#: Words of a memory's text, which has some 90 characters then, as a talk of the English town; out
#: of so many, a tenth of the English words in common use.
_WORDS_A_TEXT, _VOCABULARY = 8, 3000
#: PostgreSQL's binary COPY (documentation of COPY, "Binary Format"): signature, flags and length
#: of the header's extension; at the end a field count of -1.
_COPY_HEAD = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_COPY_TAIL = b"\xff\xff"
#: What a memory has rows in; the order in which they are emptied does not matter.
_TABLES = (
    *("memory", "pending_embedding", "recall_index", "embedding", "embedding_job"),
    *("tick_receipt", "reject", "agent", "world", "signature"),
)
_GIVE_BASIS = "UPDATE index_generation SET mean = $2, mean_over = $3, basis = $4 WHERE id = $1"
_KEPT_IN_STEP = "SELECT setval(pg_get_serial_sequence('memory', 'id'), $1)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulk:
    """What was filled in: agents' names by how many memories each has, and their generation."""

    world: str
    agents: Mapping[int, list[str]]
    memories: int
    last_tick: int
    generation: Generation


def interleaved(sizes: Mapping[int, int], source: np.random.Generator) -> NDArray[np.int64]:
    """Which agent each memory is of, in the order of time, as agents that live side by side.

    `sizes`: agents by their number of memories; agents count from 0 in that order.
    """
    counts = [size for size, agents in sizes.items() for _ in range(agents)]
    owners = np.repeat(np.arange(len(counts)), counts)
    source.shuffle(owners)
    return owners


def copy_bytes(columns: Mapping[str, NDArray[np.generic]]) -> bytes:
    """Rows in PostgreSQL's binary COPY format, each column already in its wire form.

    A column: (n,) big-endian numbers or bytes of one length (`S`), or (n, width) of bytes.
    """
    parts: list[tuple[str, object] | tuple[str, object, tuple[int, ...]]] = [("fields", ">i2")]
    for name, column in columns.items():
        parts.append((f"{name}_length", ">i4"))
        parts.append((name, column.dtype, column.shape[1:]))
    (rows,) = {len(column) for column in columns.values()}
    packed = np.empty(rows, dtype=np.dtype(parts))
    packed["fields"] = len(columns)
    for name, column in columns.items():
        packed[f"{name}_length"] = column.dtype.itemsize * int(np.prod(column.shape[1:]))
        packed[name] = column
    return packed.tobytes()


async def empty(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """No world, agent or memory is left; spaces and generations stay."""
    await connection.execute(f"TRUNCATE {', '.join(_TABLES)} RESTART IDENTITY CASCADE")


async def fill(
    database: Database,
    url: str,
    sizes: Mapping[int, int],
    *,
    space: Space,
    world: str,
    last_tick: int,
) -> Bulk:
    """Fill an empty database with agents of so many memories (memories: agents).

    Every memory has a text of its own, so also a vector (random, unit length) and an index row of
    its own: the most that so many memories can take. Where there are as many as an embedder builds
    signatures from, they are signed, as it would have left them. Vacuumed and analysed afterwards.
    """
    source = np.random.default_rng(9)
    names = {
        size: [f"agent-{size}-{number:05}" for number in range(agents)]
        for size, agents in sizes.items()
    }
    async with database.writing() as session:
        generation = await ensure_space(session, space)
        world_id = (await recording.ensure_worlds(session, [world]))[world]
    ordered = [name for some in names.values() for name in some]
    async with database.writing() as session:
        found = await recording.ensure_agents(session, [(world_id, name) for name in ordered])
    ids = np.array([found[world_id, name] for name in ordered], dtype=">i8")
    owners = ids[interleaved(sizes, source)]
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SET synchronous_commit = off")
        # The rows are right by construction; four key checks each would double the time.
        await connection.execute("SET session_replication_role = replica")
        signer = await _signer_of(database, generation)
        signed_from = EmbedderSettings.model_fields["embedder_signatures_from"].default
        for first in range(0, len(owners), _ROWS_AT_ONCE):
            part = owners[first : first + _ROWS_AT_ONCE]
            vectors = _vectors(source, len(part), space.dimensions)
            if signer is None and len(owners) >= signed_from:
                signer = await _new_signer(connection, generation, vectors, source)
            rows = _Rows(
                owners=part, first=first, total=len(owners), last_tick=last_tick, vectors=vectors
            )
            await _copy(connection, rows, generation, signer, source)
        await connection.execute(_KEPT_IN_STEP, len(owners))
        await connection.execute(
            "INSERT INTO tick_receipt (world_id, tick, decisions)"
            " SELECT $1, generate_series(0, $2::bigint), 20",
            world_id,
            last_tick,
        )
        await connection.execute("SET session_replication_role = origin")
        await connection.execute("VACUUM ANALYZE")
        await connection.execute("CHECKPOINT")
    finally:
        await connection.close()
    async with database.writing() as session:
        await refresh_mean(session, generation)
    async with database.reading() as session:
        learnt = await active_generation(session)
    assert learnt is not None
    return Bulk(
        world=world, agents=names, memories=len(owners), last_tick=last_tick, generation=learnt
    )


async def _signer_of(database: Database, generation: Generation) -> Signer | None:
    """By what the generation signs; None: it has no signatures yet."""
    async with database.reading() as session:
        return await Signers().of(session, generation.id)


async def _new_signer(
    connection: asyncpg.Connection[asyncpg.Record],
    generation: Generation,
    vectors: NDArray[np.float16],
    source: np.random.Generator,
) -> Signer:
    """Have a generation that is empty yet sign by these vectors' mean. An embedder would have built
    another beside it, and deleted this one."""
    some = vectors[:MEAN_UNTIL].astype(np.float32)
    mean, basis = some.mean(axis=0), new_basis(vectors.shape[1], source)
    told = mean.astype("<f4").tobytes()
    await connection.execute(_GIVE_BASIS, generation.id, told, len(some), basis)
    return Signer(mean, basis)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """Memories `first` and following of all there will be, of these agents, with these vectors."""

    owners: NDArray[np.int64]
    first: int
    total: int
    last_tick: int
    vectors: NDArray[np.float16]


async def _copy(
    connection: asyncpg.Connection[asyncpg.Record],
    given: _Rows,
    generation: Generation,
    signer: Signer | None,
    source: np.random.Generator,
) -> None:
    """Some memories, into every table that one which can be recalled is in."""
    owners, first, rows = given.owners, given.first, len(given.owners)
    numbers = np.arange(first, first + rows, dtype=np.int64)
    # Eight different ones, so that all texts have as many terms.
    step = source.integers(1, _VOCABULARY // _WORDS_A_TEXT, (rows, 1))
    begin = source.integers(0, _VOCABULARY, (rows, 1))
    words = ((begin + step * np.arange(_WORDS_A_TEXT)) % _VOCABULARY).tolist()
    texts = [_text(number, some) for number, some in zip(numbers.tolist(), words, strict=True)]
    hashes = np.array([np.frombuffer(content_hash(text), np.uint8) for text in texts])
    ids = (numbers + 1).astype(">i8")
    ticks = (numbers * given.last_tick // given.total).astype(">i8")
    importance = source.choice(np.array([4, 8], dtype=">i2"), rows)
    # Of one length, as all of a column here; the names of the kinds differ.
    kind = np.full(rows, b"conversation")
    core = np.zeros((rows, 1), dtype=np.uint8)
    memory = {
        "id": ids,
        "agent_id": owners,
        "tick": ticks,
        "importance": importance,
        "is_core": core,
        "kind": kind,
        "content": np.array([text.encode() for text in texts]),
        "content_hash": hashes,
        "event_key": source.integers(0, 256, (rows, KEY_BYTES), dtype=np.uint8),
        "terms": _terms(owners, texts),
    }
    embedding = {
        "space_id": np.full(rows, generation.space_id, dtype=">i4"),
        "content_hash": hashes,
        "vector": _halfvecs(given.vectors),
    }
    index = {
        "memory_id": ids,
        "generation_id": np.full(rows, generation.id, dtype=">i4"),
        "agent_id": owners,
        "tick": ticks,
        "importance": importance,
        "is_core": core,
        "kind": kind,
        "content_hash": hashes,
    }
    tables = {"memory": memory, "embedding": embedding, "recall_index": index}
    if signer is not None:
        bits = _bits(signer, given.vectors)
        index["signature"] = bits
        tables["signature"] = {
            "generation_id": index["generation_id"],
            "content_hash": hashes,
            "bits": bits,
        }
    for table, columns in tables.items():
        await connection.copy_to_table(
            table, columns=list(columns), source=_stream(copy_bytes(columns)), format="binary"
        )


def _terms(owners: NDArray[np.int64], texts: Sequence[str]) -> NDArray[np.uint8]:
    """The keys of each text's terms, as arrays of bigint in PostgreSQL's binary form: dimensions,
    no nulls, type 20, length, lower bound; then each number after its length."""
    found = np.array(
        [
            keys(agent, digests(text, None))
            for agent, text in zip(owners.astype(np.int64).tolist(), texts, strict=True)
        ],
        dtype=">i8",
    )
    rows, terms = found.shape
    head = np.array([1, 0, 20, terms, 1], dtype=">i4").view(np.uint8)
    items = np.zeros((rows, terms, 12), dtype=np.uint8)
    items[:, :, 3] = 8
    items[:, :, 4:] = found.view(np.uint8).reshape(rows, terms, 8)
    return np.concatenate([np.broadcast_to(head, (rows, 20)), items.reshape(rows, -1)], axis=1)


def _text(number: int, words: Sequence[int]) -> str:
    """The text of one memory: always as long, never the same."""
    return f"I said: {' '.join(f'word{word:04}' for word in words)} {number:09}"


def _vectors(source: np.random.Generator, rows: int, dimensions: int) -> NDArray[np.float16]:
    """Random directions, of unit length, as they are stored."""
    vectors = source.standard_normal((rows, dimensions), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float16)


def _halfvecs(vectors: NDArray[np.float16]) -> NDArray[np.uint8]:
    """In pgvector's wire form: width and 0 as int16, then halves."""
    rows, dimensions = vectors.shape
    head = np.tile(np.array([dimensions, 0], dtype=">i2").view(np.uint8), (rows, 1))
    return np.hstack([head, vectors.astype(">f2").view(np.uint8)])


def _bits(signer: Signer, vectors: NDArray[np.float16]) -> NDArray[np.uint8]:
    """Signatures in the binary form of bit(n): their number of bits as int32, then the bytes."""
    signed: list[bytes] = []
    for first in range(0, len(vectors), _SIGNED_AT_ONCE):
        some = signer.sign(vectors[first : first + _SIGNED_AT_ONCE])
        signed += [bits for bits in some if bits is not None]  # each has a direction
    head = np.tile(np.array([BITS], dtype=">i4").view(np.uint8), (len(vectors), 1))
    packed = np.frombuffer(b"".join(signed), dtype=np.uint8).reshape(len(vectors), -1)
    return np.hstack([head, packed])


async def _stream(rows: bytes) -> AsyncIterator[bytes]:
    yield _COPY_HEAD
    for piece in _pieces(rows):
        yield piece
    yield _COPY_TAIL


def _pieces(rows: bytes) -> Iterator[bytes]:
    size = 1 << 20
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
