"""Signatures of texts' vectors, in each generation that has them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import numpy as np
from asyncpg import BitString
from numpy.typing import NDArray
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.signature import BITS, Signer

__all__ = ["Signers", "bit_string", "sign"]

_SIGNED = text("""
    SELECT id FROM index_generation
    WHERE space_id = :space_id AND status IN ('building', 'active') AND basis IS NOT NULL
    ORDER BY id
""")
_SIGNER = text("SELECT mean, basis FROM index_generation WHERE id = :id AND basis IS NOT NULL")


#: The generation in use, the one before it, and those being built.
_KEPT = 4


class Signers:
    """What generations of one database sign by, each read once: it never changes, and has up to
    5 MB."""

    def __init__(self) -> None:
        self._known: dict[int, Signer] = {}

    def known(self, generation_id: int) -> Signer | None:
        """A generation's, where it was read before."""
        return self._known.get(generation_id)

    async def of(self, session: AsyncSession, generation_id: int) -> Signer | None:
        """A generation's; None: it has no signatures, or is gone."""
        if generation_id not in self._known:
            parameters = {"id": generation_id}
            row = (await session.execute(_SIGNER, parameters)).one_or_none()
            if row is None:
                return None
            mean = np.frombuffer(row.mean, dtype="<f4").astype(np.float32)
            self._known[generation_id] = Signer(mean, row.basis)
            for oldest in list(self._known)[:-_KEPT]:
                del self._known[oldest]
        return self._known[generation_id]

    async def of_space(self, session: AsyncSession, space_id: int) -> dict[int, Signer]:
        """Of all generations of a space that are used or being built."""
        ids = list((await session.execute(_SIGNED, {"space_id": space_id})).scalars())
        return {id_: signer for id_ in ids if (signer := await self.of(session, id_)) is not None}


_INSERT = text("""
    INSERT INTO signature (generation_id, content_hash, bits)
    SELECT g.id, new.* FROM index_generation g
    CROSS JOIN unnest(CAST(:hashes AS bytea[]), CAST(:bits AS bit(1536)[])) AS new
    WHERE g.id = :generation_id AND g.status IN ('building', 'active')
    ON CONFLICT DO NOTHING
""")


async def sign(
    session: AsyncSession,
    signers: Mapping[int, Signer],
    hashes: Sequence[bytes],
    vectors: Mapping[bytes, NDArray[np.float32]],
) -> None:
    """Sign these texts' vectors, (d,) each, for each generation; one signed already stays so."""
    if not signers:
        return
    # What is stored is rounded, and so is what is signed: a later pass finds the same bits.
    rows = np.stack([vectors[hash_] for hash_ in hashes]).astype(np.float16).astype(np.float32)
    for generation_id, signer in signers.items():
        # In a thread: a thousand wide vectors take a tenth of a second.
        signed = await asyncio.to_thread(signer.sign, rows)
        bits = [bit_string(signature) for signature in signed]
        await session.execute(
            _INSERT, {"generation_id": generation_id, "hashes": list(hashes), "bits": bits}
        )


def bit_string(signature: bytes | None) -> BitString | None:
    """A signature as PostgreSQL takes it."""
    return None if signature is None else BitString.frombytes(signature, BITS)
