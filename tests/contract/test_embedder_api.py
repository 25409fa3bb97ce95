"""What the embedder makes of an OpenAI-compatible API, in its good and bad moments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from tests.clock import SLACK_S, Clock
from tickmind.embedding import CallFailed, Embedder
from tickmind.errors import (
    ConfigurationError,
    EmbeddingFailed,
    EmbeddingUnavailable,
    TextRefused,
)
from tickmind.hashed import hash_embed, hash_embed_many
from tickmind.local.provider.faults import (
    BadIndex,
    BadVector,
    Drip,
    Fault,
    Hang,
    NoUsage,
    OneVector,
    OtherEncoding,
    Outage,
    RefuseParameter,
    Shuffled,
    Status,
    Throttle,
    Truncate,
    WrongCount,
    WrongWidth,
)
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.running import Provider
from tickmind.local.provider.triggers import Always
from tickmind.settings import EmbeddingSettings

TEXTS = ["the market sells fresh fish", "集市上有鲜鱼", "<|endoftext|>", "a", "?!"]


@asynccontextmanager
async def _embedder(provider: Provider, **options: Any) -> AsyncIterator[Embedder]:
    settings = EmbeddingSettings(
        **{
            "embedding_base_url": provider.base_url,
            "embedding_model": "test",
            "embedding_dimensions": 64,
            "embedding_timeout_s": 5.0,
            **options,
        }
    )
    async with Embedder(settings) as embedder:
        yield embedder


@pytest.mark.parametrize("encoding", ["float", "base64", "omit"])
async def test_vectors_are_those_of_the_model_in_every_encoding(
    provider: Provider, encoding: str
) -> None:
    """case 4, 32."""
    async with _embedder(provider, embedding_encoding_format=encoding) as embedder:
        vectors = await embedder.embed(TEXTS, "document")
    assert vectors == pytest.approx(hash_embed_many(TEXTS, 64), abs=1e-6)
    (call,) = provider.ledger.calls
    assert call.asked.encoding_format == (None if encoding == "omit" else encoding)
    assert call.asked.dimensions is None


@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_other_encoding_than_asked_gives_the_same_vectors(
    provider: Provider, encoding: str
) -> None:
    """case 32."""
    provider.faults.add(OtherEncoding())
    async with _embedder(provider, embedding_encoding_format=encoding) as embedder:
        vectors = await embedder.embed(TEXTS, "document")
    assert vectors == pytest.approx(hash_embed_many(TEXTS, 64), abs=1e-6)


async def test_width_is_asked_for_where_the_settings_say_so(provider: Provider) -> None:
    provider.options = ProviderOptions(native_width=256)
    options = {"embedding_send_dimensions": True}
    async with _embedder(provider, **options) as embedder:
        vectors = await embedder.embed(TEXTS, "document")
    assert vectors.shape == (5, 64)
    assert provider.ledger.calls[0].asked.dimensions == 64


@pytest.mark.parametrize("width", [64, 256, 3072])
async def test_vectors_cut_without_normalising_are_made_unit_length(
    provider: Provider, width: int
) -> None:
    """case 16: as Gemini's are."""
    provider.options = ProviderOptions(native_width=width, normalises_cut=False, dimensions=64)
    async with _embedder(provider) as embedder:
        vectors = await embedder.embed(TEXTS, "document")
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(5), abs=1e-6)


@pytest.mark.parametrize(
    "fault",
    [
        Shuffled(seed=3),
        BadIndex(how="missing"),
        BadIndex(how="missing", position=None),
        BadIndex(how="null"),
        BadIndex(how="null", position=3),
        NoUsage(),
        BadVector(how="unnormalised", position=2),
        Drip(seconds=0.2, chunks=4),
    ],
    ids=repr,
)
async def test_answer_that_is_only_unusual_is_taken(provider: Provider, fault: Fault) -> None:
    """case 30."""
    provider.faults.add(fault)
    async with _embedder(provider) as embedder:
        vectors = await embedder.embed(TEXTS, "document")
    assert vectors == pytest.approx(hash_embed_many(TEXTS, 64), abs=1e-6)


async def test_gemini_may_shuffle_and_leave_out_index_zero_at_once(provider: Provider) -> None:
    """case 30."""
    provider.options = ProviderOptions(native_width=64, omits_index_zero=True)
    provider.faults.add(Shuffled(seed=5))
    async with _embedder(provider) as embedder:
        vectors = await embedder.embed(TEXTS, "document")
    assert vectors == pytest.approx(hash_embed_many(TEXTS, 64), abs=1e-6)


@pytest.mark.parametrize(
    "fault",
    [
        WrongCount(by=-1),
        WrongCount(by=1),
        OneVector(),
        BadIndex(how="duplicate", position=1),
        BadIndex(how="foreign", position=2),
        BadIndex(how="negative"),
        WrongWidth(width=32),
        WrongWidth(width=65, position=1),
        BadVector(how="nan", position=4),
        BadVector(how="infinity"),
        BadVector(how="null", position=None),
        BadVector(how="zero", position=3),
    ],
    ids=repr,
)
@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_answer_that_breaks_its_contract_gives_nothing(
    provider: Provider, fault: Fault, encoding: str
) -> None:
    """case 12, 14, 31."""
    provider.faults.add(fault)
    async with _embedder(provider, embedding_encoding_format=encoding) as embedder:
        with pytest.raises(EmbeddingFailed):
            await embedder.embed(TEXTS, "document")
        vectors = await embedder.embed(TEXTS, "document")
    assert vectors == pytest.approx(hash_embed_many(TEXTS, 64), abs=1e-6)


@pytest.mark.parametrize(
    "fault",
    [
        Status(code=500),
        Status(code=502, body="html"),
        Status(code=503, body="empty"),
        Status(code=504, body="text"),
        Status(code=529),
        Status(code=200, body="openai"),
        Status(code=200, body="gemini"),
        Status(code=200, body="html"),
        Status(code=200, body="empty"),
        Outage(how="503"),
        Outage(how="reset"),
        Truncate(how="reset"),
        Truncate(how="close"),
        Truncate(share=0.0, how="reset"),
    ],
    ids=repr,
)
async def test_call_that_breaks_down_may_be_tried_again(provider: Provider, fault: Fault) -> None:
    """Never by the client itself: its caller knows when."""
    provider.faults.add(fault)
    async with _embedder(provider) as embedder:
        with pytest.raises(CallFailed):
            await embedder.embed(TEXTS, "document")
        assert provider.ledger.totals().calls == 1
        await embedder.embed(TEXTS, "document")


@pytest.mark.parametrize("fault", [Hang(), Drip(seconds=30, chunks=300)], ids=repr)
async def test_answer_that_does_not_come_in_time_is_given_up(
    provider: Provider, fault: Fault
) -> None:
    """A dripping one too, whose every byte comes in time."""
    provider.faults.add(fault)
    async with _embedder(provider, embedding_timeout_s=0.3) as embedder:
        clock = Clock()
        with pytest.raises(CallFailed, match=r"0\.3 s"):
            await embedder.embed(TEXTS, "document")
        assert clock.s < 0.3 + SLACK_S
    provider.faults.release()


@pytest.mark.parametrize("status", [400, 413, 422])
@pytest.mark.parametrize("body", ["openai", "gemini", "html", "empty"])
async def test_refused_request_is_a_refused_text(
    provider: Provider, status: int, body: Any
) -> None:
    provider.faults.add(Status(code=status, body=body), Always())
    async with _embedder(provider) as embedder:
        with pytest.raises(TextRefused, match=str(status)):
            await embedder.embed(TEXTS, "document")


@pytest.mark.parametrize("status", [401, 402, 403, 404, 405, 410])
async def test_refused_caller_is_told_what_to_check(provider: Provider, status: int) -> None:
    provider.faults.add(Status(code=status))
    async with _embedder(provider, embedding_api_key="sk-secret") as embedder:
        with pytest.raises(ConfigurationError, match="TICKMIND_EMBEDDING_API_KEY") as told:
            await embedder.embed(TEXTS, "document")
    assert str(status) in str(told.value)
    assert "sk-secret" not in str(told.value)


async def test_key_is_sent_as_a_bearer_token(provider: Provider) -> None:
    provider.options = ProviderOptions(native_width=64, api_key="sk-secret")
    async with _embedder(provider, embedding_api_key=" sk-secret\n") as embedder:
        await embedder.embed(TEXTS, "document")
    async with _embedder(provider) as embedder:
        with pytest.raises(ConfigurationError):
            await embedder.embed(TEXTS, "document")


@pytest.mark.parametrize(
    ("header", "expected"),
    [("seconds", 2.0), ("ms", 1.25), ("both", 1.25), ("none", None), ("garbage", None)],
)
async def test_throttled_call_tells_how_long_to_wait(
    provider: Provider, header: Any, expected: float | None
) -> None:
    """A 429 is nobody's fault: it is no call that broke down."""
    provider.faults.add(Throttle(header=header, retry_after_s=1.25))
    async with _embedder(provider) as embedder:
        with pytest.raises(EmbeddingUnavailable) as told:
            await embedder.embed(TEXTS, "document")
    assert not isinstance(told.value, CallFailed)
    assert told.value.retry_after_s == expected


@pytest.mark.parametrize("parameter", ["float", "dimensions"])
async def test_refused_parameter_is_left_out_from_then_on(
    provider: Provider, parameter: Any
) -> None:
    provider.faults.add(RefuseParameter(parameter=parameter), Always())
    both = {"embedding_send_dimensions": True, "embedding_encoding_format": "float"}
    async with _embedder(provider, **both) as embedder:
        for _ in range(2):
            assert len(await embedder.embed(TEXTS, "document")) == len(TEXTS)
    assert [call.status for call in provider.ledger.calls] == [400, 200, 200]


async def test_reachable_provider_has_no_fault_and_is_not_billed(provider: Provider) -> None:
    async with _embedder(provider) as embedder:
        assert await embedder.fault() is None
        assert provider.ledger.totals().calls == 0
        await provider.stop()
        fault = await embedder.fault()
        assert fault is not None
        assert "cannot be reached" in fault
        assert "127.0.0.1" in fault
        await provider.start()
        assert await embedder.fault() is None


async def test_many_calls_at_once_are_kept_apart(provider: Provider) -> None:
    async with _embedder(provider) as embedder:
        answers = await asyncio.gather(
            *(embedder.embed([f"text {i}"], "document") for i in range(30))
        )
    for number, vectors in enumerate(answers):
        assert vectors[0] == pytest.approx(hash_embed(f"text {number}", 64), abs=1e-6)
