"""Cleaning: what PostgreSQL cannot hold goes, everything else stays; which texts are blank."""

from __future__ import annotations

import json

import pytest

from tickmind.clean import Cleaned, clean_text, is_blank


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The market sells fresh fish",
        "市场里有新鲜的鱼卖，我明天去看看。",
        "市場では新鮮な魚を売っている。",
        "mixed 混ぜる 混合 \t\r\n ends with spaces  ",
        "e\u0301 is not made \u00e9, \u202eeven this stays\u202c",
        "👩‍👩‍👧 🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f \U0010ffff \ufffd",
    ],
)
def test_clean_text_keeps_ordinary_text_verbatim(text: str) -> None:
    """Case 25: what is stored is what was said."""
    assert clean_text(text) == Cleaned(text=text, nul_removed=0, surrogates_replaced=0)


@pytest.mark.parametrize(
    ("text", "cleaned", "removed"),
    [
        ("fresh\0 fish", "fresh fish", 1),
        ("\0新鲜\0的鱼\0", "新鲜的鱼", 3),
        ("\0", "", 1),
        ("literally \\u0000", "literally \\u0000", 0),
    ],
)
def test_clean_text_removes_only_the_nul(text: str, cleaned: str, removed: int) -> None:
    """Case 1: only U+0000 goes, and it is counted."""
    assert clean_text(text) == Cleaned(text=cleaned, nul_removed=removed)


@pytest.mark.parametrize(
    ("text", "cleaned", "replaced"),
    [
        ("a\ud800b", "a\ufffdb", 1),
        ("\udc00\ud800", "\ufffd\ufffd", 2),
        ("ends \ude00", "ends \ufffd", 1),
        ("fish \ud83d\udc1f", "fish 🐟", 0),
        ("\ud83d\ud83d\udc1f", "\ufffd🐟", 1),
        ("\ud83d\udc1f\udc1f", "🐟\ufffd", 1),
    ],
)
def test_clean_text_joins_pairs_and_replaces_lone_surrogates(
    text: str, cleaned: str, replaced: int
) -> None:
    assert clean_text(text) == Cleaned(text=cleaned, surrogates_replaced=replaced)


def test_clean_text_counts_both_where_both_occur() -> None:
    assert clean_text("\0a\ud800\0") == Cleaned(
        text="a\ufffd", nul_removed=2, surrogates_replaced=1
    )


def test_clean_text_joins_a_pair_parted_by_nul() -> None:
    assert clean_text("\ud83d\0\udc1f") == Cleaned(text="🐟", nul_removed=1)


def test_clean_text_mends_what_json_lets_through() -> None:
    decoded = json.loads('"\\ud83d and \\u0000 and \\ud83d\\udc1f"')
    assert clean_text(decoded) == Cleaned(
        text="\ufffd and  and 🐟", nul_removed=1, surrogates_replaced=1
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\n",
        "\t\r\n\v\f\x1c\x1d\x1e\x1f\x85\u2028\u2029",
        "\xa0\u1680\u2003\u202f\u205f\u3000",
        "\u200b\u200c\u200d\u2060\ufeff\xad",
        "\u202a\u202e\u2066\u2069\u200e\u200f\u061c",
        "\x00\x07\x1b\x7f\x80\x9f",
        "\U000e0041\U000e007f\ufe0f\U000e0100",
        "\u2800\u3164\u115f\uffa0",
        "\ud800",
    ],
)
def test_is_blank_for_what_is_not_seen(text: str) -> None:
    """Case 2: such texts are never sent to an API."""
    assert is_blank(text)


@pytest.mark.parametrize(
    "text", ["a", " b ", "?!", "…", "。", "鱼", "🐟", "\u200b0", "\u0301", "\ufffd", "\u0600", "|"]
)
def test_is_blank_is_false_for_anything_seen(text: str) -> None:
    """Case 2: punctuation and symbols are said, so they are embedded."""
    assert not is_blank(text)
