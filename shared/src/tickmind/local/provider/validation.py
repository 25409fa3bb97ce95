"""What a provider checks before it embeds anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tickmind.local.provider.faults import Asked
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.tokens import count_tokens

__all__ = ["Refused", "check_request", "read_request", "too_large"]


class Refused(Exception):
    """The request gets this status and this text as its error message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def read_request(raw: bytes) -> tuple[Mapping[str, Any] | None, Asked]:
    """The JSON object (None where it is none), and what of it could be understood."""
    try:
        payload = json.loads(raw)
    except ValueError:
        return None, Asked()
    if not isinstance(payload, dict):
        return None, Asked()
    sent = payload.get("input")
    texts = [sent] if isinstance(sent, str) else sent
    readable = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
    model, encoding = payload.get("model"), payload.get("encoding_format")
    dimensions = payload.get("dimensions")
    return payload, Asked(
        texts=tuple(texts) if readable and texts is not None else (),
        model=model if isinstance(model, str) else None,
        encoding_format=encoding if isinstance(encoding, str) else None,
        dimensions=dimensions if type(dimensions) is int else None,
    )


def too_large(raw: bytes, options: ProviderOptions) -> None:
    """Raises Refused (413) when the body is over the cap."""
    cap = options.max_body_bytes
    if cap is not None and len(raw) > cap:
        raise Refused(413, f"The body has {len(raw)} bytes, at most {cap} bytes are allowed.")


def check_request(
    payload: Mapping[str, Any] | None, headers: Mapping[str, str], options: ProviderOptions
) -> None:
    """Raises Refused for whatever these options do not accept; `headers` by lower-case name."""
    if options.api_key is not None and headers.get("authorization") != f"Bearer {options.api_key}":
        raise Refused(401, "The API key is missing or wrong.")
    if payload is None:
        raise Refused(400, "The body is not a JSON object.")
    model = payload.get("model")
    if not isinstance(model, str) or not model:
        raise Refused(400, "'model' is required and must be a string.")
    if options.model is not None and model != options.model:
        raise Refused(404, f"The model {model!r} does not exist.")
    _check_form(payload, options)
    _check_input(payload.get("input"), options)


def _check_form(payload: Mapping[str, Any], options: ProviderOptions) -> None:
    encoding = payload.get("encoding_format")
    if encoding is not None and encoding not in options.encodings:
        raise Refused(400, f"Unsupported value of 'encoding_format': {json.dumps(encoding)}.")
    dimensions = payload.get("dimensions")
    if dimensions is None:
        return
    if not options.supports_dimensions:
        raise Refused(400, "This model does not support the parameter 'dimensions'.")
    if type(dimensions) is not int or not 1 <= dimensions <= options.native_width:
        raise Refused(400, f"'dimensions' must be an integer from 1 to {options.native_width}.")


def _check_input(sent: object, options: ProviderOptions) -> None:
    texts = [sent] if isinstance(sent, str) else sent
    if not isinstance(texts, list) or not texts:
        raise Refused(400, "'input' must be a string or a non-empty array of strings.")
    if not all(isinstance(text, str) for text in texts):
        raise Refused(400, "'input' must hold strings; arrays of tokens are not supported.")
    if options.max_inputs is not None and len(texts) > options.max_inputs:
        raise Refused(
            options.cap_status,
            f"'input' has {len(texts)} items, at most {options.max_inputs} items are allowed.",
        )
    for position, text in enumerate(texts):
        if (options.refuses == "empty" and not text) or (
            options.refuses == "blank" and not text.strip()
        ):
            raise Refused(400, f"'input[{position}]' must not be empty.")
    _check_length(texts, options)


def _check_length(texts: list[str], options: ProviderOptions) -> None:
    cap = options.max_tokens_per_text
    total_cap = options.max_tokens_per_request
    if cap is None and total_cap is None:
        return
    counts = [count_tokens(text) for text in texts]
    if cap is not None:
        if options.over_length == "refuse" and max(counts) > cap:
            raise Refused(
                options.cap_status,
                f"'input[{counts.index(max(counts))}]' has {max(counts)} tokens, "
                f"at most {cap} tokens are allowed in one input.",
            )
        counts = [min(count, cap) for count in counts]
    if total_cap is not None and sum(counts) > total_cap:
        raise Refused(
            options.cap_status,
            f"The inputs have {sum(counts)} tokens together, "
            f"at most {total_cap} tokens are allowed in one request.",
        )
