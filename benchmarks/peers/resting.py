"""When tickmind has come to rest: a space that is to have signatures has them."""

from __future__ import annotations

import asyncio

import asyncpg

from tickmind_embedder.settings import EmbedderSettings

__all__ = ["rested"]

_LOOK_S = 0.1
#: The embedder looks every 5 to 15 s, and works half of the time (`tickmind_embedder.indexing`):
#: 32 s for 8,500 vectors of 1536 at a load of 20.
_PATIENCE_S = 600.0
_AT_REST = """
    SELECT (SELECT count(*) FROM (SELECT FROM embedding LIMIT $1) AS counted) < $1
        OR NOT EXISTS (SELECT FROM index_generation WHERE status = 'building')
           AND EXISTS (SELECT FROM index_generation WHERE status = 'active' AND basis IS NOT NULL)
"""
# The embedder deletes them a minute later; nobody asks them any more.
_SUPERSEDED = """
    DELETE FROM recall_index WHERE generation_id IN
        (SELECT id FROM index_generation WHERE status IN ('retired', 'dropping'))
"""


async def rested(url: str) -> None:
    """Wait for the embedder's background build, where there are texts enough for one. Raises
    TimeoutError."""
    signed_from = EmbedderSettings.model_fields["embedder_signatures_from"].default
    connection = await asyncpg.connect(url)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                if await connection.fetchval(_AT_REST, signed_from):
                    break
                await asyncio.sleep(_LOOK_S)
        await connection.execute(_SUPERSEDED)
    finally:
        await connection.close()
