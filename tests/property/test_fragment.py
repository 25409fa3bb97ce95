"""What must hold of a fragment whatever the memories hold and however little room there is."""

from __future__ import annotations

import dataclasses
import re

import regex
from hypothesis import example, given
from hypothesis import strategies as st

from tickmind.clean import is_blank
from tickmind.fragment import WORDINGS, Language, Wording, neutralise, render
from tickmind.memory import Scored

# Texts made to be trouble: what is removed, folded or replaced, in any neighbourhood.
TROUBLE = st.sampled_from(
    ["\n", "\r\n", "\u2028", "\x85", "\x1c", "\t", " ", "\u202e", "\u2066", "\u200f", "\u061c",
     "\u200b", "\ufeff", "\x00", "\U000e0061", "\U000e007f", "🏴", "\U000e0067\U000e0062",
     "\ufe0f", "\U000e0100", "\u200d", "👩", "<", "|", ">", "<|", "|>", "im_start", "s", "/s",
     "INST", "[", "]", "SYS", "<<", ">>", "｜", "`", "```", "~~", "- ", "* ", ":", "You remember",
     "You remember:", "你记得：", "…", "[…]", "SYSTEM: ", "fish", "鱼", "(1 more left out)"]
)  # fmt: skip
CONTENTS = st.text(max_size=120) | st.lists(TROUBLE, max_size=40).map("".join)
LANGUAGES = st.sampled_from(["en", "zh", "ja"])
CUSTOM = st.sampled_from(
    [
        Wording(heading="# Memories", bullet="* [{tick}] ", cut="~", more="", useful_chars=1),
        Wording(heading="", bullet="•", cut="…", more="+{count}", useful_chars=3),
        Wording(heading="<m>::", bullet="[] ", cut=" --", more="{count} {count}", useful_chars=9),
    ]
)
WORDS = st.sampled_from(sorted(WORDINGS)).map(lambda name: WORDINGS[name]) | CUSTOM
BIDI = re.compile("[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]")


def remembered(contents: list[str]) -> list[Scored]:
    return [
        Scored(
            id=number,
            tick=number * 1000,
            kind="observation",
            content=content,
            importance=5,
            score=1.0,
            relevance=1.0,
            recency=1.0,
        )
        for number, content in enumerate(contents)
    ]


@given(CONTENTS, WORDS)
def test_neutralise_gives_one_line_without_invisible_controls(
    content: str, wording: Wording
) -> None:
    """Cases 5 and 6."""
    text = neutralise(content, wording)
    assert text.splitlines() in ([], [text])
    assert "\t" not in text
    assert not BIDI.search(text)
    assert not regex.search(r"\p{Cc}", text)
    assert text == text.strip()


@given(CONTENTS, WORDS)
@example("<|b<|a|>|>", WORDINGS["en"])
@example("```|>", WORDINGS["en"])
def test_neutralise_is_idempotent(content: str, wording: Wording) -> None:
    once = neutralise(content, wording)
    assert neutralise(once, wording) == once


TOKENS = re.compile(
    r"<[|｜]\w{1,60}[|｜]?>|<\w{1,60}[|｜]>|</?(?:s|bos|eos|start_of_turn|end_of_turn)>|\[/?INST\]"
    r"|<</?SYS>>|`{3}|~{3}",
    re.IGNORECASE,
)


@given(CONTENTS, WORDS)
def test_neutralise_leaves_no_control_token(content: str, wording: Wording) -> None:
    """Case 5."""
    assert not TOKENS.search(neutralise(content, wording))


@given(CONTENTS, LANGUAGES)
def test_neutralise_leaves_none_of_the_fragments_marks(content: str, language: Language) -> None:
    """Case 5."""
    wording = WORDINGS[language]
    text = neutralise(content, wording)
    assert wording.heading not in text
    assert not text.startswith(wording.bullet)


@given(CONTENTS, WORDS)
def test_neutralise_keeps_every_letter_and_digit_in_order(content: str, wording: Wording) -> None:
    """Cases 6 and 25: what is said stays."""
    said = regex.compile(r"[\p{L}\p{M}\p{N}--[\p{Variation_Selector}]]", regex.VERSION1)
    assert said.findall(neutralise(content, wording)) == said.findall(content)


# Scripts and symbols of ordinary speech, spaces only between words, as people write.
ORDINARY_CHARACTERS = (
    st.characters(categories=["L", "M", "N"])
    | st.sampled_from("，。！？「」『』（）：；、…—“”‘’.,;:!?'\"()&%$€+/=@_#* -")
    | st.sampled_from(
        [
            "🐟",
            "👨‍👩‍👧‍👦",
            "❤️",
            "👍🏽",
            "🇯🇵",
            "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
        ]
    )
)
ORDINARY = (
    st.lists(ORDINARY_CHARACTERS, min_size=1, max_size=60)
    .map("".join)
    .filter(lambda text: text == text.strip() and not text.startswith("- "))
    .filter(lambda text: not regex.search(r"\p{Variation_Selector}{2}", text))
    .filter(lambda text: all(words.heading not in text for words in WORDINGS.values()))
)


@given(ORDINARY, LANGUAGES)
def test_neutralise_keeps_ordinary_text_verbatim(content: str, language: Language) -> None:
    """Case 25."""
    assert neutralise(content, WORDINGS[language]) == content


@given(st.lists(CONTENTS, max_size=6), WORDS, st.integers(-5, 400))
def test_render_never_exceeds_its_bound(
    contents: list[str], wording: Wording, max_chars: int
) -> None:
    fragment = render(remembered(contents), language="en", max_chars=max_chars, wording=wording)
    assert len(fragment) <= max(0, max_chars)


@given(st.lists(CONTENTS, max_size=6), LANGUAGES, st.integers(0, 400))
def test_render_has_one_line_per_item_and_its_own_marks(
    contents: list[str], language: Language, max_chars: int
) -> None:
    """Case 5: one memory, one item, whatever it holds."""
    wording = WORDINGS[language]
    fragment = render(remembered(contents), language=language, max_chars=max_chars)
    shown = [text for content in contents if not is_blank(text := neutralise(content, wording))]
    if not fragment:
        return
    heading, *items = fragment.splitlines()
    assert heading == wording.heading
    assert "\n".join([heading, *items]) == fragment
    last = items[-1]
    if last.startswith(wording.bullet):
        assert len(items) == len(shown)
    elif items.pop() and last == wording.cut.strip():
        assert len(items) < len(shown)
    else:
        assert last == wording.more.format(count=len(shown) - len(items))
        assert len(items) < len(shown)
    assert items
    # Each item is the beginning of its memory, whole or marked as cut, in the order given.
    rest = iter(shown)
    for item in items:
        assert item.startswith(wording.bullet)
        text = item.removeprefix(wording.bullet)
        assert any(stands_for(text, whole, wording) for whole in rest)


def stands_for(text: str, whole: str, wording: Wording) -> bool:
    kept = text.removesuffix(wording.cut)
    return text == whole or (
        text.endswith(wording.cut) and whole.startswith(kept) and len(kept) >= wording.useful_chars
    )


@given(st.lists(CONTENTS, max_size=6), LANGUAGES)
def test_render_with_room_for_all_shows_all_whole(contents: list[str], language: Language) -> None:
    wording = WORDINGS[language]
    fragment = render(remembered(contents), language=language, max_chars=100_000)
    texts = [neutralise(content, wording) for content in contents]
    lines = [wording.bullet + text for text in texts if not is_blank(text)]
    assert fragment == "\n".join([wording.heading, *lines] if lines else [])


@given(st.text(alphabet="abc ", min_size=41, max_size=300).filter(str.strip), st.integers(60, 400))
def test_render_shows_the_first_memory_wherever_a_useful_part_fits(
    content: str, max_chars: int
) -> None:
    wording = dataclasses.replace(WORDINGS["en"], useful_chars=1)
    fragment = render(remembered([content]), language="en", max_chars=max_chars, wording=wording)
    assert fragment.startswith("You remember:\n- ")


@given(st.lists(CONTENTS, max_size=4), LANGUAGES, st.integers(0, 300))
def test_render_is_deterministic(contents: list[str], language: Language, max_chars: int) -> None:
    first, second = (
        render(remembered(contents), language=language, max_chars=max_chars) for _ in range(2)
    )
    assert first == second
