"""The test provider when nothing goes wrong: it answers and refuses as real ones do."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx2
import numpy as np
import pytest
from openai import AsyncOpenAI

from tests.clock import Clock
from tests.running import eventually
from tickmind.local.provider.faults import Throttle
from tickmind.local.provider.limits import DAY_S, Limit
from tickmind.local.provider.options import ProviderOptions, options_from_json, options_to_json
from tickmind.local.provider.running import Provider, running_provider
from tickmind.local.provider.tokens import count_tokens
from tickmind.local.provider.vectors import hash_embed, hash_embed_many

WIDTH = 16


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with running_provider(ProviderOptions(native_width=WIDTH)) as provider:
        yield provider


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(trust_env=False, verify=False) as client:
        yield client


async def embed(
    http: httpx2.AsyncClient, provider: Provider, sent: object, **fields: object
) -> httpx2.Response:
    return await http.post(
        f"{provider.base_url}/embeddings", json={"model": "m", "input": sent, **fields}
    )


def openai_client(provider: Provider, http: httpx2.AsyncClient) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=provider.base_url, api_key="key", max_retries=0, http_client=http)


async def test_sdk_gets_the_same_vectors_in_every_encoding(
    provider: Provider, http: httpx2.AsyncClient
) -> None:
    texts = ["one fish", "two fish", "红鱼"]
    client = openai_client(provider, http)

    unasked = await client.embeddings.create(model="m", input=texts)
    floats = await client.embeddings.create(model="m", input=texts, encoding_format="float")
    coded = await client.embeddings.create(model="m", input=texts, encoding_format="base64")

    expected = hash_embed_many(texts, WIDTH)
    for reply in (unasked, floats):
        np.testing.assert_array_equal(
            np.array([item.embedding for item in reply.data], dtype=np.float32), expected
        )
    raw = [np.frombuffer(base64.b64decode(str(item.embedding)), "<f4") for item in coded.data]
    np.testing.assert_array_equal(np.stack(raw), expected)


async def test_answer_has_the_api_s_form(provider: Provider, http: httpx2.AsyncClient) -> None:
    reply = await embed(http, provider, "hello there")

    assert reply.status_code == 200
    body = reply.json()
    np.testing.assert_array_equal(
        np.float32(body["data"][0].pop("embedding")), hash_embed("hello there", WIDTH)
    )
    assert body == {
        "object": "list",
        "model": "m",
        "data": [{"object": "embedding", "index": 0}],
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }


@pytest.mark.parametrize(
    ("normalises_cut", "length"), [(True, pytest.approx(1.0)), (False, pytest.approx(0.5, abs=0.3))]
)
async def test_dimensions_cut_the_vector_and_normalise_it_where_the_model_does(
    provider: Provider, http: httpx2.AsyncClient, normalises_cut: bool, length: object
) -> None:
    provider.options = replace(provider.options, normalises_cut=normalises_cut)
    full = (await embed(http, provider, "a b c")).json()["data"][0]["embedding"]

    cut = (await embed(http, provider, "a b c", dimensions=4)).json()["data"][0]["embedding"]

    start = np.array(full[:4])
    assert np.linalg.norm(cut) == length
    np.testing.assert_allclose(
        cut, start / np.linalg.norm(start) if normalises_cut else start, rtol=1e-5
    )


async def test_default_dimensions_are_served_unasked(
    provider: Provider, http: httpx2.AsyncClient
) -> None:
    provider.options = replace(provider.options, dimensions=8)

    assert len((await embed(http, provider, "a")).json()["data"][0]["embedding"]) == 8


async def test_gemini_manner_leaves_out_the_index_of_item_zero(
    provider: Provider, http: httpx2.AsyncClient
) -> None:
    """Case 30."""
    provider.options = replace(provider.options, omits_index_zero=True)

    data = (await embed(http, provider, ["a", "b", "c"])).json()["data"]

    assert [item.get("index", "absent") for item in data] == ["absent", 1, 2]


async def test_usage_is_left_out_where_the_provider_reports_none(
    provider: Provider, http: httpx2.AsyncClient
) -> None:
    provider.options = replace(provider.options, reports_usage=False)

    assert "usage" not in (await embed(http, provider, "a")).json()


@pytest.mark.parametrize(
    ("options", "request_fields", "status", "said"),
    [
        ({}, {"input": []}, 400, "non-empty"),
        ({}, {"input": None}, 400, "non-empty"),
        ({}, {"input": [1, 2, 3]}, 400, "tokens are not supported"),
        ({}, {"input": [[1, 2], [3]]}, 400, "tokens are not supported"),
        ({}, {"input": ["a", 7]}, 400, "must hold strings"),
        ({}, {"input": "a", "model": None}, 400, "'model' is required"),
        ({"model": "right"}, {"input": "a"}, 404, "does not exist"),
        ({}, {"input": "a", "encoding_format": "int8"}, 400, "encoding_format"),
        ({"encodings": {"float"}}, {"input": "a", "encoding_format": "base64"}, 400, "base64"),
        ({"encodings": {"base64"}}, {"input": "a", "encoding_format": "float"}, 400, "float"),
        ({"supports_dimensions": False}, {"input": "a", "dimensions": 4}, 400, "'dimensions'"),
        ({}, {"input": "a", "dimensions": 0}, 400, "from 1 to 16"),
        ({}, {"input": "a", "dimensions": 17}, 400, "from 1 to 16"),
        ({}, {"input": "a", "dimensions": True}, 400, "from 1 to 16"),
        ({}, {"input": ["a", ""]}, 400, "input[1]"),
        ({"refuses": "blank"}, {"input": [" \n", "a"]}, 400, "input[0]"),
        ({"max_inputs": 10}, {"input": ["a"] * 11}, 400, "at most 10 items"),
        ({"max_inputs": 32}, {"input": ["a"] * 33}, 400, "at most 32 items"),
        ({"max_inputs": 100}, {"input": ["a"] * 101}, 400, "at most 100 items"),
        ({}, {"input": ["a"] * 2049}, 400, "at most 2048 items"),
        ({"max_inputs": 3, "cap_status": 422}, {"input": ["a"] * 4}, 422, "at most 3 items"),
        ({"max_body_bytes": 100}, {"input": "x" * 100}, 413, "at most 100 bytes"),
        ({"max_tokens_per_text": 3}, {"input": ["a", "a b c d"]}, 400, "at most 3 tokens"),
        ({"max_tokens_per_request": 3}, {"input": ["a b", "c d"]}, 400, "4 tokens together"),
    ],
)
async def test_request_against_the_rules_is_refused_and_not_billed(
    provider: Provider,
    http: httpx2.AsyncClient,
    options: dict[str, Any],
    request_fields: dict[str, Any],
    status: int,
    said: str,
) -> None:
    """Cases 2, 3, 34: caps and empty texts are refused by a message that names the limit."""
    provider.options = replace(provider.options, **options)

    reply = await embed(http, provider, request_fields.pop("input"), **request_fields)

    assert reply.status_code == status
    assert said in reply.json()["error"]["message"]
    assert provider.ledger.totals().texts_billed == 0


@pytest.mark.parametrize(
    ("options", "request_fields"),
    [
        ({"max_inputs": 10}, {"input": ["a"] * 10}),
        ({"max_inputs": None}, {"input": ["a"] * 2049}),
        ({"refuses": "none"}, {"input": ["", " "]}),
        ({"refuses": "empty"}, {"input": [" "]}),
        ({"max_tokens_per_text": 3}, {"input": "a b c"}),
        ({"max_tokens_per_request": 4}, {"input": ["a b", "c d"]}),
        (
            {"max_tokens_per_text": 3, "over_length": "cut", "max_tokens_per_request": 4},
            {"input": ["a b c d e", "f"]},
        ),
        ({"max_body_bytes": 100}, {"input": "x" * 50}),
        ({"supports_dimensions": False}, {"input": "a"}),
        ({"model": "m"}, {"input": "a"}),
        ({"encodings": {"base64"}}, {"input": "a"}),
    ],
)
async def test_request_at_its_limits_is_served(
    provider: Provider,
    http: httpx2.AsyncClient,
    options: dict[str, Any],
    request_fields: dict[str, Any],
) -> None:
    provider.options = replace(provider.options, **options)
    sent = request_fields["input"]

    reply = await embed(http, provider, sent)

    assert reply.status_code == 200
    assert len(reply.json()["data"]) == (1 if isinstance(sent, str) else len(sent))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe"])
async def test_body_that_is_no_json_object_is_refused(
    provider: Provider, http: httpx2.AsyncClient, body: bytes
) -> None:
    reply = await http.post(f"{provider.base_url}/embeddings", content=body)

    assert reply.status_code == 400
    assert provider.ledger.calls[0].status == 400


async def test_over_long_text_is_silently_cut_where_the_provider_does(
    provider: Provider, http: httpx2.AsyncClient
) -> None:
    provider.options = replace(provider.options, max_tokens_per_text=3, over_length="cut")

    reply = (await embed(http, provider, ["one two three four five", "six"])).json()

    np.testing.assert_array_equal(
        np.float32(reply["data"][0]["embedding"]), hash_embed("one two three", WIDTH)
    )
    assert reply["usage"]["total_tokens"] == 4


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": "Bearer secret"}, 200),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "secret"}, 401),
        ({}, 401),
    ],
)
async def test_key_is_checked(
    provider: Provider, http: httpx2.AsyncClient, headers: dict[str, str], status: int
) -> None:
    provider.options = replace(provider.options, api_key="secret")

    reply = await http.post(
        f"{provider.base_url}/embeddings", json={"model": "m", "input": "a"}, headers=headers
    )

    assert reply.status_code == status


@pytest.mark.parametrize("shape", ["openai", "gemini", "gemini-object", "flat"])
async def test_refusals_come_in_the_provider_s_shape(
    provider: Provider, http: httpx2.AsyncClient, shape: Any
) -> None:
    provider.options = replace(provider.options, error_body=shape, max_inputs=1)

    body = (await embed(http, provider, ["a", "b"])).json()

    error = {
        "openai": lambda: body["error"],
        "gemini": lambda: body[0]["error"],
        "gemini-object": lambda: body["error"],
        "flat": lambda: body,
    }[shape]()
    assert "at most 1 items" in error["message"]
    assert error["code"] == (None if shape == "openai" else 400)


async def test_models_are_listed(provider: Provider, http: httpx2.AsyncClient) -> None:
    provider.options = replace(provider.options, model="m")

    listed = await openai_client(provider, http).models.list()

    assert [model.id for model in listed.data] == ["m"]


@pytest.mark.parametrize(("unit", "sent"), [("call", 2), ("text", 2), ("token", 1)])
async def test_limit_of_calls_texts_or_tokens_is_enforced_and_tells_the_true_wait(
    http: httpx2.AsyncClient, unit: Any, sent: int
) -> None:
    now = [1000.0]
    limit = Limit(unit=unit, amount=2, window_s=60.0)
    options = ProviderOptions(native_width=WIDTH, limits=(limit,), throttle=Throttle(header="both"))
    async with running_provider(options, clock=lambda: now[0]) as provider:
        text = "one two" if unit == "token" else "one"
        for _ in range(sent):
            assert (await embed(http, provider, text)).status_code == 200
        now[0] += 12.75

        refused = await embed(http, provider, text)

        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "48"
        assert refused.headers["retry-after-ms"] == "47250"
        assert provider.ledger.calls[-1].rejected
        assert provider.ledger.totals().texts_billed == sent
        now[0] += 47.25
        assert (await embed(http, provider, text)).status_code == 200


async def test_limit_of_a_day_is_refused_as_a_day_s_quota(
    provider: Provider, http: httpx2.AsyncClient
) -> None:
    provider.options = replace(
        provider.options,
        limits=(Limit(unit="call", amount=1, window_s=DAY_S, algorithm="fixed"),),
        throttle=Throttle(body="gemini", header="none"),
    )
    await embed(http, provider, "a")

    error = (await embed(http, provider, "a")).json()[0]["error"]

    assert "PerDay" in json.dumps(error["details"])


async def test_scaled_time_tells_the_wait_in_real_seconds(http: httpx2.AsyncClient) -> None:
    now = [1000.0]
    options = ProviderOptions(
        native_width=WIDTH,
        limits=(Limit(unit="call", amount=1),),
        throttle=Throttle(header="ms"),
        time_scale=0.1,
    )
    async with running_provider(options, clock=lambda: now[0]) as provider:
        await embed(http, provider, "a")

        assert (await embed(http, provider, "a")).headers["retry-after-ms"] == "6000"
        now[0] += 6.0
        assert (await embed(http, provider, "a")).status_code == 200


async def test_answer_of_one_text_is_not_held_back_by_the_network_stack(
    provider: Provider, http: httpx2.AsyncClient
) -> None:
    """Nagle's algorithm against delayed acknowledgements costs 40 ms a call on loopback, though
    not on a connection's first ones."""

    async def took_s() -> float:
        clock = Clock()
        await embed(http, provider, "a")
        return clock.s

    for _ in range(10):
        await took_s()
    await eventually(took_s, lambda s: s < 0.03, what="an answer's seconds")


async def test_latency_is_kept_with_answers_side_by_side(
    provider: Provider, http: httpx2.AsyncClient
) -> None:
    provider.options = replace(provider.options, latency_s=0.1, latency_jitter_s=0.02)
    clock = Clock()

    await asyncio.gather(*(embed(http, provider, f"t{n}") for n in range(10)))

    assert clock.wall_s >= 0.1
    assert provider.ledger.totals().max_concurrency == 10


def test_options_survive_json() -> None:
    options = ProviderOptions(
        model="m",
        encodings=frozenset({"float"}),
        limits=(Limit(unit="token", amount=5, algorithm="bucket", burst=9),),
        throttle=Throttle(header="none", body="gemini"),
        time_scale=0.1,
    )

    assert options_from_json(options_to_json(options)) == options


def test_misspelt_option_is_refused() -> None:
    with pytest.raises(ValueError, match="max_input"):
        options_from_json('{"max_input": 3}')


@pytest.mark.parametrize(
    ("text", "tokens"), [("hello", 1), ("encyclopaedia", 3), ("鱼在 (3, 4)", 7)]
)
def test_tokens_are_counted_by_pieces(text: str, tokens: int) -> None:
    assert count_tokens(text) == tokens
