"""The piece of prompt a recall gives: a heading, one line per memory, never more than asked for.

What a memory holds was said by agents, hence by anyone. `neutralise` sees to it that each stays
one item of the list, whatever its text: it cannot begin a line, close a code block, end a turn of
the model's chat template, or hide text from a reader. Beyond that the content stands verbatim, in
whatever language it is; only the scaffolding follows the language asked for.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from tickmind.clean import is_blank
from tickmind.errors import ConfigurationError
from tickmind.memory import Scored
from tickmind.pieces import grapheme_cut

__all__ = ["WORDINGS", "Language", "Wording", "neutralise", "render"]

Language = Literal["en", "zh", "ja"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """The words and marks around the memories; what the memories say is not touched by them.

    `heading`: the first line; "" for none. `bullet`: what each memory's line begins with; it may
    hold `{tick}` ("- (tick {tick}) "), which helps where the engine's prompt tells the current
    tick. `cut`: put where a memory was shortened. `more`: the last line where memories were left
    out, `{count}` of them; "" for none. `useful_chars`: a part of a memory shorter than this is
    not worth its place. Raises ConfigurationError for marks that could not keep items apart.
    """

    heading: str
    bullet: str = "- "
    cut: str = " […]"
    more: str
    useful_chars: int = 40

    def __post_init__(self) -> None:
        for name in ("heading", "bullet", "cut", "more"):
            mark = getattr(self, name)
            if mark.splitlines() not in ([], [mark]):
                raise ConfigurationError(f"the fragment's {name} must be a single line")
        for name in ("bullet", "cut"):
            if is_blank(getattr(self, name)):
                raise ConfigurationError(f"the fragment's {name} must hold a visible character")
        if self.useful_chars < 1:
            raise ConfigurationError("the fragment's useful_chars must be at least 1")


# A tick is not told by default: it means nothing to a model that does not know the current one.
# Forty characters are about eight English words. Chinese says the same in fewer: MemoryBank's 1,132
# utterances are 50 characters on average in Chinese, 162 in English.
WORDINGS: Mapping[Language, Wording] = MappingProxyType(
    {
        "en": Wording(heading="You remember:", more="({count} more left out)"),
        "zh": Wording(
            heading="你记得：", cut="［……］", more="（另有 {count} 条未列出）", useful_chars=20
        ),
        "ja": Wording(
            heading="あなたが覚えていること：",
            cut="［……］",
            more="（ほか {count} 件は省略）",
            useful_chars=20,
        ),
    }
)

# A text this many times longer than the fragment may be is not read to its end: the work of a
# recall must not grow with what someone once said.
_READ_FACTOR = 4


def render(
    memories: Sequence[Scored],
    *,
    language: Language,
    max_chars: int,
    wording: Wording | None = None,
) -> str:
    """Word `memories`, best first, as a fragment of at most `max_chars` code points.

    A memory that does not fit whole is shortened, between graphemes and with the cut mark, if a
    useful part of it fits; else it is left out and the next one tried. Where any is left out the
    last line says so (by the cut mark alone where not even that line fits). "" where nothing is
    remembered or nothing useful fits: never a heading alone. A memory without a visible character
    is passed over. `wording` replaces the language's own.
    """
    words = wording or WORDINGS[language]
    items = [item for memory in memories if (item := _item(memory, words, max_chars)) is not None]
    lines, left_out = _fill(items, words, max_chars)
    if not left_out or not words.more:
        return "\n".join(lines)
    # Something is left out, so room must be kept for saying so.
    for mark in (words.more, words.cut.strip()):
        longest = mark.replace("{count}", str(len(items)))
        lines, left_out = _fill(items, words, max_chars - len(longest) - 1)
        if left_out and lines:
            lines.append(mark.replace("{count}", str(left_out)))
        if lines:
            return "\n".join(lines)
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """One memory ready to be set: its bullet, its harmless text, and whether that is all of it."""

    bullet: str
    text: str
    whole: bool


def _item(memory: Scored, words: Wording, max_chars: int) -> _Item | None:
    content = memory.content
    head = content[: grapheme_cut(content, max(0, max_chars) * _READ_FACTOR)]
    text = neutralise(head, words)
    if is_blank(text):
        return None
    bullet = words.bullet.replace("{tick}", str(memory.tick))
    return _Item(bullet=bullet, text=text, whole=len(head) == len(content))


def _fill(items: Sequence[_Item], words: Wording, room: int) -> tuple[list[str], int]:
    """The lines that fit into `room` code points, heading included, and how many items do not."""
    lines = [words.heading] if words.heading else []
    headings = len(lines)
    room -= len(words.heading)
    for item in items:
        space = room - len(item.bullet) - (1 if lines else 0)
        if item.whole and len(item.text) <= space:
            text = item.text
        else:
            text = _shortened(item.text, words, space)
        if text:
            lines.append(item.bullet + text)
            room = space - len(text)
    shown = len(lines) - headings
    return (lines if shown else []), len(items) - shown


def _shortened(text: str, words: Wording, space: int) -> str:
    """The beginning of `text` with the cut mark, in `space` code points; "" if not worth it."""
    kept = text[: grapheme_cut(text, space - len(words.cut))].rstrip()
    return kept + words.cut if len(kept) >= words.useful_chars else ""


# --- What a memory may hold -------------------------------------------------------------------

# Everything that some reader takes for a new line (str.splitlines, Unicode's BK, CR, LF and NL
# classes), the tab, and the separator U+001F beside its kin.
_BREAKS = r"\t-\r\x1c-\x1f\x85\u2028\u2029"

# Removed, for they are not seen and reorder or hide what is: the other C0 and C1 controls; bidi
# controls (UAX #9); soft hyphen, zero-width space, word joiner, invisible operators, deprecated
# format characters, byte order mark, Mongolian vowel separator; interlinear annotation, shorthand
# and musical format controls; tag characters. What writing needs stays: ZWJ and ZWNJ (emoji,
# Persian, Indic scripts), variation selectors, the combining grapheme joiner, Hangul fillers.
_REMOVED = (
    r"\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f"
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
    r"\xad\u180e\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
# An emoji flag of a region: black flag, its code in tag letters and digits, the end tag
# (UTS #51, ED-14a; CLDR subdivision codes are 3 to 6 long).
_FLAG = r"\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f"
_INVISIBLE = re.compile(f"({_FLAG})|[{_REMOVED}]+")

# A variation selector says how the character before it looks; a second one says nothing, and
# long runs of them are a known way to hide bytes behind an emoji.
_SELECTOR = r"\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef"
_SELECTORS = re.compile(f"([{_SELECTOR}])[{_SELECTOR}]+")

_BREAK = re.compile(f"[{_BREAKS}]")
_SPACES = re.compile(rf"\s{{2,}}|[{_BREAKS}]")

# Chat templates' control tokens, by their shape where they have one and by name elsewhere.
# Their outer characters become look-alikes, which no tokenizer takes for the token and which
# compatibility normalisation does not turn back. Other tags (</memory>, <b>) stand verbatim: the
# fragment has none of its own to be closed.
#   <|im_start|> ChatML, Llama 3, GPT; <|turn> and <turn|> Gemma 4; with full-width bars DeepSeek
#   (none is longer than 100 characters; what is replaced already does not count as part of one)
_TOKEN_BAR = re.compile(
    r'<([|｜]/?[\w"][^\s<>\u2039\u203a]{0,100}|/?\w[^\s<>|｜\u2039\u203a]{0,100}[|｜])>'
)
#   Llama 2 and SentencePiece models; Gemma 1 to 3; tool and thinking tags that models emit
_TOKEN_TAG = re.compile(
    r"<(/?(?:s|bos|eos|pad|unk|mask|sop|eop|start_of_turn|end_of_turn|start_of_image"
    r"|end_of_image|start_function_call|end_function_call|think|tool_call|tool_response"
    r"|function_calls))>",
    re.IGNORECASE,
)
_TOKEN_SYS = re.compile(r"<<(/?SYS)>>", re.IGNORECASE)
#   Mistral and Llama 2, GLM
_TOKEN_BRACKET = re.compile(
    r"\[(/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|CALL_ID"
    r"|ARGS|THINK|IMG|gMASK|sMASK))\]",
    re.IGNORECASE,
)
# A code fence (CommonMark 4.5): three or more of the same.
_FENCE = re.compile(r"`{3,}|~{3,}")

# None of them is a letter, or it could complete what the patterns above look for.
_LOOK_ALIKE = str.maketrans(
    {
        "<": "\u2039",  # single angle quotation marks
        ">": "\u203a",
        "[": "\u2045",  # square brackets with quill
        "]": "\u2046",
        "`": "\u2035",  # reversed prime
        "~": "\u223c",  # tilde operator
        ":": "\u2236",  # ratio
        "：": "\u2236",
        "#": "\u266f",  # sharp sign
        "*": "\u2217",  # asterisk operator
        "-": "\u2010",  # hyphen
        "=": "\ua78a",  # modifier letter short equals sign
        "•": "\u2219",  # bullet operator
    }
)

_BRACKETS = {code: shown for code, shown in _LOOK_ALIKE.items() if chr(code) in "<>[]"}
# Forms of the brackets that compatibility normalisation (NFKC, which some tokenizers begin with)
# turns into them: small, full-width and vertical ones.
_COMPATIBLE = str.maketrans("＜﹤＞﹥［﹇］﹈", "<<>>[[]]")

# Nothing to do for a text without any of these; most have none.
_SUSPECT = re.compile(rf"[{_BREAKS}{_REMOVED}{_SELECTOR}<\[`~]")


def neutralise(content: str, wording: Wording) -> str:
    """`content` as one harmless line: what it says is kept, what it could do is not.

    In this order: invisible controls removed; white space that holds a line break or tab becomes
    one space, and the ends are trimmed; control tokens of chat templates, also where only
    normalising would make them, and code fences get look-alike characters; so do the fragment's
    own heading anywhere and its bullet at the beginning. Doing it twice changes nothing. Role
    words ("SYSTEM: ...") stay: they mean a role only at the beginning of a line, which a memory
    never has.
    """
    text = content
    if _SUSPECT.search(text):
        text = _INVISIBLE.sub(r"\1", text)
        text = _SELECTORS.sub(r"\1", text)
        text = _SPACES.sub(_folded, text)
        text = _without_tokens(text)
        text = _FENCE.sub(_look_alike, text)
    if not text.isascii():
        text = _without_compatible_tokens(text)
    text = text.strip()
    return _without_marks(text, wording)


def _folded(spaces: re.Match[str]) -> str:
    return " " if _BREAK.search(spaces[0]) else spaces[0]


def _look_alike(match: re.Match[str]) -> str:
    return match[0].translate(_LOOK_ALIKE)


def _without_tokens(text: str) -> str:
    text = _TOKEN_BAR.sub("\u2039\\1\u203a", text)
    for pattern in (_TOKEN_TAG, _TOKEN_SYS, _TOKEN_BRACKET):
        text = pattern.sub(_look_alike, text)
    return text


def _without_compatible_tokens(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text)
    if folded == text or _without_tokens(folded) == folded:
        return text
    return text.translate(_COMPATIBLE).translate(_BRACKETS)


def _without_marks(text: str, wording: Wording) -> str:
    """A heading or bullet made of plain words only has no look-alike and stays: it stands inside
    a line, behind a bullet."""
    heading = wording.heading.strip()
    harmless = heading.translate(_LOOK_ALIKE)
    if harmless != heading:
        text = text.replace(heading, harmless)
    bullet = wording.bullet.partition("{tick}")[0].lstrip()
    if bullet and text.startswith(bullet):
        text = bullet.translate(_LOOK_ALIKE) + text[len(bullet) :]
    return text
