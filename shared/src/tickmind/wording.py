"""Words for a decision: templates with named gaps, filled without interpreting what fills them.

Pure. A template is plain text with {speech}, {text}, {target}, {place}, {action}, {agent} or
{speaker}; of several, the first whose gaps can all be filled is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Literal

from tickmind.clean import is_blank

__all__ = ["FIELDS", "LANGUAGES", "Language", "Template", "language_of", "word"]

Language = Literal["en", "zh", "ja"]
LANGUAGES: tuple[Language, ...] = ("en", "zh", "ja")

FIELDS = frozenset({"speech", "text", "target", "place", "action", "agent", "speaker"})

# Unicode blocks: Hiragana to Katakana, half-width katakana; CJK ideographs with their extensions.
_KANA = re.compile("[\u3041-\u30ff\uff66-\uff9f]")
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af]")


@dataclass(frozen=True, slots=True)
class Template:
    """One wording that was looked at: plain text with gaps, no more."""

    source: str
    gaps: frozenset[str]

    @classmethod
    def parse(cls, source: str) -> Template:
        """Raises ValueError, saying why, for a wording that could not be filled or says nothing."""
        if is_blank(source):
            msg = "a wording must say something"
            raise ValueError(msg)
        gaps: set[str] = set()
        for _, gap, spec, conversion in Formatter().parse(source):
            if gap is None:
                continue
            if gap not in FIELDS or spec or conversion:
                known = ", ".join(sorted(FIELDS))
                msg = f"{{{gap}}} in {source!r} is not a gap tickmind can fill; there are {known}"
                raise ValueError(msg)
            gaps.add(gap)
        return cls(source, frozenset(gaps))

    def fill(self, values: Mapping[str, str]) -> str:
        """The words. `values` has every gap; what fills a gap is never interpreted."""
        return self.source.format_map(values)


def word(templates: Sequence[Template], values: Mapping[str, str]) -> str | None:
    """Fill the first template whose gaps `values` has; None where none fits."""
    for template in templates:
        if template.gaps <= values.keys():
            return template.fill(values)
    return None


def language_of(*texts: str | None) -> Language:
    """The language of the first text that has letters of one: kana ja, ideographs zh, else en."""
    for text in texts:
        if not text or text.isascii():
            continue
        if _KANA.search(text):
            return "ja"
        if _HAN.search(text):
            return "zh"
    return "en"
