"""What becomes of each text: blank, long, refused, poisonous, badly answered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import text

from tests.remembering import (
    audited,
    counted,
    drained,
    embedder_settings,
    handling,
    remember,
)
from tests.running import SOUND
from tickmind.database import Database
from tickmind.hashed import hash_embed
from tickmind.identity import content_hash
from tickmind.local.provider.faults import (
    BadVector,
    Fault,
    Hang,
    Status,
    WrongCount,
    WrongWidth,
)
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.running import Provider
from tickmind.local.provider.triggers import Always, Containing, Next
from tickmind.pieces import fit, pool, split
from tickmind.settings import DatabaseSettings
from tickmind.store.inspection import parked_texts
from tickmind_embedder.handler import Handler, ProviderPaused

POISON = "the poison text"


async def test_blank_texts_are_final_without_a_call(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """case 2: a and b are embedded, blanks never sent and done with."""
    provider.options = ProviderOptions(native_width=64, refuses="blank")
    async with handling(
        database, embedder_settings(database_settings, provider.base_url)
    ) as handler:
        await handler.generation()
        await remember(database, ["a", "", " ", "\n", "\u200b\u00ad", "b"])
        await drained(handler)

    assert sorted(provider.ledger.billed_texts) == ["a", "b"]
    assert provider.ledger.totals().texts_sent == 2
    assert await counted(database, "recall_index") == 6
    assert await counted(database, "embedding_job") == 0
    assert await counted(database, "embedding WHERE l2_norm(vector) = 0") == 4
    assert await audited(database) == SOUND


async def test_claim_goes_on_behind_a_claim_of_blanks_alone(
    database: Database, database_settings: DatabaseSettings
) -> None:
    settings = embedder_settings(database_settings, embedding_max_inputs=3)
    async with handling(database, settings) as handler:
        await handler.generation()
        await remember(database, [" " * i for i in range(1, 8)], importance=10)
        await remember(database, ["a word"], importance=1)
        await handler.sweep(full=True)
        assert [job.content for job in await handler.claim()] == ["a word"]


#: 9,000 characters in different sentences.
CHINESE = "".join(f"集市上第{i:04}天有新鲜的鱼卖，老王说。" for i in range(450))


async def test_long_chinese_talk_is_stored_whole_and_embedded_in_pieces(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """case 3: its vector is that of its pieces, pooled by length and of unit length."""
    settings = embedder_settings(database_settings, provider.base_url)
    async with handling(database, settings) as handler:
        await handler.generation()
        await remember(database, [CHINESE, "short"])
        await drained(handler)

    pieces = split(CHINESE, max_chars=4000, overlap_chars=200)
    assert sorted(provider.ledger.billed_texts) == sorted([*pieces, "short"])
    assert provider.ledger.totals().calls == 1
    expected = pool(np.stack([hash_embed(piece, 64) for piece in pieces]), list(map(len, pieces)))
    assert await _vector(database, CHINESE) == pytest.approx(expected, abs=1e-3)
    assert await counted(database, "memory WHERE content = :content", content=CHINESE) == 1


async def test_text_longer_than_the_model_takes_is_embedded_in_smaller_pieces(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """case 3: our pieces are of 4,000 characters, the model takes 2,048 tokens."""
    provider.options = ProviderOptions(native_width=64, max_tokens_per_text=2048)
    async with handling(
        database, embedder_settings(database_settings, provider.base_url)
    ) as handler:
        await handler.generation()
        await remember(database, [CHINESE, "short"])
        await drained(handler)

    sent = "".join(sorted(provider.ledger.billed_texts, key=len))
    assert set(CHINESE) < set(sent)
    assert provider.ledger.totals().calls <= 16
    assert await counted(database, "recall_index") == 2
    assert np.linalg.norm(await _vector(database, CHINESE)) == pytest.approx(1, abs=1e-3)


async def test_text_that_is_always_too_long_is_parked_in_bounded_calls(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """case 3: its neighbours are embedded."""
    provider.faults.add(Status(code=400), Containing(substring="集市"))
    neighbours = [f"neighbour {i}" for i in range(40)]
    async with handling(
        database, embedder_settings(database_settings, provider.base_url)
    ) as handler:
        await handler.generation()
        await remember(database, [CHINESE, *neighbours])
        await drained(handler)
        calls = provider.ledger.totals().calls
        assert calls <= 30
        await drained(handler)
        assert provider.ledger.totals().calls == calls

    assert await counted(database, "recall_index") == 40
    (parked,) = await _parked(database)
    assert parked == ("the embedding API refused the request (400)", CHINESE, 1)
    assert await audited(database) == SOUND


async def test_many_pieces_over_the_servers_cap_are_sent_in_smaller_requests(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """case 34: one text, more pieces than the server takes at once; no request is sent twice."""
    provider.options = ProviderOptions(native_width=64, max_inputs=4)
    settings = embedder_settings(
        database_settings, provider.base_url, embedding_max_chars=500, embedding_overlap_chars=0
    )
    async with handling(database, settings) as handler:
        await handler.generation()
        await remember(database, [CHINESE])
        await drained(handler)

    requests = [call.asked.texts for call in provider.ledger.calls]
    assert len(set(requests)) == len(requests)
    assert await counted(database, "recall_index") == 1


async def test_texts_with_many_pieces_are_stored_answer_by_answer(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """One transaction a reply: the third call fails, what the first two gave is kept."""
    settings = embedder_settings(
        database_settings,
        provider.base_url,
        embedding_max_chars=100,
        embedding_overlap_chars=0,
        embedding_max_inputs=10,
    )
    provider.faults.add(Status(code=503), Next(after=2))
    async with handling(database, settings) as handler:
        await handler.generation()
        await remember(database, [" ".join(f"word {i} {j}" for j in range(35)) for i in range(8)])
        with pytest.raises(ProviderPaused):
            await drained(handler)
        assert await counted(database, "embedding") == 4
        await drained(handler)

    assert max(len(call.asked.texts) for call in provider.ledger.calls) <= 10
    assert set(provider.ledger.billed_texts.values()) == {1}
    assert await counted(database, "recall_index") == 8


async def test_literal_control_token_is_embedded_with_its_neighbours(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """case 4: <|endoftext|> among five texts."""
    texts = ["a", "b", "<|endoftext|>", "c", "d"]
    async with handling(
        database, embedder_settings(database_settings, provider.base_url)
    ) as handler:
        await handler.generation()
        await remember(database, texts)
        await drained(handler)

    assert sorted(provider.ledger.billed_texts) == sorted(texts)
    assert await counted(database, "recall_index") == 5


async def test_narrower_vectors_write_nothing_and_claim_no_success(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """case 12: 384 numbers where the space has 1536; nobody is charged for the settings."""
    provider.options = ProviderOptions(native_width=384)
    registry = CollectorRegistry()
    settings = embedder_settings(database_settings, provider.base_url, embedding_dimensions=1536)
    async with handling(database, settings, registry=registry) as handler:
        await handler.generation()
        await remember(database, [f"text {i}" for i in range(100)])
        for _ in range(3):
            with pytest.raises(ProviderPaused, match=r"384.*1536"):
                await drained(handler)
        assert provider.ledger.totals().calls <= 3 * 9
        assert await counted(database, "embedding") == 0
        assert await counted(database, "recall_index") == 0
        assert await counted(database, "embedding_job WHERE attempts > 0") == 0
        assert _metric(registry, "tickmind_embedding_texts_total", outcome="embedded") == 0
        assert _metric(registry, "tickmind_embedding_calls_total", outcome="ok") == 0
        invalid = {"outcome": "embedding_invalid"}
        assert _metric(registry, "tickmind_embedding_calls_total", **invalid) >= 3

        provider.options = ProviderOptions(native_width=1536)
        await drained(handler)
    assert await counted(database, "recall_index") == 100


async def test_wider_vectors_are_cut_and_renormalised(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """case 16: a 3072-wide model in a space of 1536."""
    provider.options = ProviderOptions(native_width=3072)
    settings = embedder_settings(database_settings, provider.base_url, embedding_dimensions=1536)
    async with handling(database, settings) as handler:
        await handler.generation()
        await remember(database, ["fish"])
        await drained(handler)

    stored = await _vector(database, "fish")
    assert stored.shape == (1536,)
    assert stored == pytest.approx(fit(hash_embed("fish", 3072), 1536), abs=1e-3)


async def test_text_that_fails_its_batch_with_500_is_parked_alone(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """case 13: 15 embedded, one parked after bounded attempts."""
    provider.faults.add(Status(code=500), Containing(substring="poison"))
    settings = embedder_settings(database_settings, provider.base_url, embedder_max_attempts=3)
    async with handling(database, settings) as handler:
        await handler.generation()
        await remember(database, [*(f"sound {i}" for i in range(15)), POISON])
        rounds = await _until_done(database, handler)

    assert await counted(database, "recall_index") == 15
    assert await _parked(database) == [("the embedding API answered 500", POISON, 3)]
    assert rounds <= 8
    assert provider.ledger.times_sent(POISON) <= 2 + 5 + 3 * 2
    assert provider.ledger.totals().calls <= 30
    sound = {t: n for t, n in provider.ledger.billed_texts.items() if t.startswith("sound")}
    assert sound == {f"sound {i}": 1 for i in range(15)}
    assert await audited(database) == SOUND


async def test_several_poison_texts_are_parked_and_every_other_embedded(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """case 13, at the head of the queue and in the middle of it."""
    provider.faults.add(Status(code=500), Containing(substring="poison"))
    settings = embedder_settings(
        database_settings, provider.base_url, embedder_max_attempts=2, embedding_max_inputs=16
    )
    texts = [f"poison {i}" if i in (0, 1, 17, 30) else f"sound {i}" for i in range(48)]
    async with handling(database, settings) as handler:
        await handler.generation()
        await remember(database, texts)
        await _until_done(database, handler)

    assert await counted(database, "recall_index") == 44
    assert [content for _, content, _ in await _parked(database)] == [
        "poison 0",
        "poison 1",
        "poison 17",
        "poison 30",
    ]
    assert await audited(database) == SOUND


async def test_text_that_hangs_the_server_is_parked_alone(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """case 13: a call that never ends may be a text's doing as well."""
    provider.faults.add(Hang(), Containing(substring="poison"))
    settings = embedder_settings(
        database_settings,
        provider.base_url,
        embedder_max_attempts=1,
        embedding_timeout_s=0.5,  # calls that pass take a hundredth of it
    )
    async with handling(database, settings) as handler:
        await handler.generation()
        await remember(database, ["a", "b", POISON, "c"])
        await _until_done(database, handler)

    assert await counted(database, "recall_index") == 3
    assert await _parked(database) == [("the embedding API did not answer within 0.5 s", POISON, 1)]


async def test_refused_text_is_parked_and_its_batch_not_resent_unchanged(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """case 34: a 400 is halved; the text alone is parked with its reason."""
    provider.faults.add(Status(code=422), Containing(substring="poison"))
    async with handling(
        database, embedder_settings(database_settings, provider.base_url)
    ) as handler:
        await handler.generation()
        await remember(database, [*(f"sound {i}" for i in range(31)), POISON])
        await drained(handler)

    requests = [call.asked.texts for call in provider.ledger.calls]
    assert len(set(requests)) == len(requests) <= 12
    assert await counted(database, "recall_index") == 31
    assert await _parked(database) == [("the embedding API refused the request (422)", POISON, 1)]


async def test_requests_keep_the_servers_input_cap(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """case 34: cap 10, 25 texts: 10, 10, 5."""
    provider.options = ProviderOptions(native_width=64, max_inputs=10)
    settings = embedder_settings(database_settings, provider.base_url, embedding_max_inputs=10)
    async with handling(database, settings) as handler:
        await handler.generation()
        await remember(database, [f"text {i}" for i in range(25)])
        await drained(handler)

    assert [len(call.asked.texts) for call in provider.ledger.calls] == [10, 10, 5]
    assert provider.ledger.totals().statuses == {"200": 3}


async def test_unknown_input_cap_is_halved_until_it_fits(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """case 34: the settings say 100, the server takes 10."""
    provider.options = ProviderOptions(native_width=64, max_inputs=10)
    async with handling(
        database, embedder_settings(database_settings, provider.base_url)
    ) as handler:
        await handler.generation()
        await remember(database, [f"text {i}" for i in range(25)])
        await drained(handler)

    assert await counted(database, "recall_index") == 25
    requests = [call.asked.texts for call in provider.ledger.calls]
    assert len(set(requests)) == len(requests) <= 7
    assert set(provider.ledger.billed_texts.values()) == {1}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (BadVector(how="zero"), "norm is zero"),
        (BadVector(how="nan"), "not finite"),
        (BadVector(how="null"), "neither numbers nor base64"),
    ],
)
async def test_vector_that_is_none_is_refused_and_its_text_parked(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    fault: Fault,
    reason: str,
) -> None:
    """case 14: no zero vector is stored for a text that has a meaning."""
    provider.faults.add(fault, Containing(substring="poison"))
    settings = embedder_settings(database_settings, provider.base_url, embedder_max_attempts=2)
    async with handling(database, settings) as handler:
        await handler.generation()
        await remember(database, [*(f"sound {i}" for i in range(6)), POISON])
        await _until_done(database, handler)

    assert await counted(database, "recall_index") == 6
    assert await counted(database, "embedding WHERE l2_norm(vector) < 0.9") == 0
    ((told, content, attempts),) = await _parked(database)
    assert (content, attempts) == (POISON, 2)
    assert reason in told


async def test_too_few_vectors_are_none_guessed_and_all_embedded_in_the_end(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """case 31: 3 vectors for 4 texts."""
    provider.faults.add(WrongCount(by=-1), Next())
    async with handling(
        database, embedder_settings(database_settings, provider.base_url)
    ) as handler:
        await handler.generation()
        await remember(database, ["a", "b", "c", "d"])
        await drained(handler)

    for content in "abcd":
        assert await _vector(database, content) == pytest.approx(hash_embed(content, 64), abs=1e-3)
    assert await counted(database, "recall_index") == 4


async def test_one_vector_of_another_width_voids_the_whole_answer(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    provider.faults.add(WrongWidth(width=63, position=1), Next())
    async with handling(
        database, embedder_settings(database_settings, provider.base_url)
    ) as handler:
        await handler.generation()
        await remember(database, ["a", "b"])
        await drained(handler)

    assert await counted(database, "recall_index") == 2
    assert set(provider.ledger.billed_texts.values()) == {2}


async def test_provider_that_refuses_everything_parks_nothing(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """A parameter it does not know is the settings' fault, not that of 300 texts."""
    provider.faults.add(Status(code=400), Always())
    async with handling(
        database, embedder_settings(database_settings, provider.base_url)
    ) as handler:
        await handler.generation()
        await remember(database, [f"text {i}" for i in range(300)])
        for _ in range(3):
            with pytest.raises(ProviderPaused, match="harmless text"):
                await drained(handler)
        assert await _parked(database) == []
        assert provider.ledger.totals().calls <= 3 * 9

        provider.faults.clear()
        await drained(handler)
    assert await counted(database, "recall_index") == 300


async def test_text_that_kills_its_worker_is_parked_alone(
    database: Database, database_settings: DatabaseSettings
) -> None:
    """Attempts are counted before the call; its neighbours get company less and less alike."""
    settings = embedder_settings(database_settings, embedder_max_attempts=4)
    deaths = 0
    async with handling(database, settings) as handler:
        await handler.generation()
        await remember(database, [*(f"sound {i}" for i in range(99)), POISON])
        await handler.sweep(full=True)
        while jobs := await handler.claim():
            if any(job.content == POISON for job in jobs):
                deaths += 1
                async with database.writing() as session:
                    await session.execute(
                        text("UPDATE embedding_job SET lease_until = now() - interval '1 s'")
                    )
            else:
                await handler.embed(jobs)

    assert deaths == 4
    assert await counted(database, "recall_index") == 99
    assert await _parked(database) == [("no worker finished it in 4 attempts", POISON, 5)]
    assert await audited(database) == SOUND


async def _until_done(database: Database, handler: Handler) -> int:
    """Work off all there is, however often the provider pauses it; in how many rounds."""
    for turn in range(1, 40):
        try:
            await drained(handler)
        except ProviderPaused:
            continue
        if not await counted(database, "embedding_job WHERE parked_reason IS NULL"):
            return turn
        async with database.writing() as session:  # as if the time to try again had come
            await session.execute(text("UPDATE embedding_job SET not_before = now()"))
    raise AssertionError("the backlog is not worked off in 40 rounds")


async def _parked(database: Database) -> list[tuple[str, str | None, int]]:
    async with database.reading() as session:
        found = await parked_texts(session)
    return sorted(((p.reason, p.content, p.attempts) for p in found), key=str)


async def _vector(database: Database, content: str) -> Any:
    async with database.reading() as session:
        row = await session.execute(
            text("SELECT vector::vector::real[] FROM embedding WHERE content_hash = :hash"),
            {"hash": content_hash(content)},
        )
        return np.asarray(row.scalar_one(), dtype=np.float32)


def _metric(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(name, labels) or 0.0
