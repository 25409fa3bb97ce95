"""Texts to vectors: pieces, prefixes, pooling, and what is believed of an answer."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tickmind.embedding import CallFailed, Embedder, HashProvider, Reply, Unmetered, space_of
from tickmind.embedding_api import OpenAIProvider, read_reply
from tickmind.errors import ConfigurationError, EmbeddingFailed, TextRefused
from tickmind.hashed import hash_embed
from tickmind.pieces import pool, split
from tickmind.settings import EmbeddingSettings
from tickmind.store.spaces import Space


def _settings(**options: Any) -> EmbeddingSettings:
    given: dict[str, Any] = {"embedding_provider": "hash", "embedding_dimensions": 16}
    return EmbeddingSettings(**(given | options))


class Recording(Unmetered):
    """Hash vectors, and what was asked for; `refuses` says which requests get a 400."""

    def __init__(
        self, dimensions: int = 16, refuses: Callable[[Sequence[str]], bool] = lambda _: False
    ) -> None:
        self._hashes = HashProvider(dimensions)
        self._refuses = refuses
        self.requests: list[list[str]] = []

    async def call(self, texts: Sequence[str]) -> Reply:
        self.requests.append(list(texts))
        if self._refuses(texts):
            msg = "refused"
            raise TextRefused(msg)
        return await self._hashes.call(texts)

    async def fault(self) -> str | None:
        return None

    async def close(self) -> None:
        pass


async def test_documents_and_queries_get_their_prefixes() -> None:
    provider = Recording()
    settings = _settings(embedding_document_prefix="passage: ", embedding_query_prefix="query: ")
    embedder = Embedder(settings, provider)
    document = await embedder.embed(["fish"], "document")
    query = await embedder.embed(["fish"], "query")
    assert provider.requests == [["passage: fish"], ["query: fish"]]
    assert not np.allclose(document, query)


async def test_space_is_what_the_settings_name() -> None:
    settings = _settings(
        embedding_provider="openai", embedding_model="m", embedding_query_prefix="q: "
    )
    assert space_of(settings) == Space(model="m", dimensions=16, query_prefix="q: ")
    assert space_of(_settings(embedding_model="m")).model == "hash"


async def test_long_text_is_pooled_from_its_pieces_beside_short_ones() -> None:
    provider = Recording()
    settings = _settings(embedding_max_chars=40, embedding_overlap_chars=8)
    long = "The market sells fresh fish. The baker is ill today! Who will bake the bread?"
    vectors = await Embedder(settings, provider).embed(["a", long, "b"], "document")
    pieces = split(long, max_chars=40, overlap_chars=8)
    assert len(pieces) > 1
    assert provider.requests == [["a", *pieces, "b"]]
    expected = pool(np.stack([hash_embed(piece, 16) for piece in pieces]), list(map(len, pieces)))
    assert vectors[1] == pytest.approx(expected)
    assert vectors[0] == pytest.approx(hash_embed("a", 16))
    assert vectors[2] == pytest.approx(hash_embed("b", 16))
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(3), abs=1e-6)
    assert vectors.dtype == np.float32


@pytest.mark.parametrize("invisible", [" ", "\u200b", "\u2800", "\x01", "\u2063"])
async def test_blank_pieces_of_a_text_are_never_sent(invisible: str) -> None:
    """case 2: pieces of what leaves no mark, white space or not."""
    provider = Recording(refuses=lambda texts: any(not text.strip(invisible) for text in texts))
    settings = _settings(embedding_max_chars=16, embedding_overlap_chars=0)
    text = "begin" + invisible * 60 + "end"
    await Embedder(settings, provider).embed([text], "document")
    assert len(provider.requests) == 1
    assert {"begin", "end"} <= {piece.strip(invisible) for piece in provider.requests[0]}


async def test_more_pieces_than_a_request_takes_go_in_several() -> None:
    provider = Recording()
    settings = _settings(embedding_max_chars=16, embedding_overlap_chars=0, embedding_max_inputs=3)
    text = " ".join(f"word{i:03}" for i in range(20))
    vectors = await Embedder(settings, provider).embed([text], "document")
    assert max(map(len, provider.requests)) == 3
    pieces = [piece for request in provider.requests for piece in request]
    expected = pool(np.stack([hash_embed(piece, 16) for piece in pieces]), list(map(len, pieces)))
    assert vectors[0] == pytest.approx(expected)


async def test_refused_text_is_tried_in_smaller_pieces() -> None:
    """case 3: the model takes less than our pieces hold."""
    provider = Recording(refuses=lambda texts: max(map(len, texts)) > 600)
    text = "".join(f"Sentence number {i}. " for i in range(200))
    vectors = await Embedder(_settings(), provider).embed([text], "document")
    taken = [request for request in provider.requests if max(map(len, request)) <= 600]
    assert len(provider.requests) <= 12
    assert np.linalg.norm(vectors[0]) == pytest.approx(1, abs=1e-6)
    words = {word for request in taken for piece in request for word in piece.split()}
    assert set(text.split()) <= words


async def test_long_text_is_learned_from_as_it_goes() -> None:
    """case 3, 34: a request's cap and a text's at once; they are found once, not for each piece."""
    provider = Recording(refuses=lambda texts: len(texts) > 7 or max(map(len, texts)) > 600)
    text = "".join(f"Sentence number {i}. " for i in range(5000))  # 104 kB, 27 pieces
    await Embedder(_settings(), provider).embed([text], "document")
    refused = [r for r in provider.requests if len(r) > 7 or max(map(len, r)) > 600]
    assert len(refused) <= 12
    assert len(provider.requests) - len(refused) <= 60
    sent = [piece for request in provider.requests if request not in refused for piece in request]
    assert len(set(sent)) == len(sent)


async def test_refused_text_among_others_is_left_to_the_caller() -> None:
    """Only alone is it known whose fault it is."""
    provider = Recording(refuses=lambda texts: "bad" in texts)
    embedder = Embedder(_settings(), provider)
    with pytest.raises(TextRefused):
        await embedder.embed(["good", "bad"], "document")
    with pytest.raises(TextRefused):
        await embedder.embed(["bad"], "document")
    assert provider.requests == [["good", "bad"], ["bad"]]


@pytest.mark.parametrize("length", [1, 499, 4000, 400_000])
async def test_text_that_is_refused_at_any_length_costs_a_bounded_number_of_calls(
    length: int,
) -> None:
    """case 3."""
    provider = Recording(refuses=lambda _: True)
    text = "".join(f"{i:05}." for i in range(length // 6 + 1))[:length]
    with pytest.raises(TextRefused):
        await Embedder(_settings(), provider).embed([text], "document")
    assert len(provider.requests) <= 12
    assert min(len(piece) for request in provider.requests for piece in request) >= min(length, 100)


async def test_nothing_to_embed_is_no_call() -> None:
    provider = Recording()
    assert (await Embedder(_settings(), provider).embed([], "document")).shape == (0, 16)
    assert provider.requests == []


async def test_wider_vectors_are_cut_and_narrower_refused() -> None:
    """case 12, 16."""
    wide = await Embedder(_settings(), Recording(dimensions=64)).embed(["fish"], "document")
    assert wide.shape == (1, 16)
    assert np.linalg.norm(wide[0]) == pytest.approx(1, abs=1e-6)
    with pytest.raises(EmbeddingFailed, match=r"8.*16"):
        await Embedder(_settings(), Recording(dimensions=8)).embed(["fish"], "document")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"embedding_max_chars": 100, "embedding_overlap_chars": 51}, "OVERLAP_CHARS"),
        ({"embedding_provider": "openai", "embedding_base_url": "host/v1"}, "_BASE_URL"),
        ({"embedding_provider": "openai", "embedding_base_url": "ftp://host/v1"}, "_BASE_URL"),
        ({"embedding_provider": "openai", "embedding_base_url": "https://"}, "_BASE_URL"),
        ({"embedding_provider": "openai", "embedding_base_url": "http://[::1/v1"}, "_BASE_URL"),
        ({"embedding_provider": "openai", "embedding_api_key": "ключ"}, "_API_KEY"),
    ],
)
def test_settings_that_can_embed_nothing_are_told_at_start(
    options: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named) as told:
        Embedder(_settings(**options))
    assert "ключ" not in str(told.value)


def test_client_of_the_api_is_loaded_by_those_who_call_it_alone() -> None:
    """Loading it takes longer than all else of a service's start."""
    code = (
        "import sys, tickmind_embedder.app, tickmind_retriever.app, tickmind.cli.comparing\n"
        "from tickmind.embedding import Embedder\n"
        "from tickmind.settings import EmbeddingSettings\n"
        "for provider in ('hash', 'openai'):\n"
        "    Embedder(EmbeddingSettings(embedding_provider=provider))\n"
        "    print('openai' in sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == ["False", "True"]


async def test_provider_is_closed_with_its_embedder() -> None:
    provider = OpenAIProvider(_settings(embedding_provider="openai"))
    async with Embedder(_settings(), provider):
        pass
    assert "cannot be reached" in (await provider.fault() or "")


def _reply(*items: Any) -> bytes:
    return json.dumps({"object": "list", "data": items}).encode()


def _item(index: Any, *numbers: float) -> dict[str, Any]:
    return {"index": index, "embedding": list(numbers)}


def test_vectors_are_paired_by_their_indices() -> None:
    """case 30: 2, 0, 1."""
    body = _reply(_item(2, 2.0), _item(0, 0.5), _item(1, 1.0))
    assert read_reply(body, expected=3).vectors.tolist() == [[0.5], [1.0], [2.0]]


@pytest.mark.parametrize("missing", [{"embedding": [0.5]}, {"index": None, "embedding": [0.5]}])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_missing_index_is_the_one_that_is_left(missing: dict[str, Any], place: int) -> None:
    """case 30: Gemini leaves out index 0, also where it does not come first."""
    items = [_item(1, 1.0), _item(2, 2.0)]
    items.insert(place, missing)
    assert read_reply(_reply(*items), expected=3).vectors.tolist() == [[0.5], [1.0], [2.0]]


def test_indices_all_missing_are_the_positions() -> None:
    body = _reply({"embedding": [1.0]}, {"embedding": [2.0]})
    assert read_reply(body, expected=2).vectors.tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize(
    "indices",
    [(0, 0), (1, 2), (-1, 0), (0, "1"), (0, 1.0), (True, 0), (None, 5), (2, None), (1, 1)],
)
def test_indices_that_are_no_permutation_void_the_answer(indices: tuple[Any, Any]) -> None:
    with pytest.raises(EmbeddingFailed, match="indices"):
        read_reply(_reply(*(_item(index, 1.0) for index in indices)), expected=2)


def _base64(*numbers: float) -> str:
    return base64.b64encode(np.asarray(numbers, dtype="<f4").tobytes()).decode()


def test_numbers_and_base64_are_the_same_vectors() -> None:
    """case 32: whichever was asked for."""
    numbers = [0.25, -1.5, 3.0]
    mixed = _reply(_item(0, *numbers), {"index": 1, "embedding": _base64(*numbers)})
    assert read_reply(mixed, expected=2).vectors.tolist() == [numbers, numbers]


@pytest.mark.parametrize(
    "embedding",
    [
        None,
        5,
        {},
        "not base64!",
        _base64(1.0)[:-2],
        base64.b64encode(b"abc").decode(),
        [None, 1.0],
        ["1.0", "2.0"],
        [[1.0], [2.0]],
        [True, False],
        [1.0, {}],
        [10**400, 1.0],
        [],
    ],
    ids=repr,
)
def test_what_is_no_vector_voids_the_answer(embedding: Any) -> None:
    body = _reply(_item(0, 1.0, 2.0), {"index": 1, "embedding": embedding})
    with pytest.raises(EmbeddingFailed):
        read_reply(body, expected=2)


def test_number_too_large_for_single_precision_is_not_finite() -> None:
    (row,) = read_reply(_reply(_item(0, 1e39, 1.0)), expected=1).vectors
    assert not np.isfinite(row).all()


@pytest.mark.parametrize("data", [[], [_item(0, 1.0)], [_item(i, 1.0) for i in range(3)]])
def test_other_number_of_vectors_than_texts_voids_the_answer(data: list[Any]) -> None:
    """case 31."""
    with pytest.raises(EmbeddingFailed, match=f"{len(data)} vectors for 2 texts"):
        read_reply(_reply(*data), expected=2)


def test_vectors_of_different_widths_void_the_answer() -> None:
    with pytest.raises(EmbeddingFailed, match="widths"):
        read_reply(_reply(_item(0, 1.0), _item(1, 1.0, 2.0)), expected=2)


def test_item_that_is_no_object_voids_the_answer() -> None:
    with pytest.raises(EmbeddingFailed, match="object"):
        read_reply(_reply([1.0], _item(1, 1.0)), expected=2)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>502 Bad Gateway</html>",
        b"\xff\xfe",
        b"null",
        b"[]",
        b'{"error": {"message": "overloaded"}}',
        b'{"data": {"embedding": [1.0]}}',
        b"[" * 100_000,
    ],
    ids=lambda body: repr(body[:30]),
)
def test_what_is_no_answer_is_a_failed_call(body: bytes) -> None:
    with pytest.raises(CallFailed):
        read_reply(body, expected=1)
