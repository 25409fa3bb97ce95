"""The embedder at work: outages, hints, shutdown, and processes that die."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import Process
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text

from tests.processes import START_S, service_process
from tests.proxy import door
from tests.recording import until
from tests.remembering import (
    audited,
    counted,
    drained,
    embedder_settings,
    handling,
    known,
    remember,
)
from tests.running import SOUND, eventually, metric, running, settings_for
from tickmind import MemoryClient
from tickmind.database import Database
from tickmind.hashed import hash_embed
from tickmind.local.postgres import LocalPostgres
from tickmind.local.provider.faults import Hang, Outage, Status, Throttle
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.running import Provider
from tickmind.local.provider.triggers import Always, Next
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind.store import embedding as store
from tickmind.store import spaces
from tickmind.store.spaces import Space, active_generation, refresh_mean
from tickmind_embedder import worker as worker_module
from tickmind_embedder.app import create_app
from tickmind_embedder.handler import Handler, ProviderPaused
from tickmind_embedder.settings import EmbedderSettings
from tickmind_embedder.worker import Worker
from tickmind_recorder.app import create_app as create_recorder
from tickmind_recorder.settings import RecorderSettings


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of hundredths of a second instead of up to a minute."""
    monkeypatch.setattr(worker_module, "_WAIT_FIRST_S", 0.02)
    monkeypatch.setattr(worker_module, "_WAIT_MOST_S", 0.08)


async def _none_pending(database: Database, *, timeout_s: float = 60.0) -> None:
    await eventually(
        lambda: counted(database, "pending_embedding"),
        lambda n: n == 0,
        what="pending",
        timeout_s=timeout_s,
    )


@pytest.mark.parametrize("how", ["503", "reset"])
@pytest.mark.usefixtures("_impatient")
async def test_backlog_drains_by_itself_after_an_outage(
    database: Database, database_settings: DatabaseSettings, provider: Provider, how: str
) -> None:
    """case 29: calls while down are bounded, and nobody is charged for it."""
    settings = embedder_settings(
        database_settings, provider.base_url, embedding_max_inputs=10, embedder_concurrency=3
    )
    outage = provider.faults.add(Outage(how=how), Always())  # type: ignore[arg-type]
    app = create_app(settings)
    await remember(database, [f"text {i}" for i in range(100)])
    stop = asyncio.Event()
    working = asyncio.create_task(app.work(stop))
    await provider.ledger.wait_until(lambda ledger: ledger.totals().calls_while_down >= 20)
    totals = provider.ledger.totals()
    # At first each of three callers with ten texts; then one at a time, a single text and the
    # harmless one.
    assert totals.texts_sent <= 3 * 10 + totals.calls
    assert max(len(call.asked.texts) for call in provider.ledger.calls[3:]) == 1
    assert await app.checks["embedding"]() is not None
    assert await counted(database, "embedding_job WHERE attempts > 1") == 0

    provider.faults.remove(outage)
    await _none_pending(database)
    await eventually(app.checks["embedding"], lambda fault: fault is None, what="ready again")
    stop.set()
    await working

    assert set(provider.ledger.billed_texts.values()) == {1}
    assert set(provider.ledger.billed_texts) >= {f"text {i}" for i in range(100)}
    assert await counted(database, "recall_index") == 100
    assert await audited(database) == SOUND


async def test_provider_that_says_when_to_come_back_is_not_called_before(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One caller's 429 holds back the others of its process; the batch stays a batch."""
    provider.options = ProviderOptions(native_width=64, latency_s=0.02)
    provider.faults.add(Throttle(header="ms", retry_after_s=1.0), Next(after=2))
    settings = embedder_settings(
        database_settings, provider.base_url, embedding_max_inputs=5, embedder_concurrency=4
    )
    loop = asyncio.get_running_loop()
    claimed_at: dict[asyncio.Task[Any] | None, float] = {}
    batches: list[float] = []  # when those that were sent were claimed
    paused: list[tuple[float, float | None]] = []
    claim, embed = Handler.claim, Handler.embed

    async def watched_claim(self: Handler, **options: Any) -> Any:
        claimed_at[asyncio.current_task()] = loop.time()
        return await claim(self, **options)

    async def watched_embed(self: Handler, jobs: Any) -> None:
        batches.append(claimed_at[asyncio.current_task()])
        try:
            await embed(self, jobs)
        except ProviderPaused as exc:
            paused.append((loop.time(), exc.wait_s))
            raise

    monkeypatch.setattr(Handler, "claim", watched_claim)
    monkeypatch.setattr(Handler, "embed", watched_embed)
    async with handling(database, settings) as handler:
        await handler.generation()
        await remember(database, [f"text {i}" for i in range(60)])
        stop = asyncio.Event()
        working = asyncio.create_task(Worker(handler, concurrency=4, sweep_s=600).run(stop))
        await _none_pending(database)
        stop.set()
        await working

    ((told_at, wait_s),) = paused
    assert wait_s == 1.0
    # Who had claimed before may have been under way.
    assert [at for at in batches if told_at < at < told_at + wait_s] == []
    assert provider.ledger.totals().rejections == 1
    assert await counted(database, "recall_index") == 60


@pytest.mark.parametrize("status", [401, 403, 404])
@pytest.mark.usefixtures("_impatient")
async def test_refused_key_pauses_says_so_and_charges_nobody(
    database: Database, database_settings: DatabaseSettings, provider: Provider, status: int
) -> None:
    provider.faults.add(Status(code=status), Always())
    app = create_app(embedder_settings(database_settings, provider.base_url))
    await remember(database, ["a", "b"])
    stop = asyncio.Event()
    working = asyncio.create_task(app.work(stop))
    await provider.ledger.wait_until(lambda ledger: ledger.totals().calls >= 4)
    fault = await app.checks["embedding"]()
    assert fault is not None
    assert f"({status}): check TICKMIND_EMBEDDING_API_KEY" in fault

    provider.faults.clear()
    await _none_pending(database)
    stop.set()
    await working
    assert await counted(database, "recall_index") == 2


@pytest.mark.usefixtures("_impatient")
async def test_embedder_goes_on_by_itself_when_the_provider_comes(
    database: Database, database_settings: DatabaseSettings
) -> None:
    """Absent at start: unready and says why; texts that are embedded already are linked."""
    provider = Provider(ProviderOptions(native_width=64))
    await provider.start()  # takes its port
    await provider.stop()
    settings = embedder_settings(database_settings, provider.base_url)
    space = Space(model="test", dimensions=64)
    await remember(database, ["old"])
    await known(database, {"old": hash_embed("old", 64)}, space)
    app = create_app(settings)
    stop = asyncio.Event()
    working = asyncio.create_task(app.work(stop))
    try:
        assert "cannot be reached" in (await app.checks["embedding"]() or "")
        await remember(database, ["old", "new"], agent="bob")
        await eventually(
            lambda: counted(database, "recall_index"), lambda n: n == 2, what="linked meanwhile"
        )
        await provider.start()
        await _none_pending(database)
        await eventually(app.checks["embedding"], lambda fault: fault is None, what="ready again")
    finally:
        stop.set()
        await working
        await provider.stop()
    assert await audited(database) == SOUND


async def test_hints_alone_are_enough(
    database: Database, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> None:
    """The next full sweep is ten minutes away."""
    recorder = create_recorder(settings_for(RecorderSettings, database_settings, broker_settings))
    embedder = create_app(
        settings_for(EmbedderSettings, database_settings, broker_settings, embedder_sweep_s=600)
    )
    url = broker_settings.broker_url()
    async with running(recorder, embedder), MemoryClient(url) as client:
        for tick in range(3):
            await client.publish_tick(
                "town", tick, [{"agent": "a", "action": "observe", "text": f"saw {tick}"}]
            )
            await eventually(
                lambda: counted(database, "recall_index"),
                lambda n, tick=tick: n == tick + 1,  # type: ignore[misc]
                what="indexed by hint",
            )
        # Counted after the commit that was seen.
        await until(
            lambda: metric(embedder, "tickmind_memories_indexed_total") == 3, "indexed memories"
        )


async def test_the_sweep_alone_is_enough(
    database: Database, database_settings: DatabaseSettings
) -> None:
    """No broker at all."""
    app = create_app(embedder_settings(database_settings, embedder_sweep_s=0.05))
    async with running(app):
        for tick in range(3):
            await remember(database, [f"saw {tick}"], tick=tick)
            await _none_pending(database)
    assert "broker" not in app.checks
    assert await audited(database) == SOUND


async def test_answer_is_not_lost_to_a_database_that_goes_away_meanwhile(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    provider.faults.add(Hang(), Next())
    async with handling(
        database, embedder_settings(database_settings, provider.base_url)
    ) as handler:
        await handler.generation()
        await remember(database, ["a", "b"])
        await handler.sweep(full=True)
        embedding = asyncio.create_task(handler.embed(await handler.claim()))
        await provider.ledger.wait_until(lambda ledger: ledger.totals().texts_billed == 2)
        other = Database(database_settings, application="terminator")
        async with other.reading() as session:
            await session.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            )
        await other.dispose()
        provider.faults.release()
        await embedding

    assert set(provider.ledger.billed_texts.values()) == {1}
    assert await counted(database, "recall_index") == 2


async def test_worker_waits_out_a_database_that_is_gone(
    postgres: LocalPostgres,
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_module, "_WAIT_FIRST_S", 0.02)
    monkeypatch.setattr(worker_module, "_DATABASE_WAIT_MOST_S", 0.1)
    await known(database, {}, Space(model="test", dimensions=64))
    async with door(postgres.socket_dir / ".s.PGSQL.5432") as opened:
        url = f"postgresql://postgres@127.0.0.1:{opened.port}/{database.engine.url.database}"
        app = create_app(
            embedder_settings(
                database_settings,
                provider.base_url,
                database_url=url,
                embedder_sweep_s=0.05,
            )
        )
        async with running(app):
            await remember(database, ["before"])
            await _none_pending(database)
            await opened.shut()
            await eventually(
                app.checks["database"], lambda fault: fault is not None, what="unready"
            )
            await remember(database, ["meanwhile"])
            await opened.unlock()
            await _none_pending(database)
    assert provider.ledger.billed_texts == {"before": 1, "meanwhile": 1}
    assert await audited(database) == SOUND


async def test_worker_leaves_a_database_connection_that_died_in_silence(
    postgres: LocalPostgres,
    database: Database,
    database_settings: DatabaseSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No answer, no reset: another connection is taken."""
    # Long enough to make a connection on a busy machine (0.3 s and more: its types are looked up).
    monkeypatch.setattr("tickmind_embedder.transactions._MOST_S", 3.0)
    await known(database, {}, Space(model="hash", dimensions=64))
    async with door(postgres.socket_dir / ".s.PGSQL.5432") as opened:
        url = f"postgresql://postgres@127.0.0.1:{opened.port}/{database.engine.url.database}"
        settings = embedder_settings(
            database_settings, database_url=url, embedder_sweep_s=0.05, database_pool_size=2
        )
        app = create_app(settings)
        async with running(app):
            opened.hold(newcomers=False)
            await remember(database, ["meanwhile"])
            await _none_pending(database)
    assert await audited(database) == SOUND


async def test_lease_is_kept_as_long_as_the_provider_takes(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    # Renewed each second; a machine that takes two from us for others would end it.
    settings = embedder_settings(database_settings, provider.base_url, embedder_lease_s=3.0)
    provider.faults.add(Hang(), Next())
    async with handling(database, settings) as slow, handling(database, settings) as other:
        await slow.generation()
        await remember(database, ["a"])
        await slow.sweep(full=True)
        embedding = asyncio.create_task(slow.embed(await slow.claim()))
        leases = set()

        async def renewed() -> int:
            async with database.reading() as session:
                found = await session.execute(text("SELECT lease_until FROM embedding_job"))
                leases.add(found.scalar_one())
            assert await other.claim() == []
            return len(leases)

        await eventually(renewed, lambda times: times >= 5, what="lease renewed")
        provider.faults.release()
        await embedding

    assert provider.ledger.times_sent("a") == 1
    assert await counted(database, "recall_index") == 1


async def test_stopped_worker_finishes_its_calls_and_claims_no_more(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    provider.faults.add(Hang(), Next())
    settings = embedder_settings(
        database_settings, provider.base_url, embedding_max_inputs=2, embedder_concurrency=1
    )
    await remember(database, ["a", "b", "c", "d"])
    app = create_app(settings)
    stop = asyncio.Event()
    working = asyncio.create_task(app.work(stop))
    await provider.ledger.wait_until(lambda ledger: ledger.totals().texts_billed == 2)
    stop.set()
    provider.faults.release()
    await working

    assert provider.ledger.totals().calls == 1
    assert await counted(database, "recall_index") == 2
    assert await counted(database, "embedding_job") == 2
    assert await counted(database, "embedding_job WHERE lease_token IS NOT NULL") == 0
    assert await counted(database, "embedding_job WHERE attempts > 0") == 0


async def test_mean_is_learned_at_thirty_two_vectors_and_again_at_doublings(
    database: Database, database_settings: DatabaseSettings
) -> None:
    random = np.random.default_rng(3)
    vectors = random.normal(size=(200, 16)).astype(np.float32) + 0.5
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    space = Space(model="test", dimensions=16)
    learned: list[tuple[int, int]] = []
    for count in range(1, 201):
        generation = await known(database, {f"text {count}": vectors[count - 1]}, space)
        async with database.writing() as session:
            if await refresh_mean(session, generation):
                found = await active_generation(session)
                assert found is not None
                assert found.mean is not None
                learned.append((count, found.mean_over))
                rounded = vectors[:count].astype(np.float16).astype(np.float64)
                assert found.mean == pytest.approx(rounded.mean(axis=0), abs=2e-3)

    assert learned == [(32, 32), (64, 64), (128, 128)]


async def test_mean_is_learned_for_the_last_time_before_another_doubling(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be computed again, and thrown away, with each answer that is stored."""
    monkeypatch.setattr(spaces, "MEAN_UNTIL", 100)
    vectors = np.random.default_rng(4).normal(size=(140, 8)).astype(np.float32)
    learned = []
    for count in range(10, 150, 10):
        some = {f"text {i}": vectors[i] for i in range(count - 10, count)}
        generation = await known(database, some, Space(model="test", dimensions=8))
        async with database.writing() as session:
            if await refresh_mean(session, generation):
                learned.append(count)

    assert learned == [40, 80, 100]


async def test_mean_is_learned_in_the_course_of_embedding(
    database: Database, database_settings: DatabaseSettings
) -> None:
    """Blank texts, whose vector is zero, count for nothing in it."""
    async with handling(database, embedder_settings(database_settings)) as handler:
        await handler.generation()
        texts = [f"word{i} told" for i in range(40)]
        await remember(database, [*texts, " ", "  "])
        await drained(handler)
        generation = await handler.generation()

    assert generation.mean_over == 40
    assert generation.mean is not None
    expected = np.mean([hash_embed(t, 64) for t in texts], axis=0)
    assert generation.mean == pytest.approx(expected, abs=2e-3)


async def test_zero_vectors_alone_teach_no_mean(database: Database) -> None:
    space = Space(model="test", dimensions=8)
    zero = {f"blank {i}": np.zeros(8, dtype=np.float32) for i in range(40)}
    generation = await known(database, zero, space)
    async with database.writing() as session:
        assert not await refresh_mean(session, generation)


def _process(
    database: DatabaseSettings, log: Path, **environment: object
) -> AbstractAsyncContextManager[Process]:
    """An embedder without a broker."""
    return service_process(
        "embedder", database, log, TICKMIND_EMBEDDER_LISTEN="false", **environment
    )


async def test_texts_of_a_killed_process_are_finished_by_its_replacement(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    tmp_path: Path,
) -> None:
    """case 26: SIGKILL in the middle of a batch; done within the lease."""
    provider.faults.add(Hang(), Next())
    lease_s = 2
    settings = {
        "TICKMIND_EMBEDDING_BASE_URL": provider.base_url,
        "TICKMIND_EMBEDDER_LEASE_S": lease_s,
    }
    await remember(database, [f"text {i}" for i in range(20)])
    async with _process(database_settings, tmp_path / "first", **settings) as first:
        await provider.ledger.wait_until(
            lambda ledger: ledger.totals().texts_billed == 20, timeout_s=START_S
        )
        first.kill()
        await first.wait()
    held = "embedding_job WHERE lease_token IS NOT NULL"
    assert await counted(database, held) == 20
    longer = "AND lease_until > clock_timestamp() + CAST(:lease_s AS float8) * interval '1 s'"
    assert await counted(database, f"{held} {longer}", lease_s=lease_s) == 0

    async with _process(database_settings, tmp_path / "second", **settings) as second:
        await _none_pending(database, timeout_s=START_S)
        second.send_signal(signal.SIGTERM)
        assert await second.wait() == 0

    assert set(provider.ledger.billed_texts.values()) == {2}  # what was in flight is bought again
    assert await counted(database, "recall_index") == 20
    assert await audited(database) == SOUND


async def test_sigterm_finishes_what_is_in_flight(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    tmp_path: Path,
) -> None:
    provider.faults.add(Hang(), Next())
    await remember(database, [f"text {i}" for i in range(30)])
    async with _process(
        database_settings,
        tmp_path / "log",
        TICKMIND_EMBEDDING_BASE_URL=provider.base_url,
        TICKMIND_EMBEDDING_MAX_INPUTS=10,
        TICKMIND_EMBEDDER_CONCURRENCY=1,
    ) as process:
        await provider.ledger.wait_until(
            lambda ledger: ledger.totals().texts_billed == 10, timeout_s=START_S
        )
        process.send_signal(signal.SIGTERM)
        # The signal comes while the call hangs: the log says when it is through.
        provider.faults.release()
        assert await process.wait() == 0, (tmp_path / "log").read_text()

    indexed = await counted(database, "recall_index")
    assert 10 <= indexed < 30
    assert indexed == provider.ledger.totals().texts_billed
    assert await counted(database, "embedding_job WHERE lease_token IS NOT NULL") == 0


async def test_process_with_settings_of_another_space_goes_on_and_says_so(
    database: Database, database_settings: DatabaseSettings, provider: Provider, tmp_path: Path
) -> None:
    """case 15: the database says which space is filled, whatever a replica was started with."""
    await known(database, {}, Space(model="test", dimensions=32))
    await remember(database, ["a text"])
    log = tmp_path / "log"
    url = {"TICKMIND_EMBEDDING_BASE_URL": provider.base_url}
    async with _process(database_settings, log, **url) as process:
        await _none_pending(database, timeout_s=START_S)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    told = log.read_text()
    assert "Traceback" not in told
    assert "recalls use test in 32 dimensions" in told
    assert await counted(database, "embedding WHERE vector_dims(vector) = 32") == 1


async def test_sweep_can_be_ended_between_its_chunks(
    database: Database, database_settings: DatabaseSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backlog of millions must not hold up a shutdown, nor the first claim."""
    monkeypatch.setattr("tickmind_embedder.handler._SWEEP_ROWS", 10)
    async with handling(database, embedder_settings(database_settings)) as handler:
        await handler.generation()
        await remember(database, [f"text {i}" for i in range(35)])
        chunks: list[store.Swept] = []

        def go_on(swept: store.Swept) -> bool:
            chunks.append(swept)
            return len(chunks) < 2

        await handler.sweep(full=True, go_on=go_on)
        assert [chunk.jobs for chunk in chunks] == [10, 10]
        chunks.clear()
        await handler.sweep(full=False, go_on=lambda swept: go_on(swept) or True)
        assert [chunk.seen for chunk in chunks] == [10, 10, 10, 5]
