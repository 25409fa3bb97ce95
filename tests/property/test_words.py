"""What must hold of terms and of scores by them, whatever the texts."""

from __future__ import annotations

import tracemalloc
import unicodedata

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tickmind.scoring import WORDS_WEIGHT, by_words, fused
from tickmind.words import MAX_QUERY_TERMS, MAX_TERMS, digests, keys, query_digests, terms

TEXTS = st.text(max_size=200)
AGENTS = st.integers(1, 2**63 - 1)
DOCUMENTS = st.lists(st.frozensets(st.integers(0, 40), max_size=12), max_size=40)
ASKED = st.frozensets(st.integers(0, 40), max_size=12)


@given(TEXTS)
def test_terms_are_the_same_for_equivalent_texts(text: str) -> None:
    expected = terms(text)
    assert terms(unicodedata.normalize("NFKC", text)) == expected
    assert all(expected)
    assert not any(character.isspace() for term in expected for character in term)


@given(st.text(st.characters(max_codepoint=127)) | st.text("aS '_-9."))
def test_terms_of_ascii_are_the_same_among_other_scripts(text: str) -> None:
    """Texts of ASCII alone are read on shorter ways."""
    assert terms(f"\u00e9 {text}") == ["\u00e9", *terms(text)]


@given(st.text(st.characters(categories=["So", "Sk", "Zs", "Po", "Cc", "Cf"])))
def test_symbols_alone_have_no_terms(text: str) -> None:
    folded = unicodedata.normalize("NFKC", text)
    if not any(character.isalnum() for character in folded):
        assert terms(text) == []


@given(TEXTS, TEXTS)
def test_a_context_adds_its_terms_and_takes_none(content: str, context: str) -> None:
    alone, both = digests(content), digests(content, context)
    assert both[: len(alone)] == alone
    assert set(both) == set(alone) | set(digests(context))
    assert len(set(both)) == len(both)


@given(st.lists(st.integers(0, 10**6), max_size=600))
def test_terms_kept_are_bounded_and_the_first(numbers: list[int]) -> None:
    text = " ".join(f"w{number}" for number in numbers)
    assert len(digests(text)) <= MAX_TERMS
    assert digests(text)[:MAX_QUERY_TERMS] == query_digests(text)


@given(AGENTS, AGENTS, TEXTS)
def test_keys_fit_and_part_agents(one: int, other: int, text: str) -> None:
    mine, theirs = keys(one, digests(text)), keys(other, digests(text))
    assert all(0 <= key < 2**63 for key in mine)
    if (one - other) % 2**31:
        assert not set(mine) & set(theirs)


@given(DOCUMENTS, ASKED)
def test_scores_by_words_lie_in_their_range(
    documents: list[frozenset[int]], asked: frozenset[int]
) -> None:
    scores = by_words(documents, asked)
    assert np.isfinite(scores).all()
    assert ((scores >= 0) & (scores <= 1)).all()
    for document, score in zip(documents, scores, strict=True):
        assert score == 0 or document & asked


@given(DOCUMENTS, ASKED)
def test_equal_memories_score_equally_by_words(
    documents: list[frozenset[int]], asked: frozenset[int]
) -> None:
    scores = by_words([*documents, *documents], asked)
    assert (scores[: len(documents)] == scores[len(documents) :]).all()


@given(DOCUMENTS, ASKED, st.data())
def test_of_two_as_long_what_holds_more_of_what_is_asked_for_scores_no_less(
    documents: list[frozenset[int]], asked: frozenset[int], data: st.DataObject
) -> None:
    held = data.draw(st.frozensets(st.sampled_from(sorted(asked)))) if asked else frozenset()
    fewer = data.draw(st.frozensets(st.sampled_from(sorted(held)))) if held else frozenset()
    filled = fewer | frozenset(range(100, 100 + len(held) - len(fewer)))
    scores = by_words([*documents, filled, held], asked)
    assert scores[-2] <= scores[-1]


@given(DOCUMENTS, ASKED, st.frozensets(st.integers(100, 10_000), max_size=60))
def test_words_nobody_said_never_make_a_better_match(
    documents: list[frozenset[int]], asked: frozenset[int], unheard: frozenset[int]
) -> None:
    """A longer observation, of which the memories hold no more, says no more of them."""
    scores = by_words(documents, asked)
    longer = by_words(documents, asked | unheard)
    assert (longer <= scores + 1e-12).all()
    # Nor does it ever make them nothing: what is rare in common counts, however much else is said.
    assert ((longer > 0) == (scores > 0)).all()


@given(st.integers(20, 400), st.integers(10, 60))
def test_one_word_in_common_is_no_match_and_six_rare_ones_are(others: int, length: int) -> None:
    """Whatever the agent's size and however long an observation."""
    documents = [frozenset({1000 + n}) for n in range(others)]
    one = frozenset({0, *range(100, 119)})
    six = frozenset({*range(6), *range(200, 214)})
    asked = frozenset(range(length))
    scores = by_words([*documents, one, six], asked)
    assert scores[-1] == 1.0
    assert WORDS_WEIGHT * scores[-2] < 0.1


@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1))
def test_relevance_rises_in_meaning_and_in_words(
    cosine: float, other: float, words: float, more: float
) -> None:
    low, high = sorted((cosine, other))
    few, many = sorted((words, more))
    at = fused(np.array([low, high, low]), np.array([few, few, many]))
    assert at[0] <= at[1]
    assert at[0] <= at[2]
    assert -1 <= at[0] <= 1 + WORDS_WEIGHT


def test_long_words_are_not_kept() -> None:
    """Sixteen thousand of them, of texts without spaces, would take half a gigabyte."""
    texts = [f"{number} " + f"{number}x" * 5000 for number in range(200)]
    tracemalloc.start()
    found = [digests(text) for text in texts]
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 1_000_000
    assert len({digest for _, digest in found}) == 200
    assert [digests(text) for text in texts] == found
