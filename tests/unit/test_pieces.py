"""Cutting long texts, pooling and fitting vectors, estimating tokens: known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tickmind.errors import ConfigurationError, EmbeddingFailed
from tickmind.pieces import estimate_tokens, fit, grapheme_cut, pool, split

FAMILY = "👨‍👩‍👧‍👦"  # one grapheme of seven code points


def test_split_gives_a_short_text_back_at_once() -> None:
    assert split("fresh fish", max_chars=10, overlap_chars=5) == ["fresh fish"]
    assert split("", max_chars=10, overlap_chars=0) == [""]


def test_split_ends_a_piece_at_a_sentence_end_of_its_last_fifth() -> None:
    text = "a" * 16 + ". " + "b" * 18
    assert split(text, max_chars=20, overlap_chars=0) == ["a" * 16 + ". ", "b" * 18]


def test_split_prefers_a_sentence_end_to_a_later_space() -> None:
    text = "a" * 15 + "! b c" + "d" * 10
    assert split(text, max_chars=20, overlap_chars=0)[0] == "a" * 15 + "! "


def test_split_ignores_a_sentence_end_before_its_last_fifth() -> None:
    text = "a" * 14 + ". " + "b" * 30
    assert split(text, max_chars=20, overlap_chars=0)[0] == text[:20]


def test_split_ignores_a_sentence_end_inside_a_grapheme() -> None:
    text = "鱼" * 17 + "。\u0301" + "卖" * 20
    assert split(text, max_chars=20, overlap_chars=0)[0] == text[:20]


@pytest.mark.parametrize("mark", ["。", "！", "？", "。」", "？」』"])
def test_split_knows_the_sentence_ends_of_chinese_and_japanese(mark: str) -> None:
    text = "鱼" * 17 + mark + "卖" * 19
    assert split(text, max_chars=20, overlap_chars=0)[0] == "鱼" * 17 + mark


def test_split_ends_at_white_space_where_no_sentence_ends() -> None:
    text = "a" * 17 + " " + "b" * 20
    assert split(text, max_chars=20, overlap_chars=0)[0] == "a" * 17 + " "


def test_split_does_not_take_a_decimal_point_for_a_sentence_end() -> None:
    text = "a" * 16 + "3.14159" + "b" * 10
    assert split(text, max_chars=20, overlap_chars=0)[0] == text[:20]


def test_split_overlaps_by_what_is_asked() -> None:
    pieces = split("0123456789" * 3, max_chars=10, overlap_chars=3)
    assert pieces == ["0123456789", "7890123456", "4567890123", "123456789"]


def test_split_overlaps_by_less_rather_than_cut_a_grapheme() -> None:
    text = "abcd" + FAMILY + "efghijklmn"
    pieces = split(text, max_chars=12, overlap_chars=5)
    assert pieces[0] == "abcd" + FAMILY + "e"
    assert pieces[1].startswith("efgh")


def test_split_does_without_overlap_before_a_grapheme_that_leaves_no_room_for_it() -> None:
    cluster = "e" + "\u0301" * 8
    assert split("abcdefgh" + cluster + "ij", max_chars=10, overlap_chars=5) == [
        "abcdefgh",
        cluster + "i",
        "ij",
    ]


@pytest.mark.parametrize("cluster", [FAMILY, "🇯🇵", "e\u0301\u0323", "각", "\r\n", "क्षि", "👍🏽"])
def test_split_never_cuts_a_grapheme(cluster: str) -> None:
    """Case 3: pieces by characters as a reader sees them."""
    pieces = split(cluster * 40, max_chars=len(cluster) * 3 + 1, overlap_chars=len(cluster))
    assert all(piece.replace(cluster, "") == "" for piece in pieces)
    assert len(pieces) > 10


def test_split_cuts_a_grapheme_longer_than_a_piece() -> None:
    text = "ab" + "e" + "\u0301" * 50 + "cd"
    pieces = split(text, max_chars=10, overlap_chars=5)
    assert all(1 <= len(piece) <= 10 for piece in pieces)
    assert "e" + "\u0301" * 9 in pieces


def test_split_of_nine_thousand_chinese_characters_covers_them() -> None:
    """Case 3: the talk that no provider takes at once."""
    text = "".join(f"第{number}天，市场里有新鲜的鱼卖。" for number in range(600))[:9000]
    pieces = split(text, max_chars=2000, overlap_chars=200)
    assert 5 <= len(pieces) <= 7
    assert all(len(piece) <= 2000 for piece in pieces)
    assert all(piece.endswith("。") for piece in pieces[:-1])
    assert all(text.count(piece) == 1 for piece in pieces)


@pytest.mark.parametrize(("max_chars", "overlap"), [(0, 0), (10, 6), (10, -1), (1, 1)])
def test_split_refuses_bounds_that_make_no_progress(max_chars: int, overlap: int) -> None:
    with pytest.raises(ConfigurationError):
        split("a" * 100, max_chars=max_chars, overlap_chars=overlap)


@pytest.mark.parametrize(
    ("text", "limit", "cut"),
    [
        ("fish", 2, 2),
        ("fish", 9, 4),
        ("fish", 0, 0),
        ("fish", -3, 0),
        ("ab" + FAMILY + "c", 5, 2),
        ("ab" + FAMILY + "c", 9, 9),
        (FAMILY, 3, 3),
        ("a\r\nb", 2, 1),
        ("🇯🇵🇨🇳🇰🇷", 3, 2),
    ],
)
def test_grapheme_cut_is_the_last_boundary_within_the_limit(
    text: str, limit: int, cut: int
) -> None:
    assert grapheme_cut(text, limit) == cut


def test_pool_weights_by_length_and_renormalises() -> None:
    vectors = np.eye(2, dtype=np.float32)
    pooled = pool(vectors, [3, 4])
    assert pooled.dtype == np.float32
    assert pooled == pytest.approx([0.6, 0.8])


def test_pool_of_one_piece_is_that_piece() -> None:
    assert pool(np.array([[0.6, 0.8]], dtype=np.float32), [7]) == pytest.approx([0.6, 0.8])


def test_pool_refuses_pieces_that_cancel_out() -> None:
    """Case 14: no zero vector is stored."""
    with pytest.raises(EmbeddingFailed, match="pieces"):
        pool(np.array([[1, 0], [-1, 0]], dtype=np.float32), [5, 5])


@pytest.mark.parametrize("weights", [[1], [1, 0], [1, 2, 3]])
def test_pool_refuses_weights_that_do_not_belong(weights: list[int]) -> None:
    with pytest.raises(ValueError, match="weights"):
        pool(np.eye(2, dtype=np.float32), weights)


def test_fit_cuts_wider_vectors_and_renormalises() -> None:
    """Case 16: a 3072-wide model in a space of 1536 dimensions."""
    wide = np.random.default_rng(5).normal(size=(4, 3072)).astype(np.float32)
    fitted = fit(wide, 1536)
    assert fitted.shape == (4, 1536)
    assert fitted.dtype == np.float32
    assert np.linalg.norm(fitted, axis=1) == pytest.approx(np.ones(4), abs=1e-6)
    cosines = (fitted * wide[:, :1536]).sum(axis=1) / np.linalg.norm(wide[:, :1536], axis=1)
    assert cosines == pytest.approx(np.ones(4), abs=1e-5)


def test_fit_keeps_the_direction_of_a_single_vector() -> None:
    assert fit(np.array([3, 4], dtype=np.float32), 2) == pytest.approx([0.6, 0.8])


def test_fit_refuses_narrower_vectors_naming_both_widths() -> None:
    """Case 12: 384 numbers where the space has 1536."""
    with pytest.raises(EmbeddingFailed, match=r"384.*1536"):
        fit(np.ones((2, 384), dtype=np.float32), 1536)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", [0, 2])
def test_fit_refuses_values_that_are_not_finite_naming_the_row(value: float, column: int) -> None:
    vectors = np.ones((3, 3), dtype=np.float32)
    vectors[1, column] = value
    with pytest.raises(EmbeddingFailed, match="vector 1 "):
        fit(vectors, 2)


def test_fit_refuses_a_zero_vector_naming_the_row() -> None:
    """Case 14: also one whose zeros begin where it is cut."""
    vectors = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 5]], dtype=np.float32)
    with pytest.raises(EmbeddingFailed, match="vector 2 "):
        fit(vectors, 2)


def test_fit_renormalises_the_smallest_and_largest_floats() -> None:
    extremes = np.array([[1e-45, 1e-45], [3e38, 3e38]], dtype=np.float32)
    assert fit(extremes, 2) == pytest.approx(np.full((2, 2), math.sqrt(0.5)))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 1),
        ("a", 1),
        ("aaaa", 2),  # 1.2
        ("The market sells fresh fish", 9),  # 27 x 0.3 = 8.1
        ("1234", 3),
        ("鱼", 2),  # 3 bytes x 0.5 = 1.5
        ("市场里有新鲜的鱼卖", 14),  # 27 bytes: 13.5
        ("é!", 2),  # 2 bytes and one other: 1.75
        ("a b\n鱼🐟", 6),  # 0.9 + 0.75 + 1.5 + 2.0 = 5.15
    ],
)
def test_estimate_tokens_follows_its_rule(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens
