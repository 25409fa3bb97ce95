"""What sort of provider it is when nothing goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter

from tickmind.local.provider.faults import Body, EncodingFormat, Throttle
from tickmind.local.provider.limits import Limit

__all__ = ["ProviderOptions", "options_from_json", "options_to_json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderOptions:
    """Model, caps, limits and manners. None means: no such check, or no such cap.

    `native_width`: numbers in a vector of the model; `dimensions`: in one that it gives unasked
    (None: the native width). `supports_dimensions` False: a request that sends it gets a 400.
    `normalises_cut` False: a vector cut to fewer dimensions is left shorter than 1, as Gemini does.
    `omits_index_zero`: Gemini's way of writing item 0.
    `over_length`: what happens to a text over `max_tokens_per_text`.
    `cap_status`: status of a request over a cap other than that of its body, which gets a 413.
    `refuses`: which texts get a 400: none, empty ones, or those of white space only.
    `error_body`: shape of every refusal that no fault dictates.
    `throttle`: manner of the 429 of `limits`; its wait is the true one and its quota follows the
    limit that was hit, unless `quota` is "insufficient". `time_scale`: as in `RateLimiter`.
    `latency_s` before every answer, plus up to `latency_jitter_s` drawn from `seed`.
    """

    model: str | None = None
    api_key: str | None = None
    native_width: int = 1536
    dimensions: int | None = None
    supports_dimensions: bool = True
    normalises_cut: bool = True
    encodings: frozenset[EncodingFormat] = frozenset({"float", "base64"})
    omits_index_zero: bool = False
    reports_usage: bool = True
    max_inputs: int | None = 2048
    max_body_bytes: int | None = None
    max_tokens_per_text: int | None = None
    max_tokens_per_request: int | None = None
    cap_status: int = 400
    over_length: Literal["refuse", "cut"] = "refuse"
    refuses: Literal["none", "empty", "blank"] = "empty"
    error_body: Body = "openai"
    limits: tuple[Limit, ...] = ()
    throttle: Throttle = field(default_factory=Throttle)
    time_scale: float = 1.0
    latency_s: float = 0.0
    latency_jitter_s: float = 0.0
    seed: int = 0

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


_OPTIONS: TypeAdapter[ProviderOptions] = TypeAdapter(ProviderOptions)


def options_from_json(text: str | bytes) -> ProviderOptions:
    """Read options. Raises pydantic.ValidationError, which names the wrong field."""
    return _OPTIONS.validate_json(text)


def options_to_json(options: ProviderOptions) -> bytes:
    """Write options as `options_from_json` reads them."""
    return _OPTIONS.dump_json(options)
