"""How much one request may hold: as the settings say, and as the provider shows. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["RequestCaps"]


class RequestCaps:
    """Most inputs, tokens and bytes of a request.

    A provider may take less than the settings say. Where it says how much, that holds; else it is
    learned: a request that was refused while each part of it was taken was too large. Of what,
    nobody said: of tokens, we guess, until a request shows that it was the inputs.
    """

    def __init__(self, *, inputs: int, tokens: int = 0, size: int = 0) -> None:
        """`size`: bytes. Of tokens and bytes, 0 is no limit."""
        self.inputs = inputs
        self._set_tokens = self._tokens = tokens or math.inf
        self._bytes = size or math.inf
        self._most_inputs = 0
        self._most_tokens = 0
        # Should the guess be wrong: what it was instead, and what would show it.
        self._or_inputs = 0
        self._disproof = math.inf

    def fitting(self, texts: Iterable[tuple[int, int, int]]) -> int:
        """How many texts, each (inputs, tokens, bytes), go into one request: at least one."""
        inputs = tokens = size = count = 0
        for more_inputs, more_tokens, more_size in texts:
            inputs += more_inputs
            tokens += more_tokens
            size += more_size
            if count and (inputs > self.inputs or tokens > self._tokens or size > self._bytes):
                break
            count += 1
        return max(1, count)

    def take_at_most(self, inputs: int) -> None:
        """The provider says so."""
        self.inputs = min(self.inputs, max(1, inputs))

    def passed(self, *, inputs: int, tokens: int) -> None:
        """A request of so much was taken."""
        if tokens >= self._disproof:
            self.take_at_most(self._or_inputs)
            self._tokens, self._disproof = self._set_tokens, math.inf
        self._most_inputs = max(self._most_inputs, inputs)
        self._most_tokens = max(self._most_tokens, tokens)

    def too_large(self, *, inputs: int, tokens: int) -> None:
        """A request of so much was refused, and taken in parts."""
        if tokens > self._most_tokens:
            self._tokens = min(self._tokens, self._most_tokens)
            if inputs > self._most_inputs:
                self._or_inputs = self._most_inputs
                self._disproof = min(self._disproof, tokens)
        elif inputs > self._most_inputs:
            self.take_at_most(self._most_inputs)
