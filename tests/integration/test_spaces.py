"""The model is changed while agents live on: nothing is forgotten, no two models compared."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from tests.clock import Clock
from tests.remembering import (
    counted,
    drained,
    embedder_settings,
    handling,
    leases_run_out,
    remember,
)
from tests.retrieving import Retriever, contents, retriever_settings, retrieving
from tests.running import SOUND, eventually
from tests.two_models import NEW, OLD, mirrored, space_settings, vector_of
from tickmind.cli import spaces as commands
from tickmind.cli.servers import CommandFailed
from tickmind.database import Database
from tickmind.hashed import hash_embed_many
from tickmind.local.provider.faults import Status
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.running import Provider, running_provider
from tickmind.local.provider.triggers import Always
from tickmind.memory import Scored
from tickmind.pieces import fit
from tickmind.service import App
from tickmind.settings import DatabaseSettings
from tickmind.store import changing, dropping, recall
from tickmind.store.inspection import Audit, audit
from tickmind.store.recall import Question
from tickmind.store.removal import delete_world
from tickmind.store.spaces import Generation, active_generation, filled_generations
from tickmind_embedder import lanes as lanes_module
from tickmind_embedder.app import create_app
from tickmind_embedder.settings import EmbedderSettings
from tickmind_retriever import handler as handler_module
from tickmind_retriever import ranker as ranker_module

TOLD = [
    "Bob told me: the market sells fresh fish",
    "I saw rain over the old mill",
    "Carol told me: the baker is ill",
    "I moved to (15, 8), the harbour",
    "Dan told me: wolves came down from the hills",
    "I slept under the bridge",
]


@pytest.fixture
async def newer() -> AsyncIterator[Provider]:
    """The new model's own server."""
    async with running_provider(ProviderOptions(native_width=64)) as running:
        yield running


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models; and tenths of seconds instead of seconds between two looks."""
    mirrored(monkeypatch)
    monkeypatch.setattr(lanes_module, "_LOOK_S", 0.1)
    monkeypatch.setattr(commands, "_LOOK_S", 0.05)


def old_embedder(
    database: DatabaseSettings, provider: Provider, **options: Any
) -> EmbedderSettings:
    given: dict[str, Any] = {
        "embedding_model": OLD,
        "embedding_limits": "",
        "embedder_sweep_s": 0.2,
    }
    return embedder_settings(database, provider.base_url, **(given | options))


@asynccontextmanager
async def working(settings: EmbedderSettings) -> AsyncIterator[App]:
    """An embedder at work, all of it but the broker."""
    app = create_app(settings)
    stop = asyncio.Event()
    task = asyncio.create_task(app.work(stop))
    try:
        yield app
    finally:
        stop.set()
        await task


async def indexed(database: Database, model: str) -> int:
    return await counted(
        database,
        "recall_index r JOIN index_generation g ON g.id = r.generation_id"
        " JOIN embedding_space s ON s.id = g.space_id WHERE s.model = :model",
        model=model,
    )


async def all_indexed(database: Database, model: str, memories: int) -> None:
    await eventually(
        lambda: indexed(database, model), lambda n: n == memories, what=f"indexed by {model}"
    )


async def generation_of(database: Database, model: str) -> Generation:
    async with database.reading() as session:
        return next(g for g in await filled_generations(session) if g.space.model == model)


async def space_id_of(database: Database, model: str) -> int:
    async with database.reading() as session:
        states = await changing.space_states(session)
    return next(state.id for state in states if state.model == model)


async def audited(database: Database, model: str) -> Audit:
    generation = await generation_of(database, model)
    async with database.reading() as session:
        return await audit(session, generation.id)


async def best(retriever: Retriever, observation: str) -> str:
    reply = await retriever.recall(("alice", observation), k=1, ranking="relevance")
    (answer,) = reply.replies
    assert answer.status == "ok", answer
    return contents(reply)[0][0]


def asked(provider: Provider) -> set[str | None]:
    """Models that were asked for."""
    return {call.asked.model for call in provider.ledger.calls}


class Ranked:
    """Every query that was ranked: in which model's space, and whether by that model's vector."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.models: list[str] = []
        self.foreign: list[str] = []
        self.observation = ""
        rank = recall.rank

        async def watched(
            session: AsyncSession,
            questions: Sequence[Question],
            *,
            generation: Generation,
            **options: Any,
        ) -> list[list[Scored]]:
            for question in questions:
                self.models.append(generation.space.model)
                expected = vector_of(generation.space.model, self.observation)
                assert question.vector is not None
                if not np.allclose(question.vector, expected, atol=1e-6):
                    self.foreign.append(generation.space.model)
            return await rank(session, questions, generation=generation, **options)

        monkeypatch.setattr(ranker_module, "rank", watched)

    async def best(self, retriever: Retriever, told: str) -> str:
        """What comes first to someone who sees just that."""
        self.observation = told
        return await best(retriever, told)


async def test_new_model_of_the_same_width_never_ranks_old_vectors(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    newer: Provider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """case 15: settings may name the new model before or after the switch: queries and memories
    are of one space always. Once all is embedded from the stored texts, recalls use the new one."""
    await remember(database, TOLD)
    async with working(old_embedder(database_settings, provider)):
        await all_indexed(database, OLD, len(TOLD))
    ranked = Ranked(monkeypatch)
    of_old = retriever_settings(database_settings, provider.base_url, embedding_model=OLD)
    of_new = retriever_settings(database_settings, newer.base_url, embedding_model=NEW)
    embedder_of_new = old_embedder(database_settings, newer, embedding_model=NEW)

    async with (
        working(embedder_of_new) as app,  # restarted first: it goes on with the old space
        retrieving(database, of_old) as old,
        retrieving(database, of_new) as new,
    ):
        await remember(database, ["A newcomer sells honey"])
        await all_indexed(database, OLD, len(TOLD) + 1)
        note = await eventually(app.notes["space"], lambda n: n is not None, what="the note")
        assert "recalls use old-model" in (note or "")
        for told in TOLD:
            assert await ranked.best(old, told) == told
            assert await ranked.best(new, told) == told
        assert set(ranked.models) == {OLD}
        assert asked(newer) == set()

        await commands.added(database_settings, space_settings(NEW, newer))
        await all_indexed(database, NEW, len(TOLD) + 1)
        assert await ranked.best(new, TOLD[0]) == TOLD[0]
        assert set(ranked.models) == {OLD}

        await commands.activated(database_settings, NEW, force=False)
        ranked.models.clear()
        await eventually(
            lambda: ranked.best(old, "A newcomer sells honey"),
            lambda _: NEW in ranked.models,
            what="the retriever that knew the old model",
        )
        await eventually(
            lambda: ranked.best(new, "A newcomer sells honey"),
            lambda _: ranked.models[-1] == NEW,
            what="the retriever that knew the new model",
        )
        for told in TOLD:
            assert await ranked.best(old, told) == told
            assert await ranked.best(new, told) == told

    assert ranked.foreign == []
    assert asked(provider) == {OLD}
    assert asked(newer) == {NEW}
    assert set(newer.ledger.billed_texts) >= {*TOLD, "A newcomer sells honey"}
    assert await audited(database, NEW) == SOUND


async def test_wider_model_is_cut_to_1536_and_renormalised(
    database: Database, database_settings: DatabaseSettings, provider: Provider, newer: Provider
) -> None:
    """case 16: a 3072-wide model in a space beside the old one."""
    newer.options = ProviderOptions(native_width=3072, normalises_cut=False)
    await remember(database, TOLD)
    wide = space_settings("wide-model", newer, embedding_dimensions=1536)
    async with working(old_embedder(database_settings, provider)):
        await all_indexed(database, OLD, len(TOLD))
        await commands.added(database_settings, wide)
        await all_indexed(database, "wide-model", len(TOLD))
        await commands.activated(database_settings, "wide-model", force=False)

    async with database.reading() as session:
        rows = (
            await session.execute(
                text("""
                    SELECT m.content, e.vector FROM memory m
                    JOIN embedding e ON e.content_hash = m.content_hash
                    WHERE e.space_id = :space_id
                """),
                {"space_id": await space_id_of(database, "wide-model")},
            )
        ).all()
    stored = np.stack([row.vector.to_numpy() for row in rows])
    expected = fit(hash_embed_many([row.content for row in rows], 3072), 1536)
    assert stored.shape == (len(TOLD), 1536)
    assert np.linalg.norm(stored, axis=1) == pytest.approx(1, abs=1e-3)
    assert stored == pytest.approx(expected, abs=1e-3)
    settings = retriever_settings(database_settings, provider.base_url, embedding_model=OLD)
    async with retrieving(database, settings) as retriever:
        for told in TOLD:
            assert await best(retriever, told) == told


async def test_recalls_go_on_from_the_old_space_while_the_new_one_fills(
    database: Database, database_settings: DatabaseSettings, provider: Provider, newer: Provider
) -> None:
    """Not one recall is empty from adding the space until well after its activation."""
    newer.options = ProviderOptions(native_width=64, latency_s=0.05)
    texts = [f"text {i}, {word}" for i, word in enumerate(random.Random(1).sample(range(9999), 80))]
    await remember(database, [*TOLD, *texts])
    total = len(TOLD) + len(texts)
    settings = retriever_settings(
        database_settings, provider.base_url, embedding_model=OLD, retriever_cached_texts=0
    )
    changed = asyncio.Event()
    answers: list[str] = []

    async def ask_on(retriever: Retriever) -> None:
        while not changed.is_set():
            for told in TOLD:
                answers.append(await best(retriever, told))
                assert answers[-1] == told

    async with (
        working(old_embedder(database_settings, provider, embedding_max_inputs=20)),
        retrieving(database, settings) as retriever,
    ):
        await all_indexed(database, OLD, total)
        asking = asyncio.create_task(ask_on(retriever))
        state, marked = await commands.added(
            database_settings, space_settings(NEW, newer, embedding_max_inputs=5)
        )
        assert (state.status, marked) == ("building", total)
        await commands.filled(database_settings, None, wait=True)
        before = len(answers)
        await commands.activated(database_settings, NEW, force=False)
        await eventually(
            _queries(newer), lambda queries: queries >= len(TOLD), what="queries to the new model"
        )
        changed.set()
        await asking

    assert before > 0
    assert len(answers) > before
    assert await audited(database, NEW) == SOUND


def _queries(provider: Provider) -> Any:
    async def sent() -> int:
        return sum(provider.ledger.billed_texts[told] - 1 for told in TOLD)

    return sent


async def test_no_memory_is_lost_to_recorders_while_spaces_come_and_go(
    database: Database, database_settings: DatabaseSettings, provider: Provider, newer: Provider
) -> None:
    """Writers go on through adding, filling, switching and going back: at no moment is a memory
    neither indexed nor pending in the active generation."""
    stop = asyncio.Event()
    written = 0
    worst = [0, 0]

    async def write(writer: int) -> None:
        nonlocal written
        turn = 0
        while not stop.is_set():
            texts = [f"text {(writer * 7 + turn * 3 + i) % 90}" for i in range(10)]
            await remember(database, texts, agent=f"agent {writer}", tick=turn)
            written += 10
            turn += 1
            await asyncio.sleep(0)

    async def watch() -> None:
        while not stop.is_set():
            async with database.reading() as session:
                found = await audit(session)
            worst[0], worst[1] = max(worst[0], found.lost), max(worst[1], found.both)

    async with working(old_embedder(database_settings, provider, database_pool_size=10)):
        await eventually(
            lambda: counted(database, "index_generation"), lambda n: n == 1, what="the first space"
        )
        async with asyncio.TaskGroup() as tasks:
            for writer in range(2):
                tasks.create_task(write(writer))
            tasks.create_task(watch())
            await commands.added(database_settings, space_settings(NEW, newer))
            await commands.filled(database_settings, NEW, wait=True)
            for model in (NEW, OLD, NEW):
                before, now = await commands.activated(database_settings, model, force=False)
                assert before is not None
                assert (before.status, now.model) == ("active", model)
            stop.set()
        await all_indexed(database, NEW, written)

    assert worst == [0, 0]
    assert await audited(database, NEW) == SOUND
    assert await counted(database, "memory") == written
    assert set(newer.ledger.billed_texts.values()) == {1}


async def test_two_retrievers_follow_an_activation(
    database: Database, database_settings: DatabaseSettings, provider: Provider, newer: Provider
) -> None:
    """Within the seconds that a look at the active generation may be old."""
    await remember(database, TOLD)
    settings = retriever_settings(database_settings, provider.base_url, embedding_model=OLD)
    async with (
        working(old_embedder(database_settings, provider)),
        retrieving(database, settings) as one,
        retrieving(database, settings) as two,
    ):
        await all_indexed(database, OLD, len(TOLD))
        await commands.added(database_settings, space_settings(NEW, newer))
        await all_indexed(database, NEW, len(TOLD))
        for retriever in (one, two):
            assert await best(retriever, TOLD[0]) == TOLD[0]

        await commands.activated(database_settings, NEW, force=False)
        since = Clock()
        for number, retriever in enumerate((one, two), start=1):
            await eventually(
                lambda retriever=retriever: _sees_wolves(retriever, newer),  # type: ignore[misc]
                lambda sent, number=number: sent >= number,  # type: ignore[misc]
                what=f"retriever {number}",
            )
        # A look may be 2 s old; the rest is for recalls on a busy machine.
        assert since.s < handler_module._GENERATION_S + 8


async def _sees_wolves(retriever: Retriever, provider: Provider) -> int:
    assert await best(retriever, "Alice looks for wolves in the hills") == TOLD[4]
    return provider.ledger.billed_texts.get("Alice looks for wolves in the hills", 0)


async def test_going_back_first_gets_what_came_since(
    database: Database, database_settings: DatabaseSettings, provider: Provider, newer: Provider
) -> None:
    """A retired space costs nothing and is kept; activating it again is one command."""
    await remember(database, TOLD)
    settings = retriever_settings(database_settings, provider.base_url, embedding_model=OLD)
    async with working(old_embedder(database_settings, provider)):
        await all_indexed(database, OLD, len(TOLD))
        await commands.added(database_settings, space_settings(NEW, newer))
        await all_indexed(database, NEW, len(TOLD))
        await commands.activated(database_settings, NEW, force=False)
        calls = len(provider.ledger.calls)

        await remember(database, ["A newcomer sells honey"])
        await all_indexed(database, NEW, len(TOLD) + 1)
        assert await indexed(database, OLD) == len(TOLD)
        assert await counted(database, "pending_embedding") == 0
        assert len(provider.ledger.calls) == calls

        before, now = await commands.activated(database_settings, OLD, force=False)
        assert before is not None
        assert (before.model, now.model, now.status) == (NEW, OLD, "active")
        assert await indexed(database, OLD) == len(TOLD) + 1
        assert await audited(database, OLD) == SOUND
        async with retrieving(database, settings) as retriever:
            assert await best(retriever, "A newcomer sells honey") == "A newcomer sells honey"

    assert set(provider.ledger.billed_texts.values()) <= {1, 2}  # memories once, queries once


async def test_going_back_at_once_loses_nothing(
    database: Database, database_settings: DatabaseSettings, provider: Provider, newer: Provider
) -> None:
    """--force does not wait: what came since is pending, and follows."""
    await remember(database, TOLD)
    async with working(old_embedder(database_settings, provider)):
        await all_indexed(database, OLD, len(TOLD))
        await commands.added(database_settings, space_settings(NEW, newer))
        await all_indexed(database, NEW, len(TOLD))
        await commands.activated(database_settings, NEW, force=False)
        await remember(database, ["A newcomer sells honey"])
        await all_indexed(database, NEW, len(TOLD) + 1)
    # No embedder runs.
    await commands.activated(database_settings, OLD, force=True)
    assert await audited(database, OLD) == SOUND
    assert await counted(database, "pending_embedding") == 1
    async with working(old_embedder(database_settings, provider)):
        await all_indexed(database, OLD, len(TOLD) + 1)


async def test_activation_is_refused_while_something_would_be_forgotten(
    database: Database, database_settings: DatabaseSettings, provider: Provider, newer: Provider
) -> None:
    await remember(database, TOLD)
    async with working(old_embedder(database_settings, provider)):
        await all_indexed(database, OLD, len(TOLD))
    await commands.added(database_settings, space_settings(NEW, newer))  # and no embedder runs
    await _made_older(database)

    with pytest.raises(CommandFailed, match=f"{len(TOLD)} memories that recalls find now"):
        await commands.activated(database_settings, NEW, force=False)
    async with database.reading() as session:
        found = await active_generation(session)
    assert found is not None
    assert found.space.model == OLD

    await commands.activated(database_settings, NEW, force=True)
    assert await audited(database, NEW) == SOUND
    assert await counted(database, "index_generation WHERE status = 'active'") == 1


async def test_memory_of_the_last_moments_does_not_put_an_activation_off(
    database: Database, database_settings: DatabaseSettings, provider: Provider, newer: Provider
) -> None:
    """A world that is being recorded always has memories that are in one space only."""
    await remember(database, TOLD)
    async with working(old_embedder(database_settings, provider)):
        await all_indexed(database, OLD, len(TOLD))
        await commands.added(database_settings, space_settings(NEW, newer))
        await all_indexed(database, NEW, len(TOLD))
    await _made_older(database)
    await remember(database, ["just now"])
    async with handling(database, old_embedder(database_settings, provider)) as handler:
        await drained(handler)
    assert await indexed(database, OLD) == len(TOLD) + 1

    before, now = await commands.activated(database_settings, NEW, force=False)
    assert before is not None
    assert (now.indexed, now.pending) == (len(TOLD), 1)
    assert await audited(database, NEW) == SOUND


async def _made_older(database: Database) -> None:
    async with database.writing() as session:
        await session.execute(text("UPDATE memory SET recorded_at = now() - interval '1 hour'"))


async def test_dropped_space_leaves_nothing(
    database: Database, database_settings: DatabaseSettings, provider: Provider, newer: Provider
) -> None:
    """Whether it was filled or being filled; recalls' own is refused."""
    await remember(database, TOLD)
    async with working(old_embedder(database_settings, provider)):
        await all_indexed(database, OLD, len(TOLD))
        old, new = await space_id_of(database, OLD), 0
        await commands.added(database_settings, space_settings(NEW, newer))
        await all_indexed(database, NEW, len(TOLD))
        new = await space_id_of(database, NEW)
        with pytest.raises(CommandFailed, match="activate another first"):
            await commands.dropped(database_settings, OLD, yes=True)
        await commands.activated(database_settings, NEW, force=False)

        gone = await commands.dropped(database_settings, OLD, yes=True)
        assert gone is not None
        assert (gone.id, gone.indexed) == (old, len(TOLD))
        assert await _rows_of(database, old) == 0
        assert await _rows_of(database, new) == 2 + 2 * len(TOLD)

        # One that is being filled, with a call under way.
        provider.options = ProviderOptions(native_width=64, latency_s=0.3)
        await commands.added(database_settings, space_settings(OLD, provider))
        calls = len(provider.ledger.calls)
        await provider.ledger.wait_until(lambda ledger: len(ledger.calls) > calls)
        filling = await space_id_of(database, OLD)
        await commands.dropped(database_settings, OLD, yes=True)
        await provider.ledger.wait_until(lambda ledger: ledger.totals().in_flight == 0)
        await remember(database, ["A newcomer sells honey"])
        await all_indexed(database, NEW, len(TOLD) + 1)
        assert await _rows_of(database, filling) == 0
        assert await audited(database, NEW) == SOUND


async def _rows_of(database: Database, space_id: int) -> int:
    """Everything in the database that belongs to a space."""
    tables = [
        "embedding_space WHERE id = :id",
        "recall_index r JOIN index_generation g ON g.id = r.generation_id WHERE g.space_id = :id",
    ]
    tables += [
        f"{table} WHERE space_id = :id"
        for table in ("index_generation", "embedding", "embedding_job", "pending_embedding")
    ]
    return sum([await counted(database, table, id=space_id) for table in tables])


async def test_interrupted_drop_is_finished_by_another(
    database: Database, database_settings: DatabaseSettings, provider: Provider, newer: Provider
) -> None:
    """Nothing can be added to a space whose end has begun."""
    await remember(database, TOLD)
    async with working(old_embedder(database_settings, provider)):
        await all_indexed(database, OLD, len(TOLD))
        await commands.added(database_settings, space_settings(NEW, newer))
        await all_indexed(database, NEW, len(TOLD))
    new = await space_id_of(database, NEW)
    async with database.writing() as session:
        assert await dropping.begin_drop(session, new)
    async with database.writing() as session:
        assert await dropping.delete_some(session, new, most=2) == 4

    with pytest.raises(CommandFailed, match="being dropped"):
        await commands.added(database_settings, space_settings(NEW, newer))
    with pytest.raises(CommandFailed, match="being dropped"):
        await commands.activated(database_settings, NEW, force=True)
    await commands.dropped(database_settings, NEW, yes=True)
    assert await _rows_of(database, new) == 0
    assert await audited(database, OLD) == SOUND


async def test_embedder_that_died_while_a_space_fills_is_replaced(
    database: Database, database_settings: DatabaseSettings, provider: Provider, newer: Provider
) -> None:
    """At most what was in flight is bought twice."""
    texts = [f"text {i}" for i in range(60)]
    await remember(database, texts)
    newer.options = ProviderOptions(native_width=64, latency_s=0.2)
    settings = old_embedder(database_settings, provider)
    async with working(settings):
        await all_indexed(database, OLD, 60)
        state, _ = await commands.added(
            database_settings, space_settings(NEW, newer, embedding_max_inputs=5)
        )
        await newer.ledger.wait_until(lambda ledger: ledger.totals().texts_billed >= 10)
    newer.options = ProviderOptions(native_width=64, latency_s=30)
    dying = asyncio.create_task(create_app(settings).work(asyncio.Event()))
    billed = newer.ledger.totals().texts_billed
    await newer.ledger.wait_until(lambda ledger: ledger.totals().texts_billed > billed)
    dying.cancel()  # leases and all: nothing is given back
    await asyncio.gather(dying, return_exceptions=True)
    newer.options = ProviderOptions(native_width=64)
    await leases_run_out(database)

    async with working(settings):
        done, _ = await commands.filled(database_settings, str(state.id), wait=True)
    assert (done.indexed, done.pending, done.parked) == (60, 0, 0)
    assert await audited(database, NEW) == SOUND
    assert sum(newer.ledger.billed_texts.values()) <= 60 + 2 * 5
    assert provider.ledger.totals().texts_billed == 60


async def test_building_space_waits_for_the_active_one_on_the_same_server(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    settings = old_embedder(
        database_settings, provider, embedding_max_inputs=5, embedder_concurrency=1
    )
    async with handling(database, settings) as handler:
        await handler.generation()
        await remember(database, [f"text {i}" for i in range(40)])
        await handler.sweep(full=True)
    await commands.added(database_settings, space_settings(NEW, provider, embedding_max_inputs=5))
    async with working(settings):
        await all_indexed(database, OLD, 40)
        await all_indexed(database, NEW, 40)

    models = [call.asked.model or "" for call in provider.ledger.calls]
    assert sorted(models) == [NEW] * 8 + [OLD] * 8
    assert models[:7] == [OLD] * 7  # with the last of them in flight, the other may begin


async def test_building_space_does_not_wait_for_another_server(
    database: Database, database_settings: DatabaseSettings, provider: Provider, newer: Provider
) -> None:
    """The reason to leave a provider may be that it does not answer any more."""
    await remember(database, TOLD)
    provider.faults.add(Status(code=404), Always())
    async with working(old_embedder(database_settings, provider)) as app:
        await eventually(
            lambda: counted(database, "embedding_job"), lambda n: n == len(TOLD), what="jobs"
        )
        await commands.added(database_settings, space_settings(NEW, newer))
        await all_indexed(database, NEW, len(TOLD))
        await eventually(
            app.checks["embedding"], lambda fault: fault is not None, what="the old one's fault"
        )
        await commands.activated(database_settings, NEW, force=False)
        await eventually(
            app.checks["embedding"], lambda fault: fault is None, what="the fault's end"
        )
    assert await audited(database, NEW) == SOUND


async def test_each_endpoint_gets_its_own_key_and_none_is_stored(
    database: Database, database_settings: DatabaseSettings, provider: Provider, newer: Provider
) -> None:
    """Before the switch, after it, and with settings that name the new provider by then."""
    provider.options = ProviderOptions(native_width=64, api_key="key-of-the-old")
    newer.options = ProviderOptions(native_width=64, api_key="key-of-the-new")
    keys = {
        "embedding_api_key": "key-of-the-old",
        "embedding_next_api_key": "key-of-the-new",
    }
    await remember(database, TOLD)
    async with working(old_embedder(database_settings, provider, **keys)):
        await all_indexed(database, OLD, len(TOLD))
        await commands.added(
            database_settings, space_settings(NEW, newer, embedding_api_key="never-kept")
        )
        await all_indexed(database, NEW, len(TOLD))
        await commands.activated(database_settings, NEW, force=False)
    turned = {
        "embedding_api_key": "key-of-the-new",
        "embedding_next_api_key": "key-of-the-old",
    }
    of_new = retriever_settings(database_settings, newer.base_url, embedding_model=NEW, **turned)
    of_old = retriever_settings(database_settings, provider.base_url, embedding_model=OLD, **keys)
    for settings in (of_new, of_old):
        async with retrieving(database, settings) as retriever:
            assert await best(retriever, TOLD[1]) == TOLD[1]
    kept = "embedding_space WHERE CAST(served AS text) LIKE '%' || :key || '%'"
    for key in ("key-of-the", "never-kept"):
        assert await counted(database, kept, key=key) == 0
    assert {call.status for call in [*provider.ledger.calls, *newer.ledger.calls]} == {200}


async def test_space_added_again_is_reached_in_the_new_way(
    database: Database, database_settings: DatabaseSettings, provider: Provider, newer: Provider
) -> None:
    """A running embedder changes over within seconds."""
    await remember(database, TOLD)
    newer.faults.add(Status(code=404), Always())
    async with working(old_embedder(database_settings, provider)) as app:
        await all_indexed(database, OLD, len(TOLD))  # the first space is the old one
        await commands.added(database_settings, space_settings(NEW, newer))
        await eventually(
            app.notes["space"], lambda note: "404" in (note or ""), what="the note of the fault"
        )
        async with running_provider(ProviderOptions(native_width=64)) as moved:
            await commands.added(database_settings, space_settings(NEW, moved))
            await all_indexed(database, NEW, len(TOLD))
    assert set(moved.ledger.billed_texts) == set(TOLD)


async def test_idle_embedder_collects_vectors_that_no_memory_uses(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    await remember(database, TOLD)
    await remember(database, ["ours alone", TOLD[0]], world="gone")
    async with working(old_embedder(database_settings, provider, embedder_collect_s=0.1)):
        await all_indexed(database, OLD, len(TOLD) + 2)
        async with database.writing() as session:
            assert await delete_world(session, "gone")
        await eventually(
            lambda: counted(database, "embedding"), lambda n: n == len(TOLD), what="vectors"
        )
    assert await audited(database, OLD) == SOUND


async def test_backfill_begun_anew_marks_nothing_twice(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    newer: Provider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In chunks, from the first memory each time; what is indexed by now stays so."""
    monkeypatch.setattr(commands, "_MARKED_AT_ONCE", 7)
    await remember(database, [f"text {i}" for i in range(25)])
    async with handling(database, old_embedder(database_settings, provider)) as handler:
        await handler.generation()
    state, marked = await commands.added(database_settings, space_settings(NEW, newer))
    assert marked == 25
    again, none = await commands.filled(database_settings, NEW, wait=False)
    assert (again.id, again.pending, none) == (state.id, 25, 0)

    async with working(old_embedder(database_settings, provider)):
        await all_indexed(database, NEW, 25)
    once_more, none = await commands.filled(database_settings, NEW, wait=False)
    assert (once_more.indexed, once_more.pending, none) == (25, 0, 0)
    assert await audited(database, NEW) == SOUND
