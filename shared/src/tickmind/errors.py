"""The one error root, and the question every caller asks: would trying again help?"""

from __future__ import annotations

__all__ = [
    "ConfigurationError",
    "EmbeddingFailed",
    "EmbeddingUnavailable",
    "InvalidMessage",
    "PermanentError",
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


class EmbeddingUnavailable(TransientError):
    """The provider did not give a usable answer this time (network, timeout, 429, 5xx).

    `retry_after_s`: what the provider asked for, in seconds, or None.
    """

    reason = "embedding_unavailable"

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EmbeddingFailed(PermanentError):
    """The provider answered, and the answer breaks the embedding contract (count, width, NaN).

    Nothing of such an answer is kept.
    """

    reason = "embedding_invalid"


class TextRefused(PermanentError):
    """The provider refuses this request for what it holds (400, 413, 422).

    With more than one text in the request the guilty one is not known yet.
    """

    reason = "text_refused"
