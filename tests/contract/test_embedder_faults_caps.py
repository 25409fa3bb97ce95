"""What the embedder makes of caps: inputs, tokens and bytes of a request, tokens of a text.

The text that is longer than the model takes and refused for it: tests/integration,
test_embedder_texts.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.fleet import WIDTH, finished, fleet, make_impatient, promises_kept
from tests.remembering import embedder_settings, remember
from tickmind.database import Database
from tickmind.hashed import hash_embed
from tickmind.local.provider.faults import Status
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.running import Provider
from tickmind.local.provider.tokens import count_tokens
from tickmind.local.provider.triggers import LargerThan
from tickmind.pieces import pool
from tickmind.settings import DatabaseSettings

TEXTS = [f"text number {i}" for i in range(25)]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    make_impatient(monkeypatch)


def requests(provider: Provider) -> list[tuple[str, ...]]:
    return [call.asked.texts for call in provider.ledger.calls]


@pytest.mark.parametrize(
    ("cap", "texts", "sizes", "status"),
    [
        (10, 25, [25, 10, 10, 5], 400),
        (10, 25, [25, 10, 10, 5], 413),
        (10, 25, [25, 10, 10, 5], 422),
        (32, 70, [70, 32, 32, 6], 413),
        (100, 130, [130, 100, 30], 422),
        (2048, 2060, [2048, 12], 400),
    ],
)
async def test_cap_of_inputs_is_learned_from_what_the_provider_says(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    cap: int,
    texts: int,
    sizes: list[int],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """case 34: 25 texts at a cap of 10 go as 10, 10 and 5; no 400 is sent again unchanged."""
    monkeypatch.setattr("tickmind_embedder.handler._SWEEP_ROWS", 5000)  # all are claimable at once
    provider.options = ProviderOptions(native_width=64, max_inputs=cap, cap_status=status)
    settings = embedder_settings(
        database_settings,
        provider.base_url,
        embedding_max_inputs=min(texts, 2048),
        embedder_concurrency=1,
    )
    contents = [f"text number {i}" for i in range(texts)]
    await remember(database, contents)
    async with fleet(settings):
        await finished(database)

    assert [len(sent) for sent in requests(provider)] == sizes
    assert provider.ledger.billed_texts == dict.fromkeys(contents, 1)
    await promises_kept(database, contents)


@pytest.mark.parametrize("cap", [3, 10])
async def test_cap_that_is_not_told_is_found_by_halving_and_kept_to(
    database: Database, database_settings: DatabaseSettings, provider: Provider, cap: int
) -> None:
    """case 34: most calls that are refused are those of the first batch."""
    provider.faults.add(Status(code=400, message="Bad request"), LargerThan(texts=cap))
    settings = embedder_settings(
        database_settings,
        provider.base_url,
        embedding_max_inputs=100,
        embedder_concurrency=1,
    )
    contents = [f"text number {i} {'and so on ' * (i % 7)}" for i in range(40 * cap)]
    await remember(database, contents)
    async with fleet(settings):
        await finished(database)

    sent = requests(provider)
    assert len(set(sent)) == len(sent)
    refused = [call for call in provider.ledger.calls if call.status == 400]
    assert len(refused) <= 20
    assert provider.ledger.billed_texts == dict.fromkeys(contents, 1)
    assert len(sent) - len(refused) <= 2.6 * len(contents) / cap
    await promises_kept(database, contents)


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"max_body_bytes": 900}, 413),
        ({"max_tokens_per_request": 60}, 400),
    ],
    ids=["bytes", "tokens"],
)
async def test_cap_of_size_is_found_by_halving_and_kept_to(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    options: dict[str, Any],
    status: int,
) -> None:
    provider.options = ProviderOptions(native_width=64, **options)
    settings = embedder_settings(
        database_settings,
        provider.base_url,
        embedding_max_inputs=50,
        embedder_concurrency=1,
    )
    contents = [f"text number {i} of some length" for i in range(200)]
    await remember(database, contents)
    async with fleet(settings):
        await finished(database)

    statuses = provider.ledger.totals().statuses
    assert 1 <= statuses[str(status)] <= 8
    assert statuses["200"] <= 50
    await promises_kept(database, contents)


@pytest.mark.parametrize(
    "known", [{"embedding_max_bytes": 900}, {"embedding_max_tokens": 60}], ids=["bytes", "tokens"]
)
async def test_caps_of_the_settings_are_kept_from_the_first_call_on(
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    known: dict[str, Any],
) -> None:
    provider.options = ProviderOptions(
        native_width=64, max_body_bytes=1000, max_tokens_per_request=60
    )
    both = {"embedding_max_bytes": 800, "embedding_max_tokens": 60}
    settings = embedder_settings(database_settings, provider.base_url, **(both | known))
    contents = [f"text number {i} of some length" for i in range(60)]
    await remember(database, contents)
    async with fleet(settings):
        await finished(database)
    assert set(provider.ledger.totals().statuses) == {"200"}
    await promises_kept(database, contents)


#: Some 900 tokens of the model below, in sentences that all differ.
LONG = " ".join(f"In the market stall {i} sold fish, bread and news." for i in range(90))
LONG_CHINESE = "".join(f"集市上第{i:03}天有新鲜的鱼卖，老王说。" for i in range(60))


@pytest.mark.parametrize("text", [LONG, LONG_CHINESE], ids=["english", "chinese"])
async def test_no_text_is_long_enough_to_be_cut_in_silence(
    database: Database, database_settings: DatabaseSettings, provider: Provider, text: str
) -> None:
    """A model of 256 tokens that cuts what is longer and says nothing; the settings know it."""
    provider.options = ProviderOptions(native_width=64, max_tokens_per_text=256, over_length="cut")
    settings = embedder_settings(
        database_settings, provider.base_url, embedding_max_text_tokens=256
    )
    await remember(database, [text, *TEXTS])
    async with fleet(settings):
        await finished(database)

    pieces = [sent for sent in provider.ledger.billed_texts if sent not in TEXTS]
    assert 3 <= len(pieces) <= 12
    assert max(map(count_tokens, pieces)) <= 256
    assert {character for piece in pieces for character in piece} == set(text)
    ordered = sorted(pieces, key=text.index)
    assert ordered[0] == text[: len(ordered[0])]
    assert ordered[-1] == text[-len(ordered[-1]) :]

    def expected(content: str) -> NDArray[np.float32]:
        if content != text:
            return hash_embed(content, WIDTH)
        rows = np.stack([hash_embed(piece, WIDTH) for piece in ordered])
        return pool(rows, list(map(len, ordered)))

    await promises_kept(database, [text, *TEXTS], expected=expected)


async def test_text_over_every_limit_is_parked_and_holds_nobody_up(
    database: Database, database_settings: DatabaseSettings, provider: Provider
) -> None:
    """More tokens at once than the budget ever allows, in its smallest pieces."""
    settings = embedder_settings(
        database_settings, provider.base_url, embedding_limits="60 tokens/s, 1000 calls/s"
    )
    long = " ".join(f"word {i}" for i in range(150))
    await remember(database, [long], importance=10)
    await remember(database, TEXTS[:8])
    async with fleet(settings):
        await finished(database)
    assert provider.ledger.times_sent(long) == 0
    await promises_kept(database, [long, *TEXTS[:8]], parked={long: "TICKMIND_EMBEDDING_LIMITS"})
