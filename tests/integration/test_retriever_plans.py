"""Which plan ranks an agent, what is told of it, and the audit of the one that is not exact."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import text

from tests.remembering import known, remember
from tests.retrieving import Retriever, contents, retriever_settings, retrieving
from tests.running import eventually
from tickmind.database import Database
from tickmind.hashed import hash_embed
from tickmind.reindexing import Reindexing
from tickmind.settings import DatabaseSettings
from tickmind.store.spaces import Space
from tickmind_retriever import handler as handler_module

_SPACE = Space(model="hash", dimensions=64)
_LARGE, _SMALL = 300, 20


async def _town(database: Database) -> None:
    """Alice remembers much, bob little; indexed with signatures."""
    texts = {agent: [f"{agent} saw thing {i}" for i in range(rows)]
             for agent, rows in (("alice", _LARGE), ("bob", _SMALL))}  # fmt: skip
    await known(database, {}, _SPACE)
    for agent, said in texts.items():
        await remember(database, said, agent=agent, tick=list(range(len(said))))
    vectors = {said: hash_embed(said, 64) for some in texts.values() for said in some}
    await known(database, vectors, _SPACE)
    assert await Reindexing(database.writing).build() is not None


def _settings(database: DatabaseSettings, **options: Any) -> Any:
    given = {"retriever_signatures_from": 100, "retriever_audit_one_in": 0}
    return retriever_settings(database, **(given | options))


async def _plans(retriever: Retriever, **options: Any) -> list[tuple[str, int, int]]:
    reply = await retriever.recall(
        ("alice", "thing 7"), ("bob", "thing 7"), explain=True, **options
    )
    plans: list[tuple[str, int, int]] = []
    for answer in reply.replies:
        assert answer.explain is not None
        assert set(answer.explain.ms) == {"find", "embed", "rank"}
        assert all(ms >= 0 for ms in answer.explain.ms.values())
        plans.append((answer.explain.plan, answer.explain.rows, answer.explain.scored))
    return plans


async def test_large_agent_is_ranked_by_signatures_and_small_one_exactly_in_one_request(
    database: Database, database_settings: DatabaseSettings
) -> None:
    await _town(database)
    async with retrieving(database, _settings(database_settings)) as retriever:
        assert await _plans(retriever) == [
            ("signatures", _LARGE, 200),
            ("exact", _SMALL, _SMALL),
        ]
        assert await _plans(retriever, k=30) == [
            ("signatures", _LARGE, 300),
            ("exact", _SMALL, _SMALL),
        ]
        mine = contents(await retriever.recall(("alice", "thing 7"), ("bob", "thing 9")))
    async with retrieving(
        database, _settings(database_settings, retriever_signatures_from=0)
    ) as retriever:
        exact = contents(await retriever.recall(("alice", "thing 7"), ("bob", "thing 9")))
        assert await _plans(retriever) == [
            ("exact", _LARGE, _LARGE),
            ("exact", _SMALL, _SMALL),
        ]
    assert mine == exact
    assert mine[0][0].startswith("alice")
    assert mine[1][0].startswith("bob")


async def test_ranking_by_relevance_alone_finds_the_nearest_by_signatures_too(
    database: Database, database_settings: DatabaseSettings
) -> None:
    """The reference's order, by raw cosines: exact among twice as many candidates."""
    await _town(database)
    asked = [("alice", f"thing {turn * 13}") for turn in range(20)]
    async with retrieving(database, _settings(database_settings)) as retriever:
        plans = await _plans(retriever, ranking="relevance", k=10)
        assert plans == [("signatures", _LARGE, _LARGE), ("exact", _SMALL, _SMALL)]
        mine = contents(await retriever.recall(*asked, ranking="relevance"))
    async with retrieving(
        database, _settings(database_settings, retriever_signatures_from=0)
    ) as retriever:
        assert mine == contents(await retriever.recall(*asked, ranking="relevance"))


async def test_generation_without_signatures_is_ranked_exactly(
    database: Database, database_settings: DatabaseSettings
) -> None:
    await known(database, {}, _SPACE)
    await remember(database, [f"thing {i}" for i in range(150)])
    await remember(database, ["thing 1"], agent="bob")
    await known(database, {f"thing {i}": hash_embed(f"thing {i}", 64) for i in range(150)}, _SPACE)
    async with retrieving(database, _settings(database_settings)) as retriever:
        assert [plan for plan, _, _ in await _plans(retriever)] == ["exact", "exact"]


async def test_retriever_follows_to_a_new_generation(
    database: Database, database_settings: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_module, "_GENERATION_S", 0.0)
    await _town(database)
    async with retrieving(database, _settings(database_settings)) as retriever:
        before = contents(await retriever.recall(("alice", "thing 7")))
        assert await Reindexing(database.writing).build() is not None
        assert [plan for plan, _, _ in await _plans(retriever)] == ["signatures", "exact"]
        assert contents(await retriever.recall(("alice", "thing 7"))) == before


def _found(registry: CollectorRegistry, found: str) -> float:
    labels = {"plan": "signatures", "found": found}
    return registry.get_sample_value("tickmind_recall_audit_total", labels) or 0.0


def _sums_to(expected: float, found: tuple[float, float]) -> bool:
    return sum(found) == expected


async def test_audit_counts_what_the_exact_ranking_finds_and_the_other_does_not(
    database: Database, database_settings: DatabaseSettings
) -> None:
    await _town(database)
    settings = _settings(database_settings, retriever_audit_one_in=1)
    async with retrieving(database, settings) as retriever:

        async def audited() -> tuple[float, float]:
            return _found(retriever.registry, "true"), _found(retriever.registry, "false")

        await retriever.recall(("alice", "thing 7"), distinct="off")
        await eventually(audited, lambda found: sum(found) == 5, what="the first audit")
        assert await audited() == (5, 0)
        # Signatures that say nothing: of noise, the candidates are.
        random = np.random.default_rng(1)
        async with database.writing() as session:
            for memory_id in (await session.execute(text("SELECT id FROM memory"))).scalars().all():
                noise = "".join(map(str, random.integers(0, 2, size=1536)))
                await session.execute(
                    text(f"UPDATE recall_index SET signature = B'{noise}' WHERE memory_id = :id"),
                    {"id": memory_id},
                )
        expected = 5
        for turn in range(12):
            await retriever.recall(("alice", f"thing {turn * 7}"), distinct="off")
            expected += 5
            await eventually(audited, partial(_sums_to, expected), what="an audit")
        _, missed = await audited()
        assert missed >= 5  # a third of all is no candidate
        await retriever.handler.close()


async def test_exact_recalls_are_not_audited(
    database: Database, database_settings: DatabaseSettings
) -> None:
    await _town(database)
    settings = _settings(database_settings, retriever_audit_one_in=1)
    async with retrieving(database, settings) as retriever:
        await retriever.recall(("bob", "thing 7"))
        await retriever.recall(("alice", "thing 7"), distinct="off")
        await eventually(
            lambda: _found_async(retriever.registry), lambda found: found > 0, what="one audit"
        )
        assert _found(retriever.registry, "true") == 5
        await retriever.handler.close()


async def _found_async(registry: CollectorRegistry) -> float:
    return _found(registry, "true")
