"""The link protocol: a memory is indexed or pending, never neither, whoever runs beside whom."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text

from tests.interleaving import waiting_for_locks
from tests.remembering import (
    audited,
    counted,
    drained,
    embedder_settings,
    handling,
    insert,
    leases_run_out,
    made,
    remember,
)
from tests.running import SOUND, eventually
from tickmind.database import Database
from tickmind.errors import ConfigurationError
from tickmind.identity import content_hash
from tickmind.local.provider.faults import Outage, Status
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.running import Provider
from tickmind.local.provider.triggers import Always, Containing
from tickmind.removing import collect, delete
from tickmind.settings import DatabaseSettings
from tickmind.store import embedding as store
from tickmind.store import jobs as leases
from tickmind.store.inspection import retry_parked
from tickmind.store.removal import delete_world
from tickmind.store.spaces import Space, ensure_space
from tickmind_embedder.handler import ProviderPaused
from tickmind_embedder.worker import Worker


async def test_text_said_ten_thousand_times_is_sent_once_and_has_one_vector(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    async with handling(database, embedder_settings(database_settings, provider.base_url)) as one:
        await one.generation()
        await remember(database, ["I went to (3, 4)"] * 10_000, tick=range(10_000))
        await drained(one)

        assert provider.ledger.billed_texts == {"I went to (3, 4)": 1}
        assert await counted(database, "embedding") == 1
        assert await counted(database, "recall_index") == 10_000

        await remember(database, ["I went to (3, 4)"], agent="bob")
        await drained(one)
    assert provider.ledger.totals().texts_sent == 1
    assert await counted(database, "recall_index") == 10_001
    assert await audited(database) == SOUND


async def test_memories_of_before_the_first_embedder_become_pending(
    database: Database, database_settings: DatabaseSettings
) -> None:
    await remember(database, ["a", "b"])
    assert await counted(database, "pending_embedding") == 0

    # Makes the space.
    async with handling(database, embedder_settings(database_settings)) as handler:
        await drained(handler)

    assert await counted(database, "recall_index") == 2
    assert await audited(database) == SOUND


async def test_no_memory_falls_between_writers_and_the_making_of_the_space(
    database: Database, database_settings: DatabaseSettings
) -> None:
    begun = asyncio.Event()

    async def write(number: int) -> None:
        for turn in range(40):
            await remember(database, [f"{number} {turn} {i}" for i in range(5)], tick=turn)
            if number == 0 and turn == 10:
                begun.set()

    async def make() -> None:
        await begun.wait()
        await made(database, embedder_settings(database_settings))

    async with asyncio.TaskGroup() as tasks:
        for number in range(3):
            tasks.create_task(write(number))
        tasks.create_task(make())

    assert await audited(database) == SOUND
    assert await counted(database, "pending_embedding") == 600


async def test_writer_under_way_holds_back_the_making_of_the_space(
    database: Database, database_settings: DatabaseSettings
) -> None:
    """Its memory was stored for no space: the backfill must wait until it can be seen."""
    async with database.writing() as session:
        await insert(session, ["told before there was a space"])
        making = asyncio.create_task(made(database, embedder_settings(database_settings)))
        await waiting_for_locks(database, 1)
    await making

    assert await counted(database, "pending_embedding") == 1
    assert await audited(database) == SOUND


async def test_two_embedders_make_one_space(
    database: Database, database_settings: DatabaseSettings
) -> None:
    settings = embedder_settings(database_settings)
    first, second = await asyncio.gather(made(database, settings), made(database, settings))

    assert first.id == second.id
    assert await counted(database, "index_generation") == 1


@pytest.mark.parametrize(
    "other",
    [
        {"embedding_dimensions": 32},
        {"embedding_model": "another", "embedding_provider": "openai"},
        {"embedding_query_prefix": "query: "},
        {"embedding_document_prefix": "passage: "},
    ],
)
async def test_embedder_of_another_space_ends_with_one_sentence(
    database: Database, database_settings: DatabaseSettings, other: dict[str, Any]
) -> None:
    async with handling(database, embedder_settings(database_settings)) as first:
        await first.generation()
    async with handling(database, embedder_settings(database_settings, **other)) as second:
        with pytest.raises(ConfigurationError, match="TICKMIND_EMBEDDING_") as told:
            await Worker(second, concurrency=1, sweep_s=1).run(asyncio.Event())
    assert "\n" not in str(told.value)


async def test_memory_committed_between_claim_and_store_is_linked_in_the_next_round(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    async with handling(
        database, embedder_settings(database_settings, provider.base_url)
    ) as handler:
        await handler.generation()
        await remember(database, ["the well is dry"], agent="alice")
        await handler.sweep(full=True)
        jobs = await handler.claim()
        async with database.writing() as late:
            await insert(late, ["the well is dry"], agent="bob")
            await handler.embed(jobs)
            # Bob's memory is invisible to all of it, and not lost.
        assert await counted(database, "pending_embedding") == 1
        assert await audited(database) == SOUND

        await handler.sweep(full=False)

    assert await counted(database, "pending_embedding") == 0
    assert provider.ledger.times_sent("the well is dry") == 1
    assert await audited(database) == SOUND


async def test_memory_committed_while_the_vector_is_stored_is_linked_without_a_sweep(
    database: Database, database_settings: DatabaseSettings
) -> None:
    """Its own sweep came too early to see the vector, and the storing statement does not see it."""
    async with handling(database, embedder_settings(database_settings)) as handler:
        await handler.generation()
        await remember(database, ["before"], agent="bob")
        await remember(database, ["rain"], agent="alice")
        await handler.sweep(full=True)
        jobs = await handler.claim()
        async with database.writing() as session:
            await session.execute(
                text(
                    "SELECT FROM pending_embedding WHERE memory_id ="
                    " (SELECT id FROM memory WHERE content = 'rain') FOR UPDATE"
                )
            )
            embedding = asyncio.create_task(handler.embed(jobs))
            await waiting_for_locks(database, 1)  # the storing statement, which has begun to look
            await remember(database, ["rain"], agent="bob", tick=2)
            await handler.sweep(full=True)
        await embedding

    assert await counted(database, "pending_embedding") == 0
    assert await counted(database, "recall_index") == 3
    assert await audited(database) == SOUND


async def test_job_made_again_by_a_late_sweep_is_not_sent_again(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """A sweep that waits for the storing transaction inserts the job that it has just deleted."""
    async with handling(
        database, embedder_settings(database_settings, provider.base_url)
    ) as handler:
        generation = await handler.generation()
        await remember(database, ["rain"], agent="alice")
        await handler.sweep(full=True)
        async with database.writing() as session:
            vector = np.ones(64, dtype=np.float32)
            await store.store_vectors(session, generation.space_id, {content_hash("rain"): vector})
            late = asyncio.create_task(handler.sweep(full=True))
            await waiting_for_locks(database, 1)
        await late
        await remember(database, ["rain"], agent="bob")
        assert await counted(database, "embedding_job") == 1  # else the test shows nothing

        assert await handler.claim() == []

        assert await counted(database, "embedding_job") == 0
        await handler.sweep(full=True)
    assert provider.ledger.totals().calls == 0
    assert await counted(database, "pending_embedding") == 0
    assert await audited(database) == SOUND


async def test_memory_committed_late_below_seen_ids_is_found_by_hints_alone(
    database: Database, database_settings: DatabaseSettings
) -> None:
    async with handling(database, embedder_settings(database_settings)) as handler:
        await handler.generation()
        await remember(database, ["before"], agent="alice")
        await remember(database, ["before"], agent="bob")
        await drained(handler)
        async with database.writing() as slow:
            await insert(slow, ["begun first, committed last"], agent="alice")
            await remember(database, ["committed first"], agent="bob", tick=2)
            await handler.sweep(full=False)
            await handler.sweep(full=False)
        await handler.sweep(full=False)
        assert await counted(database, "embedding_job") == 2

        # Once nothing is under way, a hint does not look at the old rows again.
        await handler.sweep(full=False)
        chunks: list[store.Swept] = []

        def go_on(swept: store.Swept) -> bool:
            chunks.append(swept)
            return True

        await handler.sweep(full=False, go_on=go_on)
    assert [chunk.seen for chunk in chunks] == [0]


async def test_linking_goes_on_while_the_provider_is_down(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    async with handling(
        database, embedder_settings(database_settings, provider.base_url)
    ) as handler:
        await handler.generation()
        await remember(database, ["hello bob"], agent="alice")
        await drained(handler)
        provider.faults.add(Outage(), Always())
        worker = Worker(handler, concurrency=1, sweep_s=600)
        stop = asyncio.Event()
        working = asyncio.create_task(worker.run(stop))
        await remember(database, ["something new"], agent="alice")
        worker.hint()
        await provider.ledger.wait_until(lambda ledger: ledger.totals().calls_while_down >= 1)

        await remember(database, ["hello bob"], agent="bob")
        worker.hint()

        await eventually(
            lambda: counted(database, "recall_index"), lambda n: n == 2, what="linked while down"
        )
        stop.set()
        await working
    assert await counted(database, "embedding_job WHERE attempts > 0") == 0
    assert await audited(database) == SOUND


async def test_two_embedders_beside_writers_send_no_text_twice_and_lose_none(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    provider.options = ProviderOptions(native_width=64, latency_s=0.005, latency_jitter_s=0.02)
    settings = embedder_settings(database_settings, provider.base_url, embedding_max_inputs=8)
    stop = asyncio.Event()
    async with handling(database, settings) as one, handling(database, settings) as other:
        workers = [Worker(handler, concurrency=2, sweep_s=0.05) for handler in (one, other)]

        async def write(number: int) -> None:
            for turn in range(25):
                texts = [f"shared {turn}", f"own {number} {turn}", f"shared {turn % 7}"]
                await remember(database, texts, agent=f"agent {number}", tick=turn)
                for worker in workers:
                    worker.hint()

        working = [asyncio.create_task(worker.run(stop)) for worker in workers]
        async with asyncio.TaskGroup() as tasks:
            for number in range(3):
                tasks.create_task(write(number))
        await eventually(
            lambda: counted(database, "pending_embedding"), lambda n: n == 0, what="pending"
        )
        stop.set()
        await asyncio.gather(*working)

    assert set(provider.ledger.billed_texts.values()) == {1}
    assert len(provider.ledger.billed_texts) == 100
    assert await counted(database, "recall_index") == 225
    assert await counted(database, "embedding_job") == 0
    assert await audited(database) == SOUND


async def test_lease_that_ran_out_is_claimed_anew_and_its_old_holder_changes_nothing(
    database: Database, database_settings: DatabaseSettings
) -> None:
    settings = embedder_settings(database_settings)
    async with handling(database, settings) as dead, handling(database, settings) as heir:
        generation = await dead.generation()
        await remember(database, ["orphaned"])
        await dead.sweep(full=True)
        (lost,) = await dead.claim()
        assert await heir.claim() == []

        await leases_run_out(database)
        (found,) = await heir.claim()

        assert (found.content, found.attempts) == ("orphaned", 2)
        async with database.writing() as session:
            assert await leases.park(session, generation.space_id, [lost], reason="late") == 0
            await leases.release(session, generation.space_id, [lost])
        assert await counted(database, "embedding_job WHERE lease_token IS NOT NULL") == 1
        await heir.embed([found])
    assert await audited(database) == SOUND
    assert await counted(database, "recall_index") == 1


async def test_same_text_is_not_claimed_twice_by_one_process(
    database: Database, database_settings: DatabaseSettings
) -> None:
    async with handling(database, embedder_settings(database_settings)) as handler:
        await handler.generation()
        await remember(database, [f"text {i}" for i in range(50)])
        await handler.sweep(full=True)
        claims = await asyncio.gather(*(handler.claim(most=10) for _ in range(6)))

    texts = [job.content for jobs in claims for job in jobs]
    assert sorted(texts) == sorted(f"text {i}" for i in range(50))


async def test_important_texts_come_first_and_old_ones_do_not_starve(
    database: Database, database_settings: DatabaseSettings
) -> None:
    """A minute of waiting outweighs a point of importance."""
    async with handling(database, embedder_settings(database_settings)) as handler:
        await handler.generation()
        await remember(database, ["routine, old"], importance=2)
        await handler.sweep(full=True)
        async with database.writing() as session:  # seven minutes ago
            await session.execute(
                text("UPDATE embedding_job SET due_order = due_order - 7 * 60000")
            )
        await remember(database, ["routine, new", "talk, new", "fire, new"], importance=[2, 8, 10])
        await handler.sweep(full=True)

        order = [(await handler.claim(most=1))[0].content for _ in range(4)]

    assert order == ["fire, new", "routine, old", "talk, new", "routine, new"]


async def test_texts_without_memory_do_not_stand_before_others(
    database: Database, database_settings: DatabaseSettings
) -> None:
    """A deleted world may leave more jobs at the head than one claim takes."""
    settings = embedder_settings(database_settings, embedding_max_inputs=4)
    async with handling(database, settings) as handler:
        await handler.generation()
        await remember(database, [f"gone {i}" for i in range(10)], world="gone", importance=10)
        await remember(database, ["stays"], world="stays", importance=1)
        await handler.sweep(full=True)
        async with database.writing() as session:
            assert await delete_world(session, "gone")

        assert [job.content for job in await handler.claim()] == ["stays"]


async def test_deleting_a_world_while_it_is_linked_escapes_without_deadlock(
    database: Database, database_settings: DatabaseSettings
) -> None:
    async with handling(database, embedder_settings(database_settings)) as handler:
        await handler.generation()
        for turn in range(8):
            await remember(database, [f"text {i % 50}" for i in range(300)], world=f"w{turn}")
            await remember(database, [f"text {i % 50}" for i in range(50)], world="kept")

            async def deleted(world: str) -> None:
                await delete(database.writing, world, at_once=100)
                await collect(database.writing, at_once=20)

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(drained(handler))
                tasks.create_task(deleted(f"w{turn}"))
                tasks.create_task(drained(handler))
        await drained(handler)

    assert await counted(database, "recall_index") == 400
    assert await counted(database, "pending_embedding") == 0
    assert await audited(database) == SOUND


async def test_embeddings_of_deleted_worlds_are_collected_and_bought_again_when_needed(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    async with handling(
        database, embedder_settings(database_settings, provider.base_url)
    ) as handler:
        await handler.generation()
        await remember(database, ["ours alone", "shared"], world="gone")
        await remember(database, ["shared"], world="kept")
        await drained(handler)
        async with database.writing() as session:
            await delete_world(session, "gone")
        assert await collect(database.writing) == 1

        await remember(database, ["ours alone"], world="kept")
        await drained(handler)

    assert provider.ledger.billed_texts == {"ours alone": 2, "shared": 1}
    assert await counted(database, "recall_index") == 2
    assert await audited(database) == SOUND


async def test_parked_text_parks_its_later_memories_and_retrying_brings_all_back(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    rule = provider.faults.add(Status(code=400), Containing(substring="unspeakable"))
    async with handling(
        database, embedder_settings(database_settings, provider.base_url)
    ) as handler:
        await handler.generation()
        await remember(database, ["unspeakable"], agent="alice")
        await drained(handler)
        assert await counted(database, "pending_embedding WHERE parked") == 1
        await remember(database, ["unspeakable"], agent="bob")
        await drained(handler)
        assert await counted(database, "pending_embedding WHERE parked") == 2
        assert await audited(database) == SOUND

        provider.faults.remove(rule)
        async with database.writing() as session:
            assert await retry_parked(session) == 1
        await drained(handler)

    assert await counted(database, "recall_index") == 2
    assert await audited(database) == SOUND


async def test_claim_after_a_database_outage_gives_back_what_is_owed(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """Texts whose answer could not be stored are charged nothing for it."""
    async with handling(
        database, embedder_settings(database_settings, provider.base_url)
    ) as handler:
        await handler.generation()
        await remember(database, ["a", "b"])
        await handler.sweep(full=True)
        jobs = await handler.claim()
        handler._outcomes.owe(jobs)

        again = await handler.claim()

    assert [job.attempts for job in again] == [1, 1]


async def test_space_is_made_once_however_it_is_asked_for(database: Database) -> None:
    space = Space(model="test", dimensions=8)
    async with database.writing() as session:
        made = await ensure_space(session, space)
    async with database.writing() as session:
        found = await ensure_space(session, Space(model="other", dimensions=8))
    assert found.id == made.id
    assert found.space == space


async def test_embedding_fails_while_paused_and_keeps_no_lease(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    provider.faults.add(Outage(), Always())
    async with handling(
        database, embedder_settings(database_settings, provider.base_url)
    ) as handler:
        await handler.generation()
        await remember(database, ["a", "b"])
        await handler.sweep(full=True)
        jobs = await handler.claim()
        with pytest.raises(ProviderPaused):
            await handler.embed(jobs)
    assert await counted(database, "embedding_job WHERE lease_token IS NOT NULL") == 0
    assert await counted(database, "embedding_job WHERE attempts > 0") == 0
