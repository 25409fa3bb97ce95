"""How many tokens the test provider counts for a text.

A rule of its own, close to what byte-pair tokenizers do and unlike the estimate of the client under
test, which has to correct itself by the reported usage.
"""

from __future__ import annotations

import re

__all__ = ["count_tokens", "cut_to_tokens"]

# Up to six ASCII letters, up to three digits, or any other visible character: one token.
_TOKEN = re.compile(r"[A-Za-z]{1,6}|[0-9]{1,3}|[^\sA-Za-z0-9]")


def count_tokens(text: str) -> int:
    """Tokens of a text, at least 1."""
    return max(1, len(_TOKEN.findall(text)))


def cut_to_tokens(text: str, tokens: int) -> str:
    """The start of a text that holds at most `tokens` tokens (`tokens` >= 1)."""
    for number, match in enumerate(_TOKEN.finditer(text), start=1):
        if number == tokens:
            return text[: match.end()]
    return text
