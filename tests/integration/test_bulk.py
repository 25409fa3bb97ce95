"""What benchmarks fill in is what the services would have written: sound, and recalled."""

from __future__ import annotations

import numpy as np
import pytest
from sqlalchemy import text

from benchmarks.bulk import fill
from tests.remembering import audited, counted
from tests.retrieving import retriever_settings, retrieving
from tests.running import SOUND
from tickmind.database import Database
from tickmind.settings import DatabaseSettings
from tickmind.store.signing import Signers, bit_string
from tickmind.store.spaces import Space
from tickmind_embedder.settings import EmbedderSettings


@pytest.mark.parametrize("signed_from", [8192, 100], ids=["too few to be signed", "signed"])
async def test_bulk_is_sound_and_recalled(
    database: Database,
    database_settings: DatabaseSettings,
    monkeypatch: pytest.MonkeyPatch,
    signed_from: int,
) -> None:
    field = EmbedderSettings.model_fields["embedder_signatures_from"]
    monkeypatch.setattr(field, "default", signed_from)
    url = database_settings.database_url
    assert url is not None

    bulk = await fill(
        database,
        url.get_secret_value(),
        {50: 2, 10: 3},
        space=Space(model="hash", dimensions=64),
        world="town",
        last_tick=40,
    )

    assert await audited(database) == SOUND
    for table in ("memory", "embedding", "recall_index"):
        assert await counted(database, table) == bulk.memories == 130
    assert bulk.generation.mean is not None
    signed = signed_from == 100
    assert bulk.generation.signed is signed
    assert await counted(database, "signature") == (130 if signed else 0)
    settings = retriever_settings(database_settings, retriever_signatures_from=20)
    async with retrieving(database, settings) as retriever:
        asked = [(names[0], "something") for names in bulk.agents.values()]
        reply = await retriever.recall(*asked, explain=True)
        await retriever.handler.close()
    assert [len(answer.memories) for answer in reply.replies] == [5, 5]
    plans = [answer.explain.plan for answer in reply.replies if answer.explain is not None]
    assert plans == ["signatures" if signed else "exact", "exact"]
    async with database.reading() as session:
        signer = await Signers().of(session, bulk.generation.id)
        rows = (await session.execute(_BITS)).all()
    expected = signer.sign(np.stack([row.vector.to_numpy() for row in rows])) if signer else []
    assert [bit_string(bits) for bits in expected] == [row.bits for row in rows if signed]
    assert all(row.bits == row.signature for row in rows)


_BITS = text("""
    SELECT e.vector, s.bits, r.signature FROM embedding e
    JOIN recall_index r USING (content_hash) LEFT JOIN signature s USING (content_hash)
""")
