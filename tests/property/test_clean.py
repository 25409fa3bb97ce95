"""Cleaning holds for any string Python can build, surrogates included."""

from __future__ import annotations

import regex
from hypothesis import example, given
from hypothesis import strategies as st

from tickmind.clean import clean_text, is_blank

ANY_CHARACTER = st.characters(exclude_categories=())
TROUBLE = st.sampled_from(["\0", "\ud83d", "\udc1f", "\ud800", "\udfff", "a", "鱼", "🐟"])
ANY_TEXT = st.text(ANY_CHARACTER) | st.lists(TROUBLE).map("".join)


@given(ANY_TEXT)
def test_clean_text_leaves_nothing_that_cannot_be_stored(text: str) -> None:
    cleaned = clean_text(text)
    assert "\0" not in cleaned.text
    assert cleaned.text.encode().decode() == cleaned.text


@given(ANY_TEXT)
def test_clean_text_is_idempotent(text: str) -> None:
    again = clean_text(clean_text(text).text)
    assert (again.text, again.nul_removed, again.surrogates_replaced) == (
        clean_text(text).text,
        0,
        0,
    )


@given(st.text())
def test_clean_text_changes_nothing_but_nul_without_surrogates(text: str) -> None:
    cleaned = clean_text(text)
    assert cleaned.text == text.replace("\0", "")
    assert cleaned.nul_removed == text.count("\0")
    assert cleaned.surrogates_replaced == 0


@given(ANY_TEXT)
def test_clean_text_accounts_for_every_surrogate(text: str) -> None:
    cleaned = clean_text(text)
    without_nul = text.replace("\0", "")
    surrogates = sum("\ud800" <= character <= "\udfff" for character in without_nul)
    joined = len(without_nul) - len(cleaned.text)
    assert surrogates == cleaned.surrogates_replaced + 2 * joined


@given(ANY_TEXT)
def test_clean_text_agrees_with_utf16_on_what_a_pair_is(text: str) -> None:
    through_utf16 = (
        text.replace("\0", "").encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    )
    assert clean_text(text).text == through_utf16


# The rule of is_blank said over again with the Unicode database of another library.
UNSEEN = regex.compile(
    r"[\p{White_Space}\p{Cc}\p{Cs}\p{Default_Ignorable_Code_Point}\ufff9-\ufffb\u2800]*"
)


@given(ANY_CHARACTER)
@example("\u2065")
@example("\U000e0fff")
@example("\u0600")
def test_is_blank_follows_unicode_for_each_character(character: str) -> None:
    assert is_blank(character) == bool(UNSEEN.fullmatch(character))


@given(ANY_TEXT, ANY_TEXT)
def test_is_blank_of_a_sum_needs_both(left: str, right: str) -> None:
    assert is_blank(left + right) == (is_blank(left) and is_blank(right))
