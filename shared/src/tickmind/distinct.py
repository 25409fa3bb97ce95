"""Near-duplicates: of memories that say the same, the best one is recalled and no other.

"I moved to (3, 4)" thirty times would fill all five places and tell one thing. What says the same
is decided by the words alone, so the same memories always give the same answer:

- `off`: every memory counts;
- `text`: the same words and numbers in the same order, whatever their case and width and whatever
  stands between them (Unicode NFKC and case folding, then only letters, marks and numbers);
- `numbers`: the same once every number is taken as any number. It folds walks through a town into
  one, and with them "17 told me" and "18 told me": for worlds whose names hold no digits.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache

from tickmind.memory import Distinct, Scored

__all__ = ["distinct", "folded", "merged"]

#: A number as coordinates are written: with its sign and its decimals.
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_MINUS = str.maketrans("\u2212", "-")
#: ASCII is folded by tables, in a twentieth of the time: most worlds speak English.
_ASCII = {code: " " for code in range(128) if not chr(code).isalnum() and chr(code) not in "-."}
_ASCII_BETWEEN = re.compile(r"\.(?!\d)|(?<!\d)\.|-(?!\d)|(?<=[a-z\d])-")


#: Folding takes 0.4 us a character: of a longer text the beginning is folded, the rest compared as
#: it is. Agents recall the same texts again and again; kept are some 2 MB of them.
_FOLDED_CHARS = 400
_FOLDED_KEPT = 8192


def folded(content: str, rule: Distinct) -> str:
    """What two texts have in common that say the same; texts of signs alone stay as they are."""
    if rule == "off":
        return content
    return _folded(content[:_FOLDED_CHARS], rule) + content[_FOLDED_CHARS:]


@lru_cache(_FOLDED_KEPT)
def _folded(content: str, rule: Distinct) -> str:
    if content.isascii():
        same = content.lower().translate(_ASCII)
        if "-" in same or "." in same:
            same = _ASCII_BETWEEN.sub(" ", same)
        return _numbered(" ".join(same.split()) or content, rule)
    same = unicodedata.normalize("NFKC", content).casefold().translate(_MINUS)
    words = "".join(sign if _said(same, place) else " " for place, sign in enumerate(same))
    return _numbered(" ".join(words.split()) or content, rule)


def _numbered(words: str, rule: Distinct) -> str:
    return _NUMBER.sub("0", words) if rule == "numbers" else words


def _said(text: str, place: int) -> bool:
    """Whether the sign there is one of a word or a number, a minus or a decimal point too."""
    if unicodedata.category(text[place])[0] in "LMN":
        return True
    if text[place] not in "-." or not text[place + 1 : place + 2].isdecimal():
        return False
    before = text[place - 1 : place]
    return before.isdecimal() if text[place] == "." else not before.isalnum()


def distinct(memories: Iterable[Scored], rule: Distinct, most: int) -> list[Scored]:
    """The first `most` of memories, best first, that each say something else."""
    found: dict[object, Scored] = {}
    for memory in memories:
        key: object = memory.id if rule == "off" else folded(memory.content, rule)
        found.setdefault(key, memory)
        if len(found) >= most:
            break
    return list(found.values())[:most]


def merged(
    core: Sequence[Scored], ranked: Sequence[Scored], *, rule: Distinct, most: int, most_core: int
) -> list[Scored]:
    """Core memories first, at most `most_core` of them, then the ranked ones; `most` in all.

    Both best first. A core memory beyond those is ranked like any other.
    """
    first = distinct(core, rule, min(most, most_core))
    taken = {memory.id for memory in first}
    return distinct([*first, *(m for m in ranked if m.id not in taken)], rule, most)
