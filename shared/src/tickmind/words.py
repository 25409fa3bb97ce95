"""The words of a text, for finding memories by them: terms, and the keys they are stored under.

Scripts that part words by spaces give words; Chinese, Japanese and Korean give pairs of
neighbouring characters, which need no dictionary and serve all three. Pure.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import cast
from zlib import crc32

__all__ = ["MAX_QUERY_TERMS", "MAX_TERMS", "array", "digests", "keys", "query_digests", "terms"]

#: Distinct terms kept of a memory, the first in reading order: 2 kB of keys, so that a row stays
#: on its page. A talk has 10 to 30; 256 are some 400 English words or 250 Chinese characters.
MAX_TERMS = 256
#: Distinct terms asked for, the first in reading order. An observation has 10 to 100.
MAX_QUERY_TERMS = 96
#: Read no further than this, whatever a text repeats: 96 kB take 10 ms.
_MAX_CHARS = 32_000

# Ideographs with their extensions and iteration marks, Hiragana, Katakana with the length mark;
# Hangul as letters and syllables. Full and half width are one after NFKC.
_PAIRED = (
    "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U000323af\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3"
)
# Letters and digits of any other script; marks (\u0300 accents that do not compose, Thai and Indic
# vowel signs) belong to their word. An apostrophe ends it, and what follows goes: "bob's" is bob.
_RUN = re.compile(
    f"([{_PAIRED}]+)"
    f"|((?:(?![{_PAIRED}])[^\\W_])(?:(?![{_PAIRED}])[\\w\u0300-\u036f\u0e31-\u0e4e"
    "\u0900-\u0903\u093a-\u094f])*)(?:['\u2019][a-z]{1,2}\\b)?"
)
_ASCII_RUN = re.compile(r"([a-z0-9]\w*)(?:'[a-z]{1,2}\b)?")
#: The same for a text that has neither an apostrophe nor an underscore, in half of the time: what
#: is no letter and no digit parts.
_ASCII_PARTED = {code: chr(code).lower() if chr(code).isalnum() else " " for code in range(128)}

#: English words that say nothing of what a text is about. Left out, since each would cost the
#: recorder an index entry and a recall as many rows as the agent has memories.
_STOP_WORDS = """
    a about am an and are as at be been but by can could did do does for from had has have he her
    him his how i if in into is it its just me my no not of on or our out she so some than that the
    their them then there they this to up us was we were what when where which who why will with
    would you your
"""
_SILENT = frozenset(_STOP_WORDS.split())


def _singular(word: str) -> str:
    """An English plural without its ending; other words as they are.

    After Harman 1991, "How effective is suffixing?", the S stemmer. Applied to every word alike,
    it need not be right, only the same on both sides.
    """
    if len(word) > 3 and word.endswith("s") and word.isascii() and word.isalpha():
        if word.endswith("ies"):
            return word[:-3] + "y"
        if word.endswith(("ches", "shes", "xes", "sses")):
            return word[:-2]
        if not word.endswith(("ss", "us")):
            return word[:-1]
    return word


def _raw(text: str) -> list[str]:
    """Words and pairs of characters in reading order, folded, with repetition."""
    text = text[:_MAX_CHARS]
    if text.isascii():
        if "'" in text or "_" in text:
            return _ASCII_RUN.findall(text.lower())
        return text.translate(_ASCII_PARTED).split()
    found: list[str] = []
    for run, word in _RUN.findall(unicodedata.normalize("NFKC", text).casefold()):
        if word:
            found.append(word)
        elif len(run) == 1:
            found.append(run)
        else:
            found += map("".join, pairwise(run))
    return found


def terms(text: str) -> list[str]:
    """The terms of a text in reading order, with repetition; of a memory and of an observation
    alike. None for a text of symbols alone.

    Case, width and compatibility forms are folded (NFKC).
    """
    return [_singular(word) for word in _raw(text) if word not in _SILENT]


#: Words kept with their digests, since the same ones are said again and again: 4 MB, which fill up
#: in the course of an hour where every text is a new one. Then it begins anew.
_MOST_WORDS = 16_384
#: No longer one is kept, or a text without spaces would take 32 kB.
_KEPT_CHARS = 64


class _Digests(dict[str, int | None]):
    """A term's 32 bits by its raw word; None for a word that is none."""

    def __missing__(self, raw: str) -> int | None:
        # CRC-32 is no cryptographic hash and need not be: of an agent's 20,000 different terms,
        # one meets a term asked for by chance once in 200,000.
        digest = None if raw in _SILENT else crc32(_singular(raw).encode())
        if len(raw) <= _KEPT_CHARS:
            if len(self) >= _MOST_WORDS:
                self.clear()
            self[raw] = digest
        return digest


_digest_of = _Digests().__getitem__


def _read(text: str) -> tuple[int, ...]:
    """The distinct terms of a text, as 32 bits each."""
    found = dict.fromkeys(map(_digest_of, _raw(text)))
    found.pop(None, None)
    return cast(tuple[int, ...], tuple(found))


#: What one agent said is what it answers next, and all who hear it hear the same: so what was just
#: read is read again soon, agent by agent as memories are stored. 512 texts are at most 2 MB.
_read_again = lru_cache(maxsize=512)(_read)
_REMEMBERED_CHARS = 500  # no context is longer


def _distinct(text: str) -> tuple[int, ...]:
    return _read_again(text) if len(text) <= _REMEMBERED_CHARS else _read(text)


def digests(content: str, context: str | None = None, *, most: int = MAX_TERMS) -> Sequence[int]:
    """The first `most` distinct terms, the content's before its context's, as 32 bits each."""
    found = _distinct(content)
    if context is not None:
        found = tuple(dict.fromkeys(found + _distinct(context)))
    return found[:most]


def query_digests(observation: str) -> Sequence[int]:
    """What is looked for: the first MAX_QUERY_TERMS distinct terms, as `digests`."""
    return digests(observation, most=MAX_QUERY_TERMS)


def keys(agent_id: int, hashed: Iterable[int]) -> list[int]:
    """Terms as the index holds them, int64 >= 0: the agent above, the term's 32 bits below.

    So a term's memories are one agent's, and looking one up costs the same however many others
    use it. Agents whose ids agree in 31 bits share keys: who reads compares agent_id, too.
    """
    agent = (agent_id & 0x7FFFFFFF) << 32
    return [agent | hash_ for hash_ in hashed]


def array(values: Iterable[int | None]) -> str:
    """Numbers as PostgreSQL writes an array: the driver encodes one text in a fifth of the time
    that it takes for 15 numbers."""
    # Python writes a list at once, in half of the time that its numbers take one by one.
    written = str(list(values))[1:-1]
    return f"{{{written.replace('None', 'NULL')}}}"
