"""The hash embedder: deterministic, of unit length, and similar where words are shared."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickmind.local.provider.tokens import count_tokens, cut_to_tokens
from tickmind.local.provider.vectors import hash_embed, hash_embed_many

WIDTH = 1536
# Directions are random: a cosine of unrelated texts has a deviation of 1/sqrt(1536) = .026.
UNRELATED = 5 / WIDTH**0.5


def cosine(a: str, b: str) -> float:
    return float(hash_embed(a, WIDTH) @ hash_embed(b, WIDTH))


@given(st.text(st.characters(), max_size=200), st.integers(1, 100))
def test_vector_is_finite_and_of_unit_length_for_any_text(text: str, dimensions: int) -> None:
    vector = hash_embed(text, dimensions)

    assert vector.shape == (dimensions,)
    assert vector.dtype == np.float32
    assert np.linalg.norm(vector.astype(np.float64)) == pytest.approx(1.0, abs=1e-6)


@given(st.text(max_size=50), st.integers(1, 64))
def test_fewer_dimensions_are_the_renormalised_start_of_more(text: str, dimensions: int) -> None:
    start = hash_embed(text, 64)[:dimensions]

    np.testing.assert_allclose(
        hash_embed(text, dimensions), start / np.linalg.norm(start), rtol=1e-5
    )


def test_vector_is_the_same_in_another_process() -> None:
    """Python salts its own hashes per process; the embedder must not use them."""
    code = (
        "from tickmind.local.provider.vectors import hash_embed;"
        "print(hash_embed('the market 市場', 64).tobytes().hex())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert other.stdout.strip() == hash_embed("the market 市場", 64).tobytes().hex()


@pytest.mark.parametrize(
    ("text", "related", "unrelated"),
    [
        ("The market sells fresh fish", "Alice walks past the MARKET", "Bob reads in bed"),
        ("市场上卖新鲜的鱼", "鱼市场上有什么", "我去图书馆看书"),
        ("市場で新鮮な魚を売っている", "魚を売っている店", "図書館へ行きました"),
    ],
)
def test_texts_are_similar_where_they_share_words(text: str, related: str, unrelated: str) -> None:
    assert cosine(text, related) > 0.25
    assert abs(cosine(text, unrelated)) < UNRELATED


def test_texts_of_the_same_words_differ_but_are_close() -> None:
    assert 0.8 < cosine("the dog bites the man", "the man bites the dog") < 0.99


def test_many_are_embedded_as_one_by_one() -> None:
    texts = ["one", "", "two words", "词"]

    np.testing.assert_array_equal(
        hash_embed_many(texts, 32), np.stack([hash_embed(text, 32) for text in texts])
    )
    assert hash_embed_many([], 32).shape == (0, 32)


def test_no_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        hash_embed("text", 0)


def test_embedder_does_without_the_server() -> None:
    code = (
        "import sys, tickmind.local.provider.vectors;"
        "print({'starlette', 'uvicorn', 'tickmind.local.provider.app'} & set(sys.modules))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert loaded.stdout.strip() == "set()"


@given(st.text(max_size=100), st.integers(1, 20))
def test_cut_text_keeps_to_its_tokens(text: str, tokens: int) -> None:
    cut = cut_to_tokens(text, tokens)

    assert text.startswith(cut)
    assert count_tokens(cut) == min(tokens, count_tokens(text))
