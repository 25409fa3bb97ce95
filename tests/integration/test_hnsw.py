"""HNSW indexes of single agents: made and dropped by command, used where they know the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.commands import Cli
from tests.remembering import counted, known, remember
from tests.retrieving import Retriever, contents, retriever_settings, retrieving
from tests.running import eventually
from tickmind.cli import hnsw_indexes
from tickmind.cli.servers import CommandFailed
from tickmind.database import Database
from tickmind.hashed import hash_embed
from tickmind.reindexing import Reindexing
from tickmind.settings import DatabaseSettings
from tickmind.store import hnsw
from tickmind.store.spaces import Space
from tickmind_retriever import handler as handler_module
from tickmind_retriever import plans as plans_module

_SPACE = Space(model="hash", dimensions=64)
_ROWS = 600
_OURS = "pg_class WHERE relname LIKE 'hnsw_recall_index_%'"


@pytest.fixture
def cli(tmp_path: Path, database_settings: DatabaseSettings) -> Cli:
    """Commands on the test's database; there is no broker, and none of these needs one."""
    assert database_settings.database_url is not None
    url = database_settings.database_url.get_secret_value()
    return Cli(tmp_path, {"TICKMIND_DATABASE_URL": url, "TICKMIND_AMQP_URL": "amqp://127.0.0.1:1"})


@pytest.fixture(autouse=True)
async def town(
    database: Database, database_settings: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alice and bob remember much, of the same ticks; indexed with signatures. What there is, is
    looked up at each recall."""
    monkeypatch.setattr(plans_module, "_HNSW_S", 0.0)
    monkeypatch.setattr(handler_module, "_GENERATION_S", 0.0)
    await _learn(database, [f"saw thing {i}" for i in range(_ROWS)], first_tick=0)
    assert await Reindexing(database.writing).build() is not None
    async with database.reading() as session:
        # Of so few rows PostgreSQL would rather sort all.
        name = (await session.execute(text("SELECT current_database()"))).scalar_one()
        await session.execute(text(f"ALTER DATABASE {name} SET enable_sort = off"))
    await database.dispose()
    return


async def _learn(database: Database, told: list[str], *, first_tick: int) -> None:
    await known(database, {}, _SPACE)
    ticks = [first_tick + place // 10 for place in range(len(told))]
    importances = [1 + place * 7 % 10 for place in range(len(told))]
    for agent in ("alice", "bob"):
        said = [f"{agent} {one}" for one in told]
        await remember(database, said, agent=agent, tick=ticks, importance=importances)
        await known(database, {one: hash_embed(one, 64) for one in said}, _SPACE)


def _settings(database: DatabaseSettings, **options: Any) -> Any:
    given = {"retriever_signatures_from": 100, "retriever_audit_one_in": 0}
    return retriever_settings(database, **(given | options))


async def _recalled(
    retriever: Retriever, *agents: str, seen: str = "thing 7", **options: Any
) -> tuple[list[str], list[list[str]]]:
    """Plans, and what came back."""
    reply = await retriever.recall(
        *((agent, f"{agent} saw {seen}") for agent in agents), explain=True, **options
    )
    plans: list[str] = [
        answer.explain.plan for answer in reply.replies if answer.explain is not None
    ]
    return plans, list(contents(reply))


async def _scans(database: Database) -> int:
    async with database.reading() as session:
        asked = "SELECT coalesce(sum(idx_scan), 0) FROM pg_stat_user_indexes WHERE indexrelname"
        found = await session.execute(text(f"{asked} LIKE 'hnsw_recall_index_%'"))
        return int(found.scalar_one())


async def _add(cli: Cli, agent: str = "alice") -> dict[str, Any]:
    done = await cli("hnsw", "add", "town", agent, "--force", "--json")
    assert done.code == 0, done.err
    made: dict[str, Any] = done.json
    return made


async def test_without_an_index_nobody_is_ranked_by_one(
    database: Database, database_settings: DatabaseSettings
) -> None:
    async with retrieving(database, _settings(database_settings)) as retriever:
        plans, _ = await _recalled(retriever, "alice", "bob")
    assert plans == ["signatures", "signatures"]
    assert await counted(database, _OURS) == 0


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_agent_with_an_index_is_ranked_by_it_as_exactly_and_others_as_before(
    database: Database, database_settings: DatabaseSettings, cli: Cli, mode: str
) -> None:
    """Its statement is planned for whatever parameters come, and asks the index all the same."""
    made = await _add(cli)
    assert (made["state"], made["agent"], made["newer"]) == ("used", "alice", 0)
    await _learn(database, [f"found thing {i}" for i in range(30)], first_tick=60)
    async with database.reading() as session:
        name = (await session.execute(text("SELECT current_database()"))).scalar_one()
        await session.execute(text(f"ALTER DATABASE {name} SET plan_cache_mode = {mode}"))
    await database.dispose()
    asked: list[dict[str, Any]] = [
        {"seen": "thing 7"},
        {"seen": "thing 411", "weights": {"recency": 0.05}},
        {"seen": "thing 411", "weights": {"importance": 0.25}, "k": 20},
        {"seen": "thing 300", "tick": 30},
        {"seen": "thing 500", "as_of_tick": 61},
    ]
    async with retrieving(
        database, _settings(database_settings, retriever_signatures_from=0)
    ) as retriever:
        exact = [(await _recalled(retriever, "alice", "bob", **how))[1] for how in asked]
    async with retrieving(database, _settings(database_settings)) as retriever:
        before = await _scans(database)
        for how, expected in zip(asked, exact, strict=True):
            plans, found = await _recalled(retriever, "alice", "bob", **how)
            assert plans == ["hnsw", "signatures"], how
            assert found == expected, how
        await database.dispose()  # a connection tells its numbers when it ends
        await eventually(
            lambda: _scans(database), lambda now: now >= before + len(asked), what="index scans"
        )
        counts = {
            plan: retriever.registry.get_sample_value("tickmind_recall_plans_total", {"plan": plan})
            for plan in ("exact", "signatures", "hnsw")
        }
    assert counts == {"exact": 0, "signatures": len(asked), "hnsw": len(asked)}


@pytest.mark.parametrize(
    "how",
    [
        {"kinds": ["observation"]},
        {"min_importance": 3},
        {"from_tick": 5},
        {"as_of_tick": 20},
        {"weights": {"relevance": 0}},
        {"weights": {"importance": 5}},
        {"weights": {"recency": 5}},
        {"k": 100},
    ],
)
async def test_what_an_index_cannot_tell_is_ranked_by_signatures(
    database: Database, database_settings: DatabaseSettings, cli: Cli, how: dict[str, Any]
) -> None:
    await _add(cli)
    async with retrieving(database, _settings(database_settings)) as retriever:
        plans, found = await _recalled(retriever, "alice", **how)
    assert plans == ["signatures"]
    assert found[0]


async def test_index_is_audited_under_its_own_name(
    database: Database, database_settings: DatabaseSettings, cli: Cli
) -> None:
    await _add(cli)
    settings = _settings(database_settings, retriever_audit_one_in=1)
    async with retrieving(database, settings) as retriever:
        labels = {"plan": "hnsw", "found": "true"}

        async def found() -> float:
            name = "tickmind_recall_audit_total"
            return retriever.registry.get_sample_value(name, labels) or 0.0

        await _recalled(retriever, "alice", distinct="off")
        await eventually(found, lambda number: number == 5, what="the audit")
        await retriever.handler.close()


async def test_new_generation_is_ranked_by_signatures_until_the_index_is_refreshed(
    database: Database, database_settings: DatabaseSettings, cli: Cli
) -> None:
    await _add(cli)
    reindexed = await cli("space", "reindex")
    assert reindexed.code == 0, reindexed.err
    assert "`tickmind hnsw refresh`: alice of town" in " ".join(reindexed.err.split())
    async with retrieving(database, _settings(database_settings)) as retriever:
        plans, before = await _recalled(retriever, "alice")
        assert plans == ["signatures"]
        (listed,) = (await cli("hnsw", "list", "--json")).json
        assert listed["state"] == "superseded"
        (refreshed,) = (await cli("hnsw", "refresh", "--json")).json
        assert refreshed["state"] == "used"
        assert await _recalled(retriever, "alice") == (["hnsw"], before)
    assert await counted(database, _OURS) == 1


async def test_dropped_index_is_missed_by_nobody(
    database: Database,
    database_settings: DatabaseSettings,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even by a retriever that has not heard of it."""
    made = await _add(cli)
    async with retrieving(database, _settings(database_settings)) as retriever:
        _, before = await _recalled(retriever, "alice")
        monkeypatch.setattr(plans_module, "_HNSW_S", 60.0)
        done = await cli("hnsw", "drop", "town", "alice", "--json")
        assert done.json == {"dropped": [made["name"]]}
        assert await _recalled(retriever, "alice") == (["hnsw"], before)
        monkeypatch.setattr(plans_module, "_HNSW_S", 0.0)
        assert await _recalled(retriever, "alice") == (["signatures"], before)
    again = await cli("hnsw", "drop", "town", "alice")
    assert again.code == 1
    assert "alice of the world town has no HNSW index" in again.err


@pytest.mark.parametrize("what", [("agent", "town", "alice"), ("world", "town")])
async def test_index_goes_with_its_agent(
    database: Database, cli: Cli, what: tuple[str, ...]
) -> None:
    await _add(cli)
    done = await cli("delete", *what, "--yes")
    assert done.code == 0, done.err
    assert await counted(database, _OURS) == 0


async def test_orphan_and_what_was_never_completed_go_with_a_refresh(
    database: Database, cli: Cli
) -> None:
    await _add(cli)
    async with database.writing() as session:
        await session.execute(text("DELETE FROM agent WHERE name = 'alice'"))
        await session.execute(text("CREATE INDEX hnsw_recall_index_1_1_1 ON recall_index (tick)"))
    states = sorted(index["state"] for index in (await cli("hnsw", "list", "--json")).json)
    assert states == ["incomplete", "orphaned"]
    done = await cli("hnsw", "refresh")
    assert done.code == 0, done.err
    assert await counted(database, _OURS) == 0


async def test_small_agent_gets_none_unless_asked_twice(database: Database, cli: Cli) -> None:
    done = await cli("hnsw", "add", "town", "alice")
    assert done.code == 1
    assert f"{_ROWS} memories" in done.err
    done = await cli("hnsw", "add", "town", "nobody", "--force")
    assert done.code == 1
    assert "no agent named nobody" in done.err
    assert await counted(database, _OURS) == 0


async def test_pgvector_that_cannot_search_on_is_refused(
    database: Database, database_settings: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hnsw_indexes, "pgvector_version", lambda _: (0, 7, 4))
    with pytest.raises(CommandFailed, match=r"pgvector 0\.8 or newer.* has 0\.7\.4"):
        await hnsw_indexes.added(database_settings, "town", "alice", force=True)


async def test_comment_of_another_hand_makes_no_index_of_ours(
    database: Database, database_settings: DatabaseSettings, cli: Cli
) -> None:
    """Only numbers come from it into a statement."""
    made = await _add(cli)
    said = '{"generation": 1, "agent": "1 OR true", "before": 60, "first": 0, "ticks": [1]}'
    async with database.writing() as session:
        connection = await session.connection()
        await connection.exec_driver_sql(f"COMMENT ON INDEX {made['name']} IS '{said}'")
    async with database.reading() as session:
        assert [kept.hnsw for kept in await hnsw.kept(session)] == [None]
    async with retrieving(database, _settings(database_settings)) as retriever:
        plans, _ = await _recalled(retriever, "alice")
    assert plans == ["signatures"]
