"""What the embedder makes of requests that are refused: parameters, poison, keys."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fleet import finished, fleet, make_impatient, promises_kept
from tests.remembering import counted, embedder_settings, remember
from tests.running import eventually
from tickmind.database import Database
from tickmind.local.provider.faults import Body, RefuseParameter, Status
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.running import Provider
from tickmind.local.provider.triggers import Always, Containing
from tickmind.settings import DatabaseSettings

TEXTS = [f"text number {i}" for i in range(25)]
POISON = "the poison text, of at most 3 items and no encoding_format"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    make_impatient(monkeypatch)


def requests(provider: Provider) -> list[tuple[str, ...]]:
    return [call.asked.texts for call in provider.ledger.calls]


# --- Parameters -------------------------------------------------------------------------------


@pytest.mark.parametrize("body", ["openai", "gemini", "flat", "text"])
@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"encodings": frozenset({"base64"})}, {"embedding_encoding_format": "float"}),
        ({"encodings": frozenset({"float"})}, {"embedding_encoding_format": "base64"}),
        ({"supports_dimensions": False}, {"embedding_send_dimensions": True}),
        (
            {"supports_dimensions": False, "encodings": frozenset({"base64"})},
            {"embedding_send_dimensions": True, "embedding_encoding_format": "float"},
        ),
    ],
    ids=["float", "base64", "dimensions", "both"],
)
async def test_refused_parameter_is_left_out_from_then_on(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    options: dict[str, Any],
    sent: dict[str, Any],
    body: Body,
) -> None:
    """Two callers find it out at most once each; nobody is charged and nothing is halved."""
    provider.options = ProviderOptions(native_width=96, error_body=body, **options)
    settings = embedder_settings(
        database_settings, provider.base_url, embedding_max_inputs=5, **sent
    )
    await remember(database, TEXTS)
    async with fleet(settings):
        await finished(database)

    refused = [call for call in provider.ledger.calls if call.status == 400]
    assert 1 <= len(refused) <= 2 * len(sent)
    assert {len(texts) for texts in requests(provider)} == {5}
    assert provider.ledger.billed_texts == dict.fromkeys(TEXTS, 1)
    await promises_kept(database, TEXTS)


async def test_text_that_speaks_of_a_parameter_leaves_none_out(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """The provider quotes the text it refuses."""
    message = f"this text is not liked: {POISON!r}"
    provider.faults.add(Status(code=400, message=message), Containing(substring="poison"))
    settings = embedder_settings(
        database_settings, provider.base_url, embedding_encoding_format="base64"
    )
    await remember(database, [POISON, *TEXTS])
    async with fleet(settings):
        await finished(database)

    assert {call.asked.encoding_format for call in provider.ledger.calls} == {"base64"}
    assert max(map(len, requests(provider)[-3:])) > 3  # nor is its number taken for a cap
    await promises_kept(database, [POISON, *TEXTS], parked={POISON: "refused the request (400)"})


async def test_width_that_the_model_has_not_is_told_in_one_sentence(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """case 12: asked for 64 of 32, first with the parameter, then without."""
    provider.options = ProviderOptions(native_width=32)
    settings = embedder_settings(
        database_settings, provider.base_url, embedding_send_dimensions=True
    )
    await remember(database, TEXTS)
    async with fleet(settings) as (replica,):
        await provider.ledger.wait_until(lambda ledger: ledger.totals().calls >= 20)
        assert "32 wide where the space has 64" in str(await replica.fault())
        assert await counted(database, "embedding_job WHERE attempts > 1") == 0
        provider.options = ProviderOptions(native_width=64)
        await finished(database)
    await promises_kept(database, TEXTS)


# --- Texts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 413, 422])
@pytest.mark.parametrize("body", ["openai", "gemini", "html", "empty"])
async def test_refused_text_is_parked_alone(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    status: int,
    body: Body,
) -> None:
    """case 34: halved down to it; no request is sent twice, no neighbour is sent for nothing."""
    provider.faults.add(Status(code=status, body=body), Containing(substring="poison"))
    settings = embedder_settings(database_settings, provider.base_url)
    await remember(database, [*TEXTS, POISON])
    async with fleet(settings, replicas=2):
        await finished(database)

    sent = requests(provider)
    assert len(set(sent)) == len(sent) <= 14
    assert {times for t, times in provider.ledger.billed_texts.items() if t != "hello"} == {1}
    await promises_kept(
        database, [*TEXTS, POISON], parked={POISON: f"refused the request ({status})"}
    )


# --- Us ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_refused_key_or_model_pauses_charges_nobody_and_is_told(
    database: Database, database_settings: DatabaseSettings, provider: Provider, status: int
) -> None:
    """One replica with an old key holds the others up in nothing."""
    key = {"embedding_api_key": "old"} if status == 401 else {}
    if status == 401:
        provider.options = ProviderOptions(native_width=64, api_key="new")
    else:
        provider.faults.add(Status(code=status), Always())
    settings = embedder_settings(
        database_settings, provider.base_url, embedding_max_inputs=5, **key
    )
    await remember(database, TEXTS)
    async with fleet(settings) as (replica,):
        await provider.ledger.wait_until(lambda ledger: ledger.totals().calls >= 10)
        fault = f"refused us ({status}): check TICKMIND_EMBEDDING_API_KEY, _BASE_URL and _MODEL"
        assert fault in str(await replica.fault())
        assert await counted(database, "embedding_job WHERE attempts > 1") == 0
        totals = provider.ledger.totals()
        assert totals.texts_sent <= 2 * 5 + totals.calls
        provider.faults.clear()
        provider.options = ProviderOptions(native_width=64)
        await finished(database)
        await eventually(replica.fault, lambda told: told is None, what="ready")
    await promises_kept(database, TEXTS)


async def test_replica_with_an_old_key_holds_up_no_other(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """A key is being replaced: some have the new one already."""
    provider.options = ProviderOptions(native_width=64, api_key="new")
    old, new = (
        embedder_settings(
            database_settings, provider.base_url, embedding_api_key=key, embedding_max_inputs=5
        )
        for key in ("old", "new")
    )
    async with fleet(old):
        await remember(database, TEXTS)
        await provider.ledger.wait_until(lambda ledger: "401" in ledger.totals().statuses)
        async with fleet(new):
            await finished(database)
    await promises_kept(database, TEXTS)


async def test_encoding_refused_by_a_rule_is_no_reason_to_halve(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    provider.faults.add(RefuseParameter(parameter="base64"), Always())
    settings = embedder_settings(
        database_settings, provider.base_url, embedding_encoding_format="base64"
    )
    await remember(database, TEXTS)
    async with fleet(settings):
        await finished(database)
    assert provider.ledger.totals().statuses == {"400": 1, "200": 1}
