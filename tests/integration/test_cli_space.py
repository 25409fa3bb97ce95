"""`space` and the part of `status` that tells of embedding, run as a person runs them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import text

from tests.commands import Cli
from tests.remembering import counted, drained, embedder_settings, handling, remember
from tests.running import SOUND, eventually
from tickmind.cli import comparing
from tickmind.cli.comparing import compared
from tickmind.database import Database
from tickmind.embedding import Provider as Api
from tickmind.embedding import Reply, Unmetered
from tickmind.identity import content_hash
from tickmind.local.provider.running import Provider
from tickmind.serving import ExplicitSettings, served_by, space_of
from tickmind.settings import DatabaseSettings, EmbeddingSettings
from tickmind.store import budget
from tickmind.store.changing import add_space, mark_missing
from tickmind.store.embedding import store_vectors, sweep
from tickmind.store.inspection import audit
from tickmind.store.removal import delete_world
from tickmind.store.spaces import ensure_space
from tickmind_embedder.app import create_app

TOLD = [f"text {i}" for i in range(6)]


@pytest.fixture
def cli(tmp_path: Path, database_settings: DatabaseSettings) -> Cli:
    """Commands on the test's database; there is no broker, and none of these needs one."""
    assert database_settings.database_url is not None
    url = database_settings.database_url.get_secret_value()
    return Cli(tmp_path, {"TICKMIND_DATABASE_URL": url, "TICKMIND_AMQP_URL": "amqp://127.0.0.1:1"})


@asynccontextmanager
async def embedding(database: DatabaseSettings, provider: Provider) -> AsyncIterator[None]:
    settings = embedder_settings(
        database, provider.base_url, embedding_limits="", embedder_sweep_s=0.2
    )
    stop = asyncio.Event()
    task = asyncio.create_task(create_app(settings).work(stop))
    try:
        yield
    finally:
        stop.set()
        await task


async def _settled(database: Database, memories: int) -> None:
    await eventually(
        lambda: counted(database, "recall_index"), lambda n: n == memories, what="indexed"
    )
    assert await counted(database, "pending_embedding") == 0


def _new(provider: Provider) -> tuple[str, ...]:
    return (
        *("--profile", "openai-compatible", "--base-url", provider.base_url),
        *("--model", "new", "--dimensions", "32", "--set", "send_dimensions=true"),
    )


async def test_model_is_changed_and_changed_back_by_commands(
    cli: Cli, database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """The whole way: add, backfill, list, activate, back, drop."""
    empty = await cli("space", "list")
    assert (empty.code, empty.err) == (0, "")
    assert "no embedding space yet" in empty.out
    await remember(database, TOLD)
    async with embedding(database_settings, provider):
        await _settled(database, 6)
        added = await cli("space", "add", *_new(provider), "--json")
        assert (added.code, added.json["status"], added.json["marked"]) == (0, "building", 6)
        assert added.json["served"]["send_dimensions"] is True
        done = await cli("space", "backfill")
        assert (done.code, done.err) == (0, "")
        assert "new in 32 dimensions: 6 memories indexed, 0 pending" in done.out

        listed = (await cli("space", "list", "--json")).json
        shown = [(s["model"], s["status"], s["indexed"], s["vectors"]) for s in listed]
        assert shown == [("test", "active", 6, 6), ("new", "building", 6, 6)]
        table = await cli("space", "list")
        assert provider.base_url in table.out
        old, new = str(listed[0]["id"]), str(listed[1]["id"])

        nobody = await cli("space", "activate", "nobody")
        assert (nobody.code, nobody.out) == (1, "")
        assert "no space is named nobody" in nobody.err
        own = await cli("space", "drop", "test", "--yes")
        assert (own.code, own.out) == (1, "")
        assert "recalls use space" in own.err

        there = await cli("space", "activate", "new")
        assert (there.code, there.err) == (0, "")
        assert f"recalls use new in 32 dimensions (space {new}) from now on" in there.out
        assert f"tickmind space activate {old}" in there.out
        again = await cli("space", "activate", new)
        assert "already" in again.out
        back = await cli("space", "activate", old, "--json")
        assert (back.json["before"], back.json["space"]["status"]) == (int(new), "active")

    unasked = await cli("space", "drop", "new")
    assert (unasked.code, unasked.out) == (2, "")
    assert "with 6 indexed memories and 6 vectors?" in unasked.err
    no = await cli.answering("no", "space", "drop", "new")
    assert (no.code, no.out) == (1, "")
    assert await counted(database, "embedding_space") == 2
    yes = await cli("space", "drop", "new", "--yes")
    assert (yes.code, yes.out) == (0, f"dropped space {new}, new in 32 dimensions: 6 vectors\n")
    assert await counted(database, "embedding_space") == 1
    assert await counted(database, "embedding") == 6
    async with database.reading() as session:
        assert await audit(session) == SOUND


async def test_activation_is_refused_with_what_is_missing(
    cli: Cli, database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """Exit code 1 and nothing changed; --force does it all the same."""
    await remember(database, TOLD)
    async with embedding(database_settings, provider):
        await _settled(database, 6)
    async with database.writing() as session:
        await session.execute(text("UPDATE memory SET recorded_at = now() - interval '1 hour'"))
    assert (await cli("space", "add", *_new(provider))).code == 0  # and no embedder runs
    unfilled = await cli("space", "backfill", "--no-wait", "--json")
    assert (unfilled.code, unfilled.json["pending"], unfilled.json["marked"]) == (0, 6, 0)

    refused = await cli("space", "activate", "new")
    assert (refused.code, refused.out) == (1, "")
    assert "6 memories that recalls find now are not in space" in refused.err
    assert await counted(database, "index_generation WHERE status = 'building'") == 1
    forced = await cli("space", "activate", "new", "--force")
    assert forced.code == 0
    assert "6 memories are not in it yet, and follow" in forced.err
    assert await counted(database, "index_generation WHERE status = 'building'") == 0


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--profile", "text-embedding-3-large", "--dimensions", "3072"), "1536"),
        (("--profile", "nobody"), "there is no 'nobody'"),
        (("--set", "limits=many"), "'many' is not a limit"),
        (("--set", "colour=red"), "NAME=VALUE is needed"),
        (("--set", "api_key=mine"), "of a setting other than a key"),
        (("--base-url", "ftp://host"), "must look like https://host/v1"),
        (("--base-url", "https://me:secret@host/v1"), "without a password"),
        (("--set", "max_chars=100", "--set", "overlap_chars=90"), "overlap_chars must be"),
    ],
)
async def test_space_that_could_not_be_served_is_refused_before_any_change(
    cli: Cli, database: Database, args: tuple[str, ...], told: str
) -> None:
    """case 16: a width beyond 1536 is refused, not stored."""
    done = await cli("space", "add", *args)
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert "mine" not in done.err
    assert await counted(database, "embedding_space") == 0


async def test_space_is_named_by_its_id_where_models_are_the_same(
    cli: Cli, database: Database, provider: Provider
) -> None:
    await cli("space", "add", *_new(provider))
    await cli("space", "add", *_new(provider), "--set", "query_prefix=query: ")
    ambiguous = await cli("space", "backfill", "new", "--no-wait")
    assert (ambiguous.code, ambiguous.out) == (1, "")
    assert "2 spaces are named new: name one by its id" in ambiguous.err
    ids = [space["id"] for space in (await cli("space", "list", "--json")).json]
    assert (await cli("space", "backfill", str(ids[1]), "--no-wait")).code == 0


async def test_index_is_built_anew_while_recalls_go_on(
    cli: Cli, database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    assert "no space is active yet" in (await cli("space", "reindex")).err
    async with handling(
        database, embedder_settings(database_settings, provider.base_url)
    ) as handler:
        await handler.generation()
        await remember(database, TOLD)
        await drained(handler)
        few = await cli("space", "reindex")
        assert (few.code, few.out) == (1, "")
        assert "too few texts" in few.err
        await remember(database, [f"text {i}" for i in range(40)])
        await drained(handler)
    sent = provider.ledger.totals().texts_sent
    done = await cli("space", "reindex")
    assert (done.code, done.err) == (0, "")
    assert "46 memories indexed anew (generation 2)" in done.out
    again = await cli("space", "reindex", "--json")
    assert (again.json["generation"], again.json["signed"]) == (3, True)
    assert provider.ledger.totals().texts_sent == sent
    (listed,) = (await cli("space", "list", "--json")).json
    assert (listed["status"], listed["indexed"], listed["reindexing"]) == ("active", 46, False)
    assert "signatures" in (await cli("space", "list")).out
    async with database.reading() as session:
        assert await audit(session) == SOUND


async def test_unused_vectors_are_collected(
    cli: Cli, database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    await remember(database, TOLD)
    await remember(database, ["ours alone", TOLD[0]], world="gone")
    async with handling(
        database, embedder_settings(database_settings, provider.base_url)
    ) as handler:
        await handler.generation()
        await drained(handler)
    async with database.writing() as session:
        assert await delete_world(session, "gone")
    assert (await cli("space", "collect")).out == "1 unused vectors deleted\n"
    assert (await cli("space", "collect", "--json")).json == {"vectors": 0}
    assert await counted(database, "embedding") == 6


# --- status -----------------------------------------------------------------------------------


async def test_status_tells_what_embedding_took_and_what_was_saved(
    cli: Cli, database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    await remember(database, TOLD)
    await remember(database, TOLD, agent="bob")
    settings = embedder_settings(
        database_settings,
        provider.base_url,
        embedding_limits="1000 texts/min",
        embedding_price=2.0,
        embedder_sweep_s=0.2,
    )
    stop = asyncio.Event()
    task = asyncio.create_task(create_app(settings).work(stop))
    await _settled(database, 12)
    stop.set()
    await task
    name = settings.budget_name()
    async with database.writing() as session:
        await budget.record(session, "elsewhere m", "queries", calls=3, texts=4, tokens=500)
        await budget.block(session, name, seconds=90, reason="quota")
    await cli("space", "add", *_new(provider))

    done = await cli("status", "--json")
    assert done.code == 1  # the broker is away
    found = done.json["embedding"]
    used = {row["provider"]: row for row in found["providers"]}
    totals = provider.ledger.totals()
    assert used[name] == {
        "provider": name,
        "purpose": "documents",
        "calls": totals.calls,
        "texts": 6,
        "tokens": totals.tokens_billed,
        "cost_usd": round(totals.tokens_billed * 2e-6, 6),
    }
    assert used["elsewhere m"]["cost_usd"] is None
    assert used["elsewhere m"]["tokens"] == 500
    assert found["cost_usd"] == used[name]["cost_usd"]
    assert found["saved_by_deduplication"] == 6
    (blocked,) = found["blocked"]
    assert (blocked["provider"], blocked["reason"]) == (name, "quota")
    assert 0 < blocked["seconds"] <= 90
    spaces = [(s["model"], s["status"], s["indexed"], s["pending"]) for s in found["spaces"]]
    assert spaces == [("test", "active", 12, 0), ("new", "building", 0, 12)]
    assert found["note"] is None

    shown = (await cli("status")).out
    for part in (
        *(name, "documents", f"${totals.tokens_billed * 2e-6:.4f}"),
        "6 of 12 memories needed no call",
        "is being filled: 0 indexed, 12 pending, 0 parked",
        "more: quota",
    ):
        assert part in shown
    assert shown.count("\n") < 24  # fits a terminal's screen


async def test_status_tells_where_settings_name_another_space(cli: Cli, database: Database) -> None:
    async with database.writing() as session:
        await ensure_space(session, space_of(_space("old")))
    cli.env["TICKMIND_EMBEDDING_MODEL"] = "other"
    found = (await cli("status", "--json")).json["embedding"]
    assert "recalls use old in 8 dimensions" in found["note"]
    cli.env["TICKMIND_EMBEDDING_LIMITS"] = "many"
    found = (await cli("status", "--json")).json["embedding"]
    assert "TICKMIND_EMBEDDING_LIMITS" in found["note"]


# --- compare ----------------------------------------------------------------------------------


class Told(Unmetered):
    """A model that was told what to think of each text."""

    def __init__(self, vectors: dict[str, NDArray[np.float32]]) -> None:
        self._vectors = vectors
        self.asked: list[str] = []

    async def call(self, texts: Sequence[str]) -> Reply:
        self.asked += texts
        return Reply(vectors=np.stack([self._vectors[text] for text in texts]))

    async def fault(self) -> str | None:
        return None

    async def close(self) -> None:
        pass


def _space(model: str) -> ExplicitSettings:
    return ExplicitSettings(
        embedding_profile="openai-compatible", embedding_model=model, embedding_dimensions=8
    )


async def _filled(
    database: Database, settings: EmbeddingSettings, vectors: dict[str, NDArray[np.float32]]
) -> None:
    """A space with these vectors, of whatever is remembered."""
    async with database.writing() as session:
        space_id, _ = await add_space(session, space_of(settings), served_by(settings))
        await mark_missing(session, space_id, after=0, most=1000)
        hashed = {content_hash(text_): vector for text_, vector in vectors.items()}
        await store_vectors(session, space_id, hashed)
        await sweep(session, space_id, after=0, most=1000)


def _along(angle: float) -> NDArray[np.float32]:
    """A unit vector at an angle, in degrees."""
    vector = np.zeros(8, dtype=np.float32)
    vector[:2] = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    return vector


async def test_compare_tells_the_share_of_the_best_that_both_spaces_find(
    database: Database, database_settings: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight texts on a line, one of which the new model puts elsewhere: worked out by hand.

    At 0, 10, … 70 degrees the best three of each are its neighbours. The new model agrees but for
    the text at 0, which it puts at 69, among those at the other end.
    """
    texts = [f"text at {angle}" for angle in range(0, 80, 10)]
    # Ever farther apart, so that no text has two others equally far.
    angles = [angle + place**2 * 0.1 for place, angle in enumerate(range(0, 80, 10))]
    old = {text_: _along(angle) for text_, angle in zip(texts, angles, strict=True)}
    new = {**old, texts[0]: _along(69)}
    await remember(database, texts)
    await remember(database, texts[:3], agent="bob")  # too few to compare
    for model, vectors in (("old", old), ("new", new)):
        await _filled(database, _space(model), vectors)
    models = {"old": Told(old), "new": Told(new)}

    def told(settings: EmbeddingSettings) -> Api:
        return models[settings.embedding_model]

    monkeypatch.setattr(comparing, "provider_of", told)
    found = await compared(database_settings, "new", queries=50, k=3)

    assert sorted(query.content for query in found.queries) == sorted(texts)
    assert sorted(models["old"].asked) == sorted(models["new"].asked) == sorted(texts)
    shared = {query.content: query.shared for query in found.queries}
    best = {text_: _nearest(old, text_) for text_ in texts}
    other = {text_: _nearest(new, text_) for text_ in texts}
    assert shared == {text_: len(best[text_] & other[text_]) for text_ in texts}
    assert shared[texts[0]] == 0  # 10, 20, 30 against 70, 60, 50
    assert shared[texts[1]] == 2  # 0 is gone, 40 has come
    assert found.overlap == pytest.approx(sum(shared.values()) / (3 * len(texts)))
    (worst,) = found.least(1)
    assert worst.content == texts[0]
    assert set(worst.only_active) == set(texts[1:4])
    assert set(worst.only_other) == set(texts[5:8])
    told_as: dict[str, Any] = found.as_json(least=1)
    assert told_as["overlap"] == round(found.overlap, 4)
    assert sum(told_as["by_shared"].values()) == told_as["queries"] == len(texts)
    # What was spent is in the books.
    async with database.reading() as session:
        assert sum(used.texts for used in await budget.usage(session)) == 2 * len(texts)


def _nearest(vectors: dict[str, NDArray[np.float32]], text_: str) -> set[str]:
    """The three others of the highest cosine."""
    others = [other for other in vectors if other != text_]
    return set(sorted(others, key=lambda other: -float(vectors[other] @ vectors[text_]))[:3])


async def test_spaces_of_one_mind_agree_wholly(
    cli: Cli, database: Database, database_settings: DatabaseSettings
) -> None:
    """The same made-up vectors, and queries with a blank before them: the command, end to end."""
    await remember(database, [f"text {i} of word {i % 5}" for i in range(30)])
    hashed = embedder_settings(database_settings)
    async with handling(database, hashed) as handler:
        await handler.generation()
        await drained(handler)
    same = ("--set", "provider=hash", "--dimensions", "64", "--set", "query_prefix= ")
    assert (await cli("space", "add", *same)).code == 0
    early = await cli("space", "compare")
    assert (early.code, early.out) == (1, "")
    assert "no agent has more than 6 texts in both spaces" in early.err
    stop = asyncio.Event()
    task = asyncio.create_task(create_app(hashed).work(stop))
    await _settled(database, 60)
    stop.set()
    await task

    done = await cli("space", "compare", "--queries", "10", "--json")
    assert done.code == 0, done.err
    assert (done.json["queries"], done.json["k"], done.json["pending"]) == (10, 5, 0)
    assert done.json["overlap"] > 0.5
    shown = await cli("space", "compare", "--queries", "10", "--least", "1")
    assert shown.code == 0
    assert f"overlap of the best 5: {done.json['overlap']:.3f} over 10 queries" in shown.out
    own = await cli("space", "compare", "1")
    assert (own.code, own.out) == (1, "")
