"""What must hold of pieces, pooled and fitted vectors and token estimates for any input."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import regex
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tickmind.pieces import estimate_tokens, fit, grapheme_cut, pool, split

PARTS = st.sampled_from(
    ["a", " ", ". ", "。", "鱼", "\r\n", "\n", "👨‍👩‍👧‍👦", "🇯🇵", "🇯", "e\u0301", "\u0301", "각",
     "क्षि", "\u200d", "👩", "\u200b", "\u0600", "……", "」", "!\" "]
)  # fmt: skip
TEXTS = st.text(max_size=80) | st.lists(PARTS, max_size=60).map("".join)
BOUNDS = st.integers(1, 40).flatmap(
    lambda most: st.tuples(st.just(most), st.integers(0, most // 2))
)


def boundaries(text: str) -> list[int]:
    return [0, *(match.end() for match in regex.finditer(r"\X", text))]


def spans(text: str, pieces: list[str], overlap: int) -> list[tuple[int, int]]:
    """Where each piece lies: at the last place that its predecessor's overlap allows and that
    leaves the rest of the pieces a way to cover the text."""
    found = [(0, len(pieces[0]))]

    def place(number: int) -> bool:
        if number == len(pieces):
            return found[-1][1] == len(text)
        end = found[-1][1]
        for start in range(end, max(-1, end - overlap - 1), -1):
            if text.startswith(pieces[number], start) and start + len(pieces[number]) > end:
                found.append((start, start + len(pieces[number])))
                if place(number + 1):
                    return True
                found.pop()
        return False

    assert text.startswith(pieces[0])
    assert place(1), "the pieces do not cover the text in order within the overlap"
    return found


@given(TEXTS, BOUNDS)
def test_split_covers_the_text_in_order_within_the_bounds(
    text: str, bounds: tuple[int, int]
) -> None:
    most, overlap = bounds
    pieces = split(text, max_chars=most, overlap_chars=overlap)
    assert all(len(piece) <= most for piece in pieces)
    spans(text, pieces, overlap)
    assert pieces == split(text, max_chars=most, overlap_chars=overlap)


@given(TEXTS, BOUNDS)
def test_split_makes_no_more_pieces_than_it_promises(text: str, bounds: tuple[int, int]) -> None:
    most, overlap = bounds
    pieces = split(text, max_chars=most, overlap_chars=overlap)
    assert len(pieces) <= 7 * len(text) / most + 2


@given(TEXTS, BOUNDS)
def test_split_without_overlap_cuts_only_at_boundaries_of_what_fits(
    text: str, bounds: tuple[int, int]
) -> None:
    most, _ = bounds
    ends = set(boundaries(text))
    fits = max((len(cluster) for cluster in regex.findall(r"\X", text)), default=0) <= most
    position = 0
    for piece in split(text, max_chars=most, overlap_chars=0):
        position += len(piece)
        assert position in ends or not fits
    assert position == len(text)


@given(TEXTS, BOUNDS)
def test_split_pieces_are_whole_graphemes_where_each_fits(
    text: str, bounds: tuple[int, int]
) -> None:
    most, overlap = bounds
    ends = boundaries(text)
    most = max([most, *(end - start for start, end in pairwise(ends))])
    pieces = split(text, max_chars=most, overlap_chars=overlap)
    for start, end in spans(text, pieces, overlap):
        assert end in ends
        # Where a piece begins is told by its text only up to repetition: one of the places that
        # hold it must be a boundary.
        piece = text[start:end]
        assert any(text.startswith(piece, at) for at in ends)


@given(TEXTS, st.integers(0, 100))
def test_grapheme_cut_is_a_boundary_within_the_limit(text: str, limit: int) -> None:
    expected = max(end for end in boundaries(text) if end <= limit)
    if expected == 0:
        expected = min(limit, len(text))
    assert grapheme_cut(text, limit) == expected


UNIT = st.floats(-1, 1, width=32)
MATRICES = st.tuples(st.integers(1, 5), st.integers(1, 8)).flatmap(
    lambda shape: hnp.arrays(np.float32, shape, elements=UNIT)
)


@given(MATRICES, st.integers(1, 8))
def test_fit_gives_unit_vectors_in_the_same_direction(vectors: np.ndarray, width: int) -> None:
    width = min(width, vectors.shape[1])
    vectors[:, 0] = np.where(vectors[:, 0] == 0, 1, vectors[:, 0])
    fitted = fit(vectors, width)
    assert fitted.shape == (len(vectors), width)
    assert np.abs(np.linalg.norm(fitted.astype(np.float64), axis=1) - 1).max() < 1e-6
    cut = vectors[:, :width].astype(np.float64)
    largest = np.abs(cut).max(axis=1, keepdims=True)
    np.testing.assert_array_equal(
        np.abs(fitted).argmax(axis=1), np.abs(cut / largest).argmax(axis=1)
    )
    assert (np.sign(fitted) * np.sign(cut) >= 0).all()
    np.testing.assert_allclose(fit(fitted, width), fitted, rtol=0, atol=2e-7)


@given(MATRICES, st.data())
def test_pool_is_the_weighted_mean_at_unit_length(vectors: np.ndarray, data: st.DataObject) -> None:
    vectors[:, 0] = np.abs(vectors[:, 0]) + np.float32(0.5)  # no cancelling out
    weights = data.draw(
        st.lists(st.integers(1, 10_000), min_size=len(vectors), max_size=len(vectors))
    )
    pooled = pool(vectors, weights).astype(np.float64)
    mean = np.average(vectors.astype(np.float64), axis=0, weights=weights)
    assert abs(np.linalg.norm(pooled) - 1) < 1e-6
    np.testing.assert_allclose(pooled, mean / np.linalg.norm(mean), rtol=0, atol=1e-6)


@given(st.text())
def test_estimate_tokens_counts_each_character_by_its_kind(text: str) -> None:
    hundredths = 0
    for character in text:
        if not character.isascii():
            hundredths += 50 * len(character.encode())
        elif character.isalpha() or character == " ":
            hundredths += 30
        else:
            hundredths += 75
    assert estimate_tokens(text) == max(1, math.ceil(hundredths / 100))


@given(st.text(), st.text())
def test_estimate_tokens_never_falls_with_more_text(text: str, more: str) -> None:
    assert estimate_tokens(text + more) >= estimate_tokens(text)
