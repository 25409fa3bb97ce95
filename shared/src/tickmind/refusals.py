"""What a provider means by refusing: how long to wait, what to send less of, or that it is over.

Pure. Reads the answers of OpenAI, Gemini (whose errors may come as a list of one), and the many
servers that imitate them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from tickmind.errors import EmbeddingUnavailable, ProviderRefused, TextRefused, TickmindError

__all__ = [
    "DAY_QUOTA_WAIT_S",
    "QUOTA_WAIT_S",
    "error_in",
    "refusal",
    "refused_parameter",
    "retry_after_s",
]

#: A spent daily quota comes back at the provider's midnight: asked again this often.
DAY_QUOTA_WAIT_S = 1800.0
#: An account without money comes back when someone pays.
QUOTA_WAIT_S = 600.0
#: A provider that asks for more is mistaken, or means a quota.
_LONGEST_WAIT_S = 86_400.0
#: Refusals that time mends: a request that took too long, clashed, or came too early (RFC 9110,
#: RFC 8470).
_PASSING = (408, 409, 425)

# "at most 100 requests can be in one batch", "maximum of 2048 inputs", "batch size 40 > maximum
# allowed batch size 32", "batch size is invalid, it should not be larger than 10", "array too
# long. Expected an array with maximum length 2048".
_INPUT_CAPS = (
    re.compile(r"at most (\d{1,9}) (?:requests?|inputs?|texts?|items?|documents?|elements?)", re.I),
    re.compile(
        r"(?:maximum|max|limit)(?: allowed)?(?: batch size| number of inputs| inputs?)?"
        r"(?: is| of|:)? ?(\d{1,9})(?= ?(?:requests?|inputs?|texts?|items?|documents?|$|\.|,|\)))",
        re.I,
    ),
    re.compile(
        r"(?:no|not)(?: be)? (?:more|larger|greater) than (\d{1,9})\b(?! ?(?:tokens?|char|bytes?))",
        re.I,
    ),
    re.compile(r"array (?:too long|length).{0,60}?(\d{1,9})", re.I),
)

# "This model does not support specifying dimensions", "Unsupported value of 'encoding_format'",
# {"loc": ["body", "dimensions"], "type": "extra_forbidden"}, vLLM's "matryoshka representation".
_PARAMETERS = {
    "encoding_format": re.compile(r"encoding[_ ]?format|base64", re.I),
    "dimensions": re.compile(r"dimension|matryoshka", re.I),
}
#: Where no field says that it is a day's quota or the account's credit, its words do.
_OF_A_DAY = re.compile(r"per day|\bdaily\b|\b[RT]PD\b", re.I)
_OF_MONEY = re.compile(r"billing|insufficient (?:credit|balance|quota|funds)", re.I)


def error_in(body: bytes) -> dict[str, Any] | None:
    """The error object of an answer, whatever its status; None: it holds none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return None
    error = value.get("error")
    if isinstance(error, dict):
        return error
    if isinstance(error, str) and error:
        return {"message": error, "type": value.get("error_type")}
    return None


def _details(error: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict):
            yield detail


def _seconds(value: object) -> float | None:
    """A finite wait of at least 0 seconds and at most a day; anything else is no wait."""
    try:
        seconds = float(str(value))
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and 0 <= seconds <= _LONGEST_WAIT_S else None


def _date(value: str | None) -> datetime | None:
    """An HTTP date; None for anything else."""
    try:
        date = parsedate_to_datetime(value or "")
    except (ValueError, OverflowError, LookupError, TypeError):
        # Years and offsets beyond what a date can hold; and the parser stumbles over some texts.
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def retry_after_s(
    headers: Mapping[str, str], error: Mapping[str, Any] | None, *, now: datetime
) -> float | None:
    """The wait a provider asks for, in seconds; None where it names none that makes sense.

    Looked for in retry-after-ms, retry-after (seconds or an HTTP date, RFC 9110 section 10.2.3)
    and google.rpc.RetryInfo; a date in the past asks for nothing. A date is counted from the
    answer's own, since its clock and ours differ.
    """
    if (given := headers.get("retry-after-ms")) is not None:
        milliseconds = _seconds(given)
        if milliseconds is not None:
            return milliseconds / 1000
    if (given := headers.get("retry-after")) is not None:
        seconds = _seconds(given)
        if seconds is not None:
            return seconds
        until = _date(given)
        if until is not None:
            wait = _seconds((until - (_date(headers.get("date")) or now)).total_seconds())
            if wait is not None:
                return wait
    for detail in _details(error or {}):
        if str(detail.get("@type", "")).endswith("google.rpc.RetryInfo"):
            return _seconds(str(detail.get("retryDelay", "")).removesuffix("s"))
    return None


def _spent(error: Mapping[str, Any], *, told_to_wait: bool) -> float | None:
    """How long to pause where a quota, not a rate, is used up; None: it is a rate.

    Gemini names a day's quota in a field, and then a few seconds to wait that will not do. Where
    only the words speak of one, a wait that is told is believed.
    """
    if "insufficient_quota" in (error.get("code"), error.get("type")):
        return QUOTA_WAIT_S
    for detail in _details(error):
        violations = detail.get("violations")
        for violation in violations if isinstance(violations, list) else ():
            names = json.dumps(violation)
            if "PerDay" in names or "per_day" in names:
                return DAY_QUOTA_WAIT_S
    if told_to_wait:
        return None
    message = str(error.get("message") or "")
    if _OF_A_DAY.search(message):
        return DAY_QUOTA_WAIT_S
    return QUOTA_WAIT_S if _OF_MONEY.search(message) else None


def _without(said: str, texts: Sequence[str], patterns: Sequence[re.Pattern[str]]) -> str:
    """What a provider says, without such texts as could pass for its own words when quoted."""
    for text in texts:
        if any(pattern.search(text) for pattern in patterns):
            for quoted in (
                text,
                json.dumps(text)[1:-1],
                json.dumps(text, ensure_ascii=False)[1:-1],
            ):
                said = said.replace(quoted, " ")
    return said


def refused_parameter(body: bytes, texts: Sequence[str]) -> str | None:
    """Which field of the request a 400 speaks of, that can be left out; None: of neither."""
    said = _without(body.decode(errors="replace"), texts, list(_PARAMETERS.values()))
    for name, pattern in _PARAMETERS.items():
        if pattern.search(said):
            return name
    return None


def _inputs_cap(message: str, sent: int) -> int | None:
    """How many inputs the provider says it takes, where it says and we sent more."""
    for pattern in _INPUT_CAPS:
        for match in pattern.finditer(message):
            cap = int(match[1])
            if 0 < cap < sent:
                return cap
    return None


def refusal(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    sent: int,
    now: datetime,
    texts: Sequence[str] = (),
) -> TickmindError:
    """The error an answer stands for. `sent`: how many texts the request held; `texts`: which.

    EmbeddingUnavailable: wait, and nobody is at fault; TextRefused: one of the texts is, or the
    batch is too large; ProviderRefused: neither time nor a smaller batch will help.
    """
    error = error_in(body) or {}
    if status == 429:
        wait_s = retry_after_s(headers, error, now=now)
        spent = _spent(error, told_to_wait=wait_s is not None)
        if spent is not None:
            return EmbeddingUnavailable(
                "the embedding quota is used up: raise it at the provider, or wait",
                kind="quota",
                retry_after_s=spent,
            )
        return EmbeddingUnavailable(
            "the embedding API says that it gets too much (429)",
            kind="rate_limit",
            retry_after_s=wait_s,
        )
    if status in (400, 413, 422):
        message = _without(str(error.get("message") or ""), texts, _INPUT_CAPS)
        cap = _inputs_cap(message, sent) if sent > 1 else None
        return TextRefused(
            f"the embedding API refused the request ({status})", max_inputs=cap, status=status
        )
    if 300 <= status < 400:
        return ProviderRefused(
            f"the embedding API sends us elsewhere ({status}), where texts do not go unasked: let"
            " TICKMIND_EMBEDDING_BASE_URL name that place"
        )
    if 400 <= status < 500 and status not in _PASSING:
        return ProviderRefused(
            f"the embedding API refused us ({status}): check TICKMIND_EMBEDDING_API_KEY,"
            " _BASE_URL and _MODEL"
        )
    return EmbeddingUnavailable(
        f"the embedding API answered {status}",
        kind="server",
        retry_after_s=retry_after_s(headers, error, now=now),
    )
