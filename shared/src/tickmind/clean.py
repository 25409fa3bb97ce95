"""Text as it arrives, made fit for PostgreSQL; and which text says nothing.

Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Cleaned", "clean_text", "is_blank"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """A text that PostgreSQL and UTF-8 can hold, and what had to go for it, in characters."""

    text: str
    nul_removed: int = 0
    surrogates_replaced: int = 0


_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")

# Characters that leave no mark on a page: white space (\s); C0 and C1 controls; everything that
# Unicode calls Default_Ignorable_Code_Point (DerivedCoreProperties.txt: soft hyphen, zero-width
# spaces and joiners, bidi controls, fillers, variation selectors, tags); the interlinear
# annotation controls U+FFF9..FFFB; the empty braille pattern U+2800; lone surrogates.
_VISIBLE = re.compile(
    "[^"
    r"\s\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    r"\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0"
    r"\ufff0-\ufffb\ud800-\udfff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e0fff"
    "]"
)


def clean_text(text: str) -> Cleaned:
    """Remove U+0000, join split surrogate pairs, replace each lone surrogate by U+FFFD.

    Nothing else changes: no normalisation, no trimming. U+0000 goes first, so a pair that it
    parted is joined; cleaning a cleaned text changes nothing.
    """
    if text.isascii():
        if "\0" not in text:
            return Cleaned(text=text)
    else:
        try:
            # The fastest test for surrogates there is: only they cannot be encoded
            # (measured: 0.1 us for a sentence).
            text.encode()
        except UnicodeEncodeError:
            return _repaired(text)
        if "\0" not in text:
            return Cleaned(text=text)
    return Cleaned(text=text.replace("\0", ""), nul_removed=text.count("\0"))


def _repaired(text: str) -> Cleaned:
    without_nul = text.replace("\0", "")
    # UTF-16 is where a high and a low surrogate side by side mean one character.
    joined = without_nul.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    repaired, replaced = _LONE_SURROGATE.subn("\ufffd", joined)
    return Cleaned(
        text=repaired,
        nul_removed=len(text) - len(without_nul),
        surrogates_replaced=replaced,
    )


def is_blank(text: str) -> bool:
    """Whether no character of `text` would be seen: empty, or only white space, control,
    zero-width and other invisible characters.

    Such a text is never sent to an embedding API (which refuses it, or answers with a vector that
    means nothing) and is final as it is. Punctuation and symbols alone ("?!", "...") are seen,
    hence not blank.
    """
    # Nearly every text begins with a letter; looking for one takes three times as long.
    return not "!" <= text[:1] <= "~" and _VISIBLE.search(text) is None
