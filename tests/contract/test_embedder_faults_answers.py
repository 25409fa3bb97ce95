"""What the embedder makes of answers: the right ones in odd forms, and the worthless ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fleet import finished, fleet, make_impatient, promises_kept
from tests.remembering import counted, embedder_settings, remember
from tests.running import eventually
from tickmind.database import Database
from tickmind.local.provider.faults import (
    BadIndex,
    BadVector,
    Fault,
    NoUsage,
    OneVector,
    OtherEncoding,
    Shuffled,
    Status,
    WrongCount,
    WrongWidth,
)
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.running import Provider
from tickmind.local.provider.triggers import Always, Containing, Next
from tickmind.settings import DatabaseSettings

TEXTS = [f"text number {i}" for i in range(40)]
BATCH = 10
POISON = "the poison text"

#: In an odd form, and right.
RIGHT: list[tuple[str, Fault]] = [
    ("shuffled", Shuffled()),
    ("shuffled-otherwise", Shuffled(seed=5)),
    ("index-zero-missing", BadIndex(how="missing", position=0)),
    ("one-index-missing", BadIndex(how="missing", position=4)),
    ("all-indices-missing", BadIndex(how="missing", position=None)),
    ("index-zero-null", BadIndex(how="null", position=0)),
    ("all-indices-null", BadIndex(how="null", position=None)),
    ("usage-missing", NoUsage()),
    ("one-unnormalised", BadVector(how="unnormalised", scale=7.0)),
    ("all-unnormalised", BadVector(how="unnormalised", position=None, scale=0.01)),
    ("wider", WrongWidth(width=96)),
]

#: Nothing of them can be trusted, however few texts were asked for.
WORTHLESS: list[tuple[str, Fault]] = [
    ("one-fewer", WrongCount(by=-1)),
    ("none", WrongCount(by=-BATCH)),
    ("one-more", WrongCount(by=1)),
    ("many-more", WrongCount(by=30)),
    ("foreign-index", BadIndex(how="foreign", position=2)),
    ("negative-index", BadIndex(how="negative", position=0)),
    ("one-narrower", WrongWidth(width=63, position=1)),
    ("all-narrower", WrongWidth(width=32)),
    ("nan", BadVector(how="nan", position=5)),
    ("all-nan", BadVector(how="nan", position=None)),
    ("infinity", BadVector(how="infinity", position=0)),
    ("null", BadVector(how="null", position=0)),
    ("zero", BadVector(how="zero", position=9)),
    ("all-zero", BadVector(how="zero", position=None)),
    ("error-under-200", Status(code=200)),
    ("gemini-error-under-200", Status(code=200, body="gemini")),
    ("flat-error-under-200", Status(code=200, body="flat")),
    ("page-under-200", Status(code=200, body="html")),
    ("empty-under-200", Status(code=200, body="empty")),
]

#: Worthless for several texts, and right for one alone.
WORTHLESS_TOGETHER: list[tuple[str, Fault]] = [
    ("one-vector", OneVector()),
    ("duplicate-index", BadIndex(how="duplicate", position=3)),
    ("all-indices-the-same", BadIndex(how="duplicate", position=None)),
    ("one-wider", WrongWidth(width=65, position=9)),
]


def each(faults: list[tuple[str, Fault]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "fault", [fault for _, fault in faults], ids=[name for name, _ in faults]
    )


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    make_impatient(monkeypatch)


@each(RIGHT)
async def test_right_answer_in_an_odd_form_is_taken_at_once(
    database: Database, database_settings: DatabaseSettings, provider: Provider, fault: Fault
) -> None:
    """cases 16, 30: each text is sent once."""
    provider.faults.add(fault, Always())
    await _taken_at_once(database, database_settings, provider)


@pytest.mark.parametrize("encoding", ["float", "base64", "omit"])
@pytest.mark.parametrize("as_asked", [True, False])
async def test_either_encoding_is_read_whichever_was_asked_for(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    encoding: str,
    as_asked: bool,
) -> None:
    """case 32."""
    if not as_asked:
        provider.faults.add(OtherEncoding(), Always())
    await _taken_at_once(database, database_settings, provider, embedding_encoding_format=encoding)


async def _taken_at_once(
    database: Database, settings: DatabaseSettings, provider: Provider, **options: Any
) -> None:
    await remember(database, TEXTS)
    async with fleet(
        embedder_settings(settings, provider.base_url, embedding_max_inputs=BATCH, **options)
    ):
        await finished(database)
    assert provider.ledger.totals().calls == len(TEXTS) / BATCH
    assert provider.ledger.billed_texts == dict.fromkeys(TEXTS, 1)
    await promises_kept(database, TEXTS)


@pytest.mark.parametrize("fault", [None, Shuffled()], ids=["in order", "shuffled"])
@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_gemini_writes_no_index_zero_and_cuts_without_normalising(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    encoding: str,
    fault: Fault | None,
) -> None:
    """case 30: wherever the item without an index stands."""
    if fault is not None:
        provider.faults.add(fault, Always())
    provider.options = ProviderOptions(
        native_width=96, omits_index_zero=True, normalises_cut=False, reports_usage=False
    )
    settings = embedder_settings(
        database_settings,
        provider.base_url,
        embedding_send_dimensions=True,
        embedding_encoding_format=encoding,
    )
    await remember(database, TEXTS)
    async with fleet(settings):
        await finished(database)
    await promises_kept(database, TEXTS)


@each(WORTHLESS_TOGETHER + WORTHLESS[::4])
async def test_worthless_answers_are_asked_for_again(
    database: Database, database_settings: DatabaseSettings, provider: Provider, fault: Fault
) -> None:
    """case 31: none of their vectors is kept, none is guessed, and nobody is charged for long."""
    provider.faults.add(fault, Next(requests=2))
    settings = embedder_settings(
        database_settings, provider.base_url, embedding_max_inputs=BATCH, embedder_concurrency=1
    )
    await remember(database, TEXTS)
    async with fleet(settings):
        await finished(database)

    await promises_kept(database, TEXTS)
    times = [provider.ledger.times_billed(text) for text in TEXTS]
    assert max(times) <= 3
    assert provider.ledger.totals().calls <= len(TEXTS) / BATCH + 10


@each(WORTHLESS_TOGETHER)
async def test_texts_whose_answers_are_worthless_together_are_embedded_alone(
    database: Database, database_settings: DatabaseSettings, provider: Provider, fault: Fault
) -> None:
    provider.faults.add(fault, Always())
    settings = embedder_settings(database_settings, provider.base_url, embedding_max_inputs=BATCH)
    await remember(database, TEXTS)
    async with fleet(settings):
        await finished(database)

    await promises_kept(database, TEXTS)
    assert provider.ledger.totals().calls <= 2 * len(TEXTS)


@each(WORTHLESS)
async def test_answers_that_stay_worthless_store_nothing_and_charge_nobody(
    database: Database, database_settings: DatabaseSettings, provider: Provider, fault: Fault
) -> None:
    """case 12: the model or the settings are wrong; once they are mended all goes on unaided."""
    provider.faults.add(fault, Always())
    settings = embedder_settings(
        database_settings, provider.base_url, embedding_max_inputs=BATCH, embedder_concurrency=2
    )
    await remember(database, TEXTS)
    async with fleet(settings) as (replica,):
        await provider.ledger.wait_until(lambda ledger: ledger.totals().calls >= 24)
        assert await counted(database, "embedding") == 0
        assert await counted(database, "recall_index") == 0
        assert await counted(database, "embedding_job WHERE attempts > 1") == 0
        assert await counted(database, "embedding_job WHERE parked_reason IS NOT NULL") == 0
        totals = provider.ledger.totals()
        # Two callers halve a batch each; after that one text at a time, and a harmless one.
        assert totals.texts_sent <= 2 * 2 * BATCH + totals.calls
        assert await replica.fault() is not None

        provider.faults.clear()
        await finished(database)
        await eventually(replica.fault, lambda told: told is None, what="ready")
    await promises_kept(database, TEXTS)


@pytest.mark.parametrize("how", ["nan", "infinity", "null", "zero"])
async def test_text_whose_vector_is_none_is_parked_alone(
    database: Database, database_settings: DatabaseSettings, provider: Provider, how: str
) -> None:
    """case 14: no zero vector is stored for a text that has a meaning."""
    provider.faults.add(
        BadVector(how=how, position=None),  # type: ignore[arg-type]
        Containing(substring="poison"),
    )
    settings = embedder_settings(
        database_settings,
        provider.base_url,
        embedding_max_inputs=BATCH,
        embedder_max_attempts=2,
    )
    await remember(database, [*TEXTS, POISON])
    async with fleet(settings, replicas=2):
        await finished(database)

    await promises_kept(database, [*TEXTS, POISON], parked={POISON: ""})
    assert provider.ledger.times_sent(POISON) <= 2 * 5
