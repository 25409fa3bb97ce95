"""Error answers in the shapes that providers give them.

Shapes: OpenAI's guide to error codes; google.rpc.Status with google/rpc/error_details.proto, which
Gemini's OpenAI-compatible endpoint wraps in an array; text-embeddings-inference's flat error.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus

from tickmind.local.provider.faults import Body, Status, Throttle

__all__ = ["Refusal", "refuse", "throttle"]

_GEMINI_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
# OpenAI's (type, code) by status; others are invalid_request_error below 500, server_error above.
_OPENAI_KIND: Mapping[int, tuple[str, str | None]] = {
    401: ("invalid_request_error", "invalid_api_key"),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
}
_RPC = "type.googleapis.com/google.rpc."
_METRIC = "generativelanguage.googleapis.com/embed_content_free_tier_requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error answer. `retry_after_s`: seconds it tells the caller to wait, if it tells."""

    status: int
    body: bytes
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)
    retry_after_s: float | None = None


def refuse(fault: Status) -> Refusal:
    """The answer for a plain status; a status of 200 carries the body of a 500."""
    code = fault.code if fault.code >= 400 else 500
    message = fault.message or _phrase(code)
    body, media_type = _body(fault.body, code, message)
    return Refusal(status=fault.code, body=body, media_type=media_type, headers=fault.headers)


def throttle(fault: Throttle, *, model: str) -> Refusal:
    """The 429 in its manner, with `fault.retry_after_s` as the time to wait."""
    headers, told_s = _retry_headers(fault)
    details: list[object] = []
    if fault.quota == "insufficient":
        message = "The current quota is exceeded; see the plan and its billing details."
        kind = ("insufficient_quota", "insufficient_quota")
    else:
        if fault.quota == "day":
            message = "The quota of requests per day is used up."
            details.append(_quota_failure("PerDay", model))
        else:
            message = "Too many requests for now, slow down."
            details.append(_quota_failure("PerMinute", model))
        kind = ("requests", "rate_limit_exceeded")
        details.append(
            {"@type": _RPC + "RetryInfo", "retryDelay": _protobuf_duration(fault.retry_after_s)}
        )
        if fault.body.startswith("gemini"):
            told_s = max(told_s or 0.0, fault.retry_after_s)
    body, media_type = _body(fault.body, 429, message, kind=kind, details=details)
    return Refusal(
        status=429, body=body, media_type=media_type, headers=headers, retry_after_s=told_s
    )


def _body(
    shape: Body,
    code: int,
    message: str,
    *,
    kind: tuple[str, str | None] | None = None,
    details: list[object] | None = None,
) -> tuple[bytes, str]:
    match shape:
        case "openai":
            fallback = ("server_error" if code >= 500 else "invalid_request_error", None)
            type_, name = kind or _OPENAI_KIND.get(code, fallback)
            error = {"message": message, "type": type_, "param": None, "code": name}
            return _json({"error": error})
        case "gemini" | "gemini-object":
            status = _GEMINI_STATUS.get(code, "UNKNOWN" if code >= 500 else "INVALID_ARGUMENT")
            rpc: dict[str, object] = {"code": code, "message": message, "status": status}
            if details:
                rpc["details"] = details
            return _json([{"error": rpc}] if shape == "gemini" else {"error": rpc})
        case "flat":
            return _json({"message": message, "code": code, "type": _phrase(code)})
        case "html":
            page = (
                f"<html>\r\n<head><title>{code} {_phrase(code)}</title></head>\r\n"
                f"<body><h1>{message}</h1></body>\r\n</html>\r\n"
            )
            return page.encode(), "text/html"
        case "text":
            return message.encode(), "text/plain"
        case "empty":
            return b"", "text/plain"


def _json(value: object) -> tuple[bytes, str]:
    return json.dumps(value).encode(), "application/json"


def _phrase(code: int) -> str:
    try:
        return HTTPStatus(code).phrase
    except ValueError:
        return "Error"


def _retry_headers(fault: Throttle) -> tuple[dict[str, str], float | None]:
    """Headers that tell the wait, and the seconds they tell as a careful reader takes them."""
    wait_s = fault.retry_after_s
    whole_s = math.ceil(wait_s)
    ms = math.ceil(wait_s * 1000)
    match fault.header:
        case "seconds":
            return {"retry-after": str(whole_s)}, float(whole_s)
        case "ms":
            return {"retry-after-ms": str(ms)}, ms / 1000
        case "both":
            return {"retry-after": str(whole_s), "retry-after-ms": str(ms)}, ms / 1000
        case "http-date":
            now = time.time()
            at = math.ceil(now + wait_s)
            return {"retry-after": formatdate(at, usegmt=True)}, at - now
        case "past-date":
            return {"retry-after": formatdate(time.time() - 3600, usegmt=True)}, None
        case "negative":
            return {"retry-after": "-1"}, None
        case "garbage":
            return {"retry-after": "a while"}, None
        case "none":
            return {}, None


def _quota_failure(period: str, model: str) -> dict[str, object]:
    return {
        "@type": _RPC + "QuotaFailure",
        "violations": [
            {
                "quotaMetric": _METRIC,
                "quotaId": f"EmbedContentRequests{period}PerUserPerProjectPerModel-FreeTier",
                "quotaDimensions": {"location": "global", "model": model},
                "quotaValue": "100",
            }
        ],
    }


def _protobuf_duration(seconds: float) -> str:
    """JSON form of google.protobuf.Duration: seconds with up to nine decimals, then "s"."""
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"
