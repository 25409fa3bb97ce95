"""Each fault of the test provider does on the wire what its name says."""

from __future__ import annotations

import asyncio
import base64
import email.utils
import json
import math
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import numpy as np
import openai
import pytest

from tests.clock import SLACK_S, Clock
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
from tickmind.local.provider.running import Provider, running_provider
from tickmind.local.provider.triggers import Always, Containing, During
from tickmind.local.provider.vectors import hash_embed_many

WIDTH = 16
TEXTS = ["alpha", "beta", "gamma", "delta"]


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with running_provider(ProviderOptions(native_width=WIDTH)) as provider:
        yield provider


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(trust_env=False, verify=False) as client:
        yield client


@pytest.fixture
def sdk(provider: Provider, http: httpx2.AsyncClient) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=provider.base_url, api_key="key", max_retries=0, http_client=http
    )


async def embed(
    http: httpx2.AsyncClient, provider: Provider, sent: object = TEXTS, **fields: object
) -> httpx2.Response:
    return await http.post(
        f"{provider.base_url}/embeddings", json={"model": "m", "input": sent, **fields}
    )


async def data_with(
    fault: Fault, http: httpx2.AsyncClient, provider: Provider, **fields: object
) -> list[dict[str, Any]]:
    """The items of one answer under a fault; the texts must have been billed."""
    provider.faults.add(fault)
    reply = await embed(http, provider, **fields)
    assert reply.status_code == 200
    assert [provider.ledger.times_billed(text) for text in TEXTS] == [1, 1, 1, 1]
    items: list[dict[str, Any]] = reply.json()["data"]
    return items


def rows(items: list[dict[str, Any]]) -> Any:
    """The vectors of the items, `(n, d) float32`."""
    return np.array([item["embedding"] for item in items], dtype=np.float32)


EXPECTED = hash_embed_many(TEXTS, WIDTH)

# --- refusals


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (413, openai.APIStatusError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
async def test_status_reaches_the_sdk_as_its_error_and_is_not_billed(
    provider: Provider, sdk: openai.AsyncOpenAI, code: int, error: type[openai.APIStatusError]
) -> None:
    provider.faults.add(Status(code=code, message="no such luck"))

    with pytest.raises(error) as caught:
        await sdk.embeddings.create(model="m", input=TEXTS)

    assert caught.value.status_code == code
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["message"] == "no such luck"
    totals = provider.ledger.totals()
    assert (totals.texts_sent, totals.texts_billed, totals.statuses) == (4, 0, {str(code): 1})
    assert len((await sdk.embeddings.create(model="m", input=TEXTS)).data) == 4


@pytest.mark.parametrize(
    ("body", "media_type", "start"),
    [
        ("openai", "application/json", b'{"error": {"message"'),
        ("gemini", "application/json", b'[{"error": {"code": 502'),
        ("gemini-object", "application/json", b'{"error": {"code": 502'),
        ("flat", "application/json", b'{"message"'),
        ("html", "text/html", b"<html>"),
        ("text", "text/plain", b"Bad Gateway"),
        ("empty", "text/plain", b""),
    ],
)
async def test_status_comes_in_any_shape(
    provider: Provider, http: httpx2.AsyncClient, body: Any, media_type: str, start: bytes
) -> None:
    provider.faults.add(Status(code=502, body=body, headers={"x-proxy": "yes"}))

    reply = await embed(http, provider)

    assert reply.status_code == 502
    assert reply.headers["content-type"].startswith(media_type)
    assert reply.headers["x-proxy"] == "yes"
    assert reply.content.startswith(start)
    assert (reply.content == b"") == (body == "empty")


async def test_success_can_carry_an_error_body(
    provider: Provider, http: httpx2.AsyncClient
) -> None:
    provider.faults.add(Status(code=200))

    reply = await embed(http, provider)

    assert reply.status_code == 200
    assert reply.json()["error"]["type"] == "server_error"
    assert "data" not in reply.json()
    assert provider.ledger.totals().texts_billed == 0


@pytest.mark.parametrize(
    ("header", "headers", "told_s"),
    [
        ("seconds", {"retry-after": "7"}, 7.0),
        ("ms", {"retry-after-ms": "6250"}, 6.25),
        ("both", {"retry-after": "7", "retry-after-ms": "6250"}, 6.25),
        ("negative", {"retry-after": "-1"}, None),
        ("garbage", {"retry-after": "a while"}, None),
        ("none", {}, None),
    ],
)
async def test_throttle_tells_the_wait_in_its_manner(
    provider: Provider,
    http: httpx2.AsyncClient,
    header: Any,
    headers: dict[str, str],
    told_s: float | None,
) -> None:
    provider.faults.add(Throttle(header=header, retry_after_s=6.25))

    reply = await embed(http, provider)

    assert reply.status_code == 429
    found = {name: value for name, value in reply.headers.items() if name.startswith("retry")}
    assert found == headers
    error = reply.json()["error"]
    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    call = provider.ledger.calls[0]
    assert (call.retry_after_s, call.rejected, call.billed) == (told_s, False, False)


@pytest.mark.parametrize(("header", "low", "high"), [("http-date", 6, 8), ("past-date", -3700, -1)])
async def test_throttle_tells_a_date(
    provider: Provider, http: httpx2.AsyncClient, header: Any, low: float, high: float
) -> None:
    provider.faults.add(Throttle(header=header, retry_after_s=7.0))

    before = time.time()
    reply = await embed(http, provider)
    after = time.time()

    at = email.utils.parsedate_to_datetime(reply.headers["retry-after"])
    assert before + low <= at.timestamp() <= after + high
    told_s = provider.ledger.calls[0].retry_after_s
    if header == "past-date":
        assert told_s is None
    else:
        assert told_s is not None
        assert 7.0 <= told_s <= 8.0


@pytest.mark.parametrize(("quota", "period"), [("minute", "PerMinute"), ("day", "PerDay")])
async def test_throttle_in_gemini_s_array_says_it_in_the_body_only(
    provider: Provider, http: httpx2.AsyncClient, quota: Any, period: str
) -> None:
    provider.faults.add(Throttle(header="none", body="gemini", quota=quota, retry_after_s=7.5))

    reply = await embed(http, provider)

    assert reply.status_code == 429
    assert not [name for name in reply.headers if name.startswith("retry")]
    [wrapped] = reply.json()
    error = wrapped["error"]
    assert (error["code"], error["status"]) == (429, "RESOURCE_EXHAUSTED")
    details = {detail["@type"].rpartition(".")[2]: detail for detail in error["details"]}
    assert details["RetryInfo"]["@type"] == "type.googleapis.com/google.rpc.RetryInfo"
    assert details["RetryInfo"]["retryDelay"] == "7.5s"
    assert period in details["QuotaFailure"]["violations"][0]["quotaId"]
    assert provider.ledger.calls[0].retry_after_s == 7.5


async def test_throttle_without_credit_is_insufficient_quota(
    provider: Provider, sdk: openai.AsyncOpenAI
) -> None:
    provider.faults.add(Throttle(header="none", quota="insufficient"))

    with pytest.raises(openai.RateLimitError) as caught:
        await sdk.embeddings.create(model="m", input=TEXTS)

    assert (caught.value.type, caught.value.code) == ("insufficient_quota", "insufficient_quota")


@pytest.mark.parametrize(
    ("parameter", "fields"),
    [
        ("dimensions", {"dimensions": 4}),
        ("float", {"encoding_format": "float"}),
        ("base64", {"encoding_format": "base64"}),
    ],
)
async def test_parameter_is_refused_only_where_it_is_sent(
    provider: Provider, http: httpx2.AsyncClient, parameter: Any, fields: dict[str, object]
) -> None:
    provider.faults.add(RefuseParameter(parameter=parameter), Always())

    refused = await embed(http, provider, **fields)
    served = await embed(http, provider)

    assert (refused.status_code, served.status_code) == (400, 200)
    assert parameter in refused.json()["error"]["message"]


@pytest.mark.parametrize("code", [400, 422, 500])
async def test_poison_text_fails_every_batch_that_holds_it_and_no_other(
    provider: Provider, http: httpx2.AsyncClient, code: int
) -> None:
    """Case 13, the provider's side."""
    provider.faults.add(Status(code=code), Containing(substring="gam"))

    statuses = [
        (await embed(http, provider, sent)).status_code
        for sent in (TEXTS, TEXTS[:2], "gamma", TEXTS, "delta")
    ]

    assert statuses == [code, 200, code, code, 200]
    assert provider.ledger.times_sent("gamma") == 3
    assert provider.ledger.times_billed("gamma") == 0
    assert provider.ledger.times_billed("alpha") == 1


# --- wrong answers


@pytest.mark.parametrize(
    ("fault", "count"),
    [
        (WrongCount(by=-1), 3),
        (WrongCount(by=-9), 0),
        (WrongCount(by=1), 5),
        (WrongCount(by=3), 7),
        (OneVector(), 1),
    ],
)
async def test_number_of_vectors_is_wrong(
    provider: Provider, http: httpx2.AsyncClient, fault: Fault, count: int
) -> None:
    """Case 31, the provider's side."""
    items = await data_with(fault, http, provider)

    assert [item["index"] for item in items] == list(range(count))
    for item, expected in zip(items, EXPECTED, strict=False):
        np.testing.assert_array_equal(np.array(item["embedding"], np.float32), expected)


@pytest.mark.parametrize("seed", range(5))
async def test_data_is_shuffled_with_the_right_indices(
    provider: Provider, http: httpx2.AsyncClient, seed: int
) -> None:
    """Case 30, the provider's side."""
    items = await data_with(Shuffled(seed=seed), http, provider)

    order = [item["index"] for item in items]
    assert sorted(order) == [0, 1, 2, 3]
    assert all(index != position for position, index in enumerate(order))
    np.testing.assert_array_equal(rows(items), EXPECTED[order])


@pytest.mark.parametrize(
    ("fault", "indices"),
    [
        (BadIndex(how="missing"), ["absent", 1, 2, 3]),
        (BadIndex(how="missing", position=None), ["absent"] * 4),
        (BadIndex(how="null", position=2), [0, 1, None, 3]),
        (BadIndex(how="duplicate"), [1, 1, 2, 3]),
        (BadIndex(how="duplicate", position=3), [0, 1, 2, 0]),
        (BadIndex(how="duplicate", position=None), [0, 0, 0, 0]),
        (BadIndex(how="foreign", position=1), [0, 4, 2, 3]),
        (BadIndex(how="negative", position=3), [0, 1, 2, -1]),
    ],
)
async def test_index_is_missing_or_wrong(
    provider: Provider, http: httpx2.AsyncClient, fault: Fault, indices: list[object]
) -> None:
    items = await data_with(fault, http, provider)

    assert [item.get("index", "absent") for item in items] == indices
    np.testing.assert_array_equal(rows(items), EXPECTED)


async def test_usage_is_missing(provider: Provider, http: httpx2.AsyncClient) -> None:
    provider.faults.add(NoUsage())

    first, second = await embed(http, provider), await embed(http, provider)

    assert "usage" not in first.json()
    assert second.json()["usage"]["total_tokens"] == 4


async def test_other_encoding_than_asked_is_given(
    provider: Provider, http: httpx2.AsyncClient, sdk: openai.AsyncOpenAI
) -> None:
    """Case 32, the provider's side."""
    provider.faults.add(OtherEncoding(), Always())

    asked_base64 = (await embed(http, provider, encoding_format="base64")).json()["data"]
    asked_float = (await embed(http, provider, encoding_format="float")).json()["data"]
    by_sdk = await sdk.embeddings.create(model="m", input=TEXTS)

    np.testing.assert_array_equal(rows(asked_base64), EXPECTED)
    decoded = [np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in asked_float]
    np.testing.assert_array_equal(np.stack(decoded), EXPECTED)
    np.testing.assert_array_equal(
        np.array([item.embedding for item in by_sdk.data], np.float32), EXPECTED
    )


@pytest.mark.parametrize(
    ("fault", "widths"),
    [
        (WrongWidth(width=4), [4, 4, 4, 4]),
        (WrongWidth(width=20, position=1), [16, 20, 16, 16]),
        (WrongWidth(width=0, position=3), [16, 16, 16, 0]),
    ],
)
async def test_width_is_wrong(
    provider: Provider, http: httpx2.AsyncClient, fault: Fault, widths: list[int]
) -> None:
    """Case 12, the provider's side."""
    items = await data_with(fault, http, provider)

    assert [len(item["embedding"]) for item in items] == widths


@pytest.mark.parametrize("encoding", ["float", "base64"])
@pytest.mark.parametrize("how", ["nan", "infinity", "null", "zero", "unnormalised"])
@pytest.mark.parametrize("position", [2, None])
async def test_vector_holds_what_it_should_not(
    provider: Provider, http: httpx2.AsyncClient, how: Any, encoding: str, position: int | None
) -> None:
    """Case 14, the provider's side."""
    fault = BadVector(how=how, position=position)
    items = await data_with(fault, http, provider, encoding_format=encoding)

    bad = [position] if position is not None else [0, 1, 2, 3]
    for place, item in enumerate(items):
        if encoding == "base64":
            vector = np.frombuffer(base64.b64decode(item["embedding"]), "<f4")
        else:
            assert (item["embedding"][0] is None) == (how == "null" and place in bad)
            vector = np.array(
                [math.nan if number is None else number for number in item["embedding"]],
                dtype=np.float32,
            )
        if place not in bad:
            np.testing.assert_array_equal(vector, EXPECTED[place])
        elif how == "zero":
            assert not vector.any()
        elif how == "unnormalised":
            np.testing.assert_allclose(vector, EXPECTED[place] * 3.0)
        else:
            assert math.isinf(vector[0]) if how == "infinity" else math.isnan(vector[0])
            np.testing.assert_array_equal(vector[1:], EXPECTED[place][1:])


async def test_numbers_beyond_json_are_written_as_python_writes_them(
    provider: Provider, http: httpx2.AsyncClient
) -> None:
    provider.faults.add(BadVector(how="nan"))
    provider.faults.add(BadVector(how="infinity"))

    assert b'"embedding":[NaN,' in (await embed(http, provider)).content
    assert b'"embedding":[Infinity,' in (await embed(http, provider)).content


# --- late, slow and broken answers


async def test_hang_bills_at_once_and_answers_when_released(
    provider: Provider, http: httpx2.AsyncClient
) -> None:
    provider.faults.add(Hang())
    asked = asyncio.create_task(embed(http, provider))
    await provider.ledger.wait_until(lambda ledger: ledger.totals().texts_billed == 4)
    assert provider.ledger.totals().in_flight == 1
    assert not asked.done()

    provider.faults.release()

    assert (await asked).status_code == 200
    assert provider.ledger.calls[0].delivered


async def test_hang_answers_by_itself_after_its_seconds(
    provider: Provider, http: httpx2.AsyncClient
) -> None:
    provider.faults.add(Hang(seconds=0.1))
    clock = Clock()

    reply = await embed(http, provider)

    assert reply.status_code == 200
    assert clock.s < SLACK_S
    assert clock.wall_s >= 0.1


async def test_answer_after_the_caller_gave_up_is_billed_and_not_delivered(
    provider: Provider, sdk: openai.AsyncOpenAI
) -> None:
    """Case 35, the provider's side."""
    provider.faults.add(Hang())

    with pytest.raises(openai.APITimeoutError):
        await sdk.embeddings.create(model="m", input=TEXTS, timeout=0.1)
    await provider.ledger.wait_until(lambda ledger: ledger.calls[0].delivered is False)
    assert provider.ledger.totals().in_flight == 1
    provider.faults.release()
    await provider.ledger.wait_until(lambda ledger: ledger.totals().in_flight == 0)

    call = provider.ledger.calls[0]
    assert (call.billed, call.delivered, call.status) == (True, False, 200)
    assert provider.ledger.times_billed("alpha") == 1


async def test_drip_sends_headers_at_once_and_the_body_in_pieces(
    provider: Provider, http: httpx2.AsyncClient
) -> None:
    provider.faults.add(Drip(seconds=1.0, chunks=5))
    clock = Clock()
    url = f"{provider.base_url}/embeddings"

    async with http.stream("POST", url, json={"model": "m", "input": TEXTS}) as reply:
        assert provider.ledger.totals().in_flight == 1
        pieces = [piece async for piece in reply.aiter_raw()]

    assert clock.wall_s >= 1.0
    assert len(pieces) == 5
    np.testing.assert_array_equal(rows(json.loads(b"".join(pieces))["data"]), EXPECTED)
    assert provider.ledger.calls[0].delivered


async def test_drip_notices_a_caller_who_leaves(
    provider: Provider, http: httpx2.AsyncClient
) -> None:
    provider.faults.add(Drip(seconds=0.5, chunks=10))
    url = f"{provider.base_url}/embeddings"

    async with http.stream("POST", url, json={"model": "m", "input": TEXTS}) as reply:
        assert reply.status_code == 200
    await provider.ledger.wait_until(lambda ledger: ledger.totals().in_flight == 0)

    call = provider.ledger.calls[0]
    assert (call.billed, call.delivered) == (True, False)


@pytest.mark.parametrize(
    ("how", "error"),
    [("reset", httpx2.ReadError), ("close", httpx2.RemoteProtocolError)],
)
async def test_truncated_body_ends_the_connection(
    provider: Provider, http: httpx2.AsyncClient, how: Any, error: type[Exception]
) -> None:
    provider.faults.add(Truncate(share=0.5, how=how))
    received = b""
    url = f"{provider.base_url}/embeddings"

    with pytest.raises(error):  # noqa: PT012
        async with http.stream("POST", url, json={"model": "m", "input": TEXTS}) as reply:
            assert reply.status_code == 200
            length = int(reply.headers["content-length"])
            async for piece in reply.aiter_raw():
                received += piece

    assert len(received) == length // 2
    await provider.ledger.wait_until(lambda ledger: ledger.totals().in_flight == 0)
    call = provider.ledger.calls[0]
    assert (call.billed, call.delivered, call.status) == (True, False, 200)
    assert (await embed(http, provider)).status_code == 200


async def test_truncated_body_reaches_the_sdk_as_a_connection_error(
    provider: Provider, sdk: openai.AsyncOpenAI
) -> None:
    provider.faults.add(Truncate())

    with pytest.raises((openai.APIConnectionError, httpx2.HTTPError)):
        await sdk.embeddings.create(model="m", input=TEXTS)


# --- outages


async def test_outage_lasts_its_span_and_recovers_by_itself(http: httpx2.AsyncClient) -> None:
    """Case 29, the provider's side."""
    now = [1000.0]
    options = ProviderOptions(native_width=WIDTH)
    async with running_provider(options, clock=lambda: now[0]) as provider:
        provider.faults.add(Outage(), During(seconds=60.0, after_s=10.0))

        statuses = []
        for _ in range(9):
            statuses.append((await embed(http, provider)).status_code)
            now[0] += 10.0

        assert statuses == [200] + [503] * 6 + [200] * 2
        assert provider.ledger.totals().calls_while_down == 6
        assert provider.faults.rules == ()


async def test_outage_by_reset_answers_nothing(
    provider: Provider, http: httpx2.AsyncClient, sdk: openai.AsyncOpenAI
) -> None:
    rule = provider.faults.add(Outage(how="reset"), Always())

    with pytest.raises(httpx2.ReadError):
        await embed(http, provider)
    with pytest.raises(openai.APIConnectionError):
        await sdk.embeddings.create(model="m", input=TEXTS)
    provider.faults.remove(rule)

    assert (await embed(http, provider)).status_code == 200
    down, _, up = provider.ledger.calls
    assert (down.status, down.down, down.billed, down.delivered) == (None, True, False, False)
    assert (up.status, up.down, up.billed, up.delivered) == (200, False, True, True)


async def test_stopped_provider_refuses_connections_and_keeps_its_ledger(
    provider: Provider, http: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    provider.faults.add(Hang())
    hanging = asyncio.create_task(embed(http, provider))
    await provider.ledger.wait_until(lambda ledger: ledger.totals().texts_billed == 4)
    url = provider.base_url

    await provider.stop()

    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []
    with pytest.raises(httpx2.HTTPError):
        await hanging
    with pytest.raises(httpx2.ConnectError):
        await embed(http, provider)
    await provider.start()
    assert provider.base_url == url
    assert (await embed(http, provider)).status_code == 200
    assert [call.delivered for call in provider.ledger.calls] == [False, True]
