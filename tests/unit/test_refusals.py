"""What a provider's refusal is taken for."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tickmind.errors import EmbeddingUnavailable, ProviderRefused, TextRefused
from tickmind.refusals import (
    DAY_QUOTA_WAIT_S,
    QUOTA_WAIT_S,
    error_in,
    refusal,
    refused_parameter,
)

NOW = datetime(2026, 8, 2, 9, 0, 0, tzinfo=UTC)


def refused(
    status: int, body: Any = None, headers: dict[str, str] | None = None, *, sent: int = 4
) -> Exception:
    named = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
    return refusal(status, named, json.dumps(body).encode(), sent=sent, now=NOW)


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"retry_after_ms": "250", "retry_after": "7"}, 0.25),
        ({"retry_after": "Sun, 02 Aug 2026 09:00:30 GMT"}, 30.0),
        ({"retry_after": "Sun, 02 Aug 2026 08:00:00 GMT"}, None),
        ({"retry_after": "soon"}, None),
        ({"retry_after": "-3"}, None),
        ({"retry_after": "nan"}, None),
        ({"retry_after": "1e9"}, None),
        ({}, None),
    ],
)
def test_rate_limit_waits_as_asked(headers: dict[str, str], wait_s: float | None) -> None:
    error = refused(429, {"error": {"message": "slow down", "code": "rate_limit"}}, headers)
    assert isinstance(error, EmbeddingUnavailable)
    assert (error.kind, error.retry_after_s) == ("rate_limit", wait_s)


@pytest.mark.parametrize("wrap", [lambda e: [e], lambda e: e], ids=["array", "object"])
def test_rate_limit_of_gemini_waits_as_its_retry_info_says(wrap: Any) -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7.5s"}]
    error = refused(429, wrap({"error": {"code": 429, "details": details}}))
    assert isinstance(error, EmbeddingUnavailable)
    assert error.retry_after_s == 7.5


def test_daily_quota_is_no_rate_whatever_retry_info_says() -> None:
    details = [
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3s"},
        {
            "@type": "type.googleapis.com/google.rpc.QuotaFailure",
            "violations": [{"quotaId": "EmbedContentRequestsPerDayPerProject-FreeTier"}],
        },
    ]
    error = refused(429, [{"error": {"code": 429, "details": details}}], {"retry_after": "3"})
    assert isinstance(error, EmbeddingUnavailable)
    assert (error.kind, error.retry_after_s) == ("quota", DAY_QUOTA_WAIT_S)


def test_account_without_money_pauses() -> None:
    error = refused(429, {"error": {"code": "insufficient_quota", "type": "insufficient_quota"}})
    assert isinstance(error, EmbeddingUnavailable)
    assert (error.kind, error.retry_after_s) == ("quota", QUOTA_WAIT_S)


@pytest.mark.parametrize(
    ("message", "sent", "cap"),
    [
        ("BatchEmbedContentsRequest.requests: at most 100 requests can be in one batch", 250, 100),
        ("batch size 40 > maximum allowed batch size 32", 40, 32),
        ("The batch size should not be larger than 10. maximum is 10 items", 25, 10),
        ("input array: maximum of 2048 inputs", 3000, 2048),
        ("batch size is invalid, it should not be larger than 10.: input.contents", 25, 10),
        (
            "'$.input' is invalid. array too long. Expected an array with maximum length 2048, but"
            " got an array with length 3000 instead.",
            3000,
            2048,
        ),
        ("a text should not be longer than 20 tokens, nor larger than 20 tokens", 40, None),
        ("This model's maximum context length is 8192 tokens", 40, None),
        ("bad request", 40, None),
        ("at most 100 requests can be in one batch", 50, None),
    ],
)
def test_stated_cap_of_inputs_is_learned(message: str, sent: int, cap: int | None) -> None:
    error = refused(400, {"error": {"message": message}}, sent=sent)
    assert isinstance(error, TextRefused)
    assert error.max_inputs == cap


def test_date_is_counted_from_the_answers_own_clock() -> None:
    """The provider's clock is an hour ahead of ours."""
    error = refused(
        429,
        {"error": {}},
        {
            "date": "Sun, 02 Aug 2026 10:00:00 GMT",
            "retry_after": "Sun, 02 Aug 2026 10:00:07 GMT",
        },
    )
    assert isinstance(error, EmbeddingUnavailable)
    assert error.retry_after_s == 7.0


@pytest.mark.parametrize(
    ("message", "headers", "kind", "wait_s"),
    [
        ("Rate limit reached on requests per day (RPD): Limit 200", {}, "quota", DAY_QUOTA_WAIT_S),
        ("Rate limit reached on requests per day (RPD)", {"retry_after": "9"}, "rate_limit", 9.0),
        ("Quota exceeded, see your plan and billing details", {}, "quota", QUOTA_WAIT_S),
        ("Quota exceeded, see billing", {"retry_after_ms": "500"}, "rate_limit", 0.5),
        ("Too many requests", {}, "rate_limit", None),
    ],
)
def test_quota_is_known_by_its_words_where_no_wait_is_told(
    message: str, headers: dict[str, str], kind: str, wait_s: float | None
) -> None:
    error = refused(429, {"error": {"message": message}}, headers)
    assert isinstance(error, EmbeddingUnavailable)
    assert (error.kind, error.retry_after_s) == (kind, wait_s)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (
            {"error": {"message": "This model does not support specifying dimensions."}},
            "dimensions",
        ),
        ({"detail": [{"type": "extra_forbidden", "loc": ["body", "dimensions"]}]}, "dimensions"),
        ("Model does not support matryoshka representation", "dimensions"),
        (
            [{"error": {"message": 'Unknown name "encoding_format": no such field'}}],
            "encoding_format",
        ),
        ({"message": "base64 is not supported"}, "encoding_format"),
        ({"error": {"message": "This model's maximum context length is 8192 tokens"}}, None),
        ({"error": {"message": "bad request"}}, None),
        ({"error": {"message": "refused: 'the dimensions of \u4f60'"}}, None),
        ({"error": {"message": "refused: 'my encoding_format \"x\"'"}}, None),
    ],
)
def test_refused_parameter_is_known_by_its_name_unless_a_text_is_quoted(
    body: Any, name: str | None
) -> None:
    texts = ["fish", "the dimensions of \u4f60", 'my encoding_format "x"']
    assert refused_parameter(json.dumps(body).encode(), texts) == name


def test_number_in_a_quoted_text_is_no_cap() -> None:
    text = "take at most 3 items"
    body = json.dumps({"error": {"message": f"not liked: {text}"}}).encode()
    error = refusal(400, {}, body, sent=9, now=NOW, texts=["fish", text])
    assert isinstance(error, TextRefused)
    assert error.max_inputs is None


@pytest.mark.parametrize("status", [401, 402, 403, 404, 405, 410])
def test_refused_key_or_model_is_for_a_person(status: int) -> None:
    assert isinstance(refused(status), ProviderRefused)


@pytest.mark.parametrize("status", [408, 500, 502, 503, 529])
def test_server_trouble_passes(status: int) -> None:
    error = refused(status, "<html>", {"retry_after": "2"})
    assert isinstance(error, EmbeddingUnavailable)
    assert (error.kind, error.retry_after_s) == ("server", 2.0)


def test_error_under_status_200_is_found() -> None:
    assert error_in(b'{"error": {"code": 429}}') == {"code": 429}
    assert error_in(b'[{"error": "busy", "error_type": "overloaded"}]') == {
        "message": "busy",
        "type": "overloaded",
    }
    for body in (b"<html>", b"[]", b'{"data": []}', b"[" * 100_000):
        assert error_in(body) is None
