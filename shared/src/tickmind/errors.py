"""The one error root, and the question every caller asks: would trying again help?"""

from __future__ import annotations

from typing import Literal

__all__ = [
    "ConfigurationError",
    "EmbeddingFailed",
    "EmbeddingUnavailable",
    "InvalidMessage",
    "MessageTooLarge",
    "ParameterRefused",
    "PermanentError",
    "ProviderRefused",
    "TextRefused",
    "TickmindError",
    "TransientError",
]


class TickmindError(Exception):
    """Root of everything tickmind raises on purpose.

    `reason` is a short stable word for metrics and replies; the message is for a person.
    """

    reason = "error"


class TransientError(TickmindError):
    """The same call may succeed later: wait and retry, charge nobody."""

    reason = "unavailable"


class PermanentError(TickmindError):
    """The same input will fail the same way: reject it or park it, never retry it unchanged."""

    reason = "permanent"


class ConfigurationError(PermanentError):
    """A setting is missing, contradictory or wrong: end at once and say which."""

    reason = "configuration"


class InvalidMessage(PermanentError):
    """A message, or one decision in it, breaks its contract.

    The text names the field and says what was expected.
    """

    reason = "invalid"


class MessageTooLarge(InvalidMessage):
    """A message has more bytes than any may have: of its body only the beginning is kept."""

    reason = "too_large"


class EmbeddingUnavailable(TransientError):
    """The provider did not give a usable answer this time (network, timeout, 429, 5xx).

    `retry_after_s`: what the provider asked for, in seconds, or None. `kind`: `network`,
    `server`, `rate_limit` (429) or `quota` (of a day, or of money).
    """

    reason = "embedding_unavailable"

    def __init__(
        self,
        message: str,
        *,
        kind: Literal["network", "server", "rate_limit", "quota"] = "network",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after_s = retry_after_s


class ParameterRefused(EmbeddingUnavailable):
    """The provider does not take one of the parameters we sent: the next call leaves it out."""


class EmbeddingFailed(PermanentError):
    """The provider answered, and the answer breaks the embedding contract (count, width, NaN).

    Nothing of such an answer is kept.
    """

    reason = "embedding_invalid"


class TextRefused(PermanentError):
    """The provider refuses this request for what it holds (400, 413, 422).

    With more than one text in the request the guilty one is not known yet. `max_inputs`: how many
    texts the provider says it takes, where that is what it minds.
    """

    reason = "text_refused"

    def __init__(self, message: str, *, max_inputs: int | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.max_inputs = max_inputs
        self.status = status


class ProviderRefused(ConfigurationError):
    """The provider refuses us, whatever we send (401, 403, 404): a person must look."""

    reason = "provider_refused"
