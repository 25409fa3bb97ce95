"""What an embedding API may answer: right, refused, or anything at all."""

from __future__ import annotations

import base64
import json
import time
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.corpus import ANSWERS, REFUSALS
from tests.mutating import Fuzzing, blamed
from tickmind.embedding import Reply
from tickmind.embedding_api import read_reply
from tickmind.errors import EmbeddingFailed, EmbeddingUnavailable, ProviderRefused, TextRefused
from tickmind.pieces import fit
from tickmind.refusals import error_in, refusal, refused_parameter, retry_after_s

_NOW = datetime(2026, 8, 2, 9, 0, 0, tzinfo=UTC)
_DAY_S = 86_400.0
_STATUSES = st.sampled_from([400, 401, 404, 408, 413, 418, 422, 425, 429, 500, 502, 503, 529])


def _read(body: bytes, expected: int) -> Reply | None:
    """None: refused in words. Anything but our own errors is a failure of the test."""
    try:
        return read_reply(body, expected=expected)
    except (EmbeddingFailed, EmbeddingUnavailable) as exc:
        return None if str(exc) else pytest.fail("refused without a word")


def _usable(reply: Reply, expected: int) -> None:
    assert reply.vectors.dtype == np.float32
    assert reply.vectors.ndim == 2
    assert len(reply.vectors) == expected
    assert reply.tokens is None or 0 < reply.tokens < 2**31
    if reply.vectors.shape[1]:
        try:
            fitted = fit(reply.vectors, reply.vectors.shape[1])
        except EmbeddingFailed:
            return
        assert np.allclose(np.linalg.norm(fitted, axis=1), 1, atol=1e-3)


def test_bent_answers_are_read_whole_or_refused(fuzzing: Fuzzing) -> None:
    """cases 12, 14, 30 and 31: no answer gives a vector to a text that it may not be of, or one
    that cannot be compared."""
    read = 0
    for mutated in fuzzing.inputs(ANSWERS, 4000):
        for expected in (1, 3):
            with blamed(mutated):
                begun = time.thread_time()
                reply = _read(mutated.body, expected)
                assert time.thread_time() - begun < 2
                if reply is not None:
                    _usable(reply, expected)
                    read += 1
    assert read > 200


_NUMBERS = st.floats(width=32) | st.integers(-(10**3), 10**3)
_VECTORS = st.lists(_NUMBERS, min_size=2, max_size=2) | st.binary(min_size=8, max_size=8).map(
    lambda raw: base64.b64encode(raw).decode()
)


@given(st.lists(_VECTORS, min_size=1, max_size=5), st.randoms(use_true_random=False), st.data())
def test_vectors_come_back_with_their_texts_in_any_order_and_form(
    vectors: list[Any], rng: Any, data: st.DataObject
) -> None:
    """cases 30 and 32: round trip, shuffled, as numbers or in base64, one index left out."""
    items = [{"index": place, "embedding": vector} for place, vector in enumerate(vectors)]
    left_out = data.draw(st.none() | st.integers(0, len(items) - 1))
    if left_out is not None:
        del items[left_out]["index"]
    rng.shuffle(items)

    reply = read_reply(json.dumps({"data": items}).encode(), expected=len(items))

    for vector, row in zip(vectors, reply.vectors, strict=True):
        meant = (
            np.frombuffer(base64.b64decode(vector), dtype="<f4")
            if isinstance(vector, str)
            else np.asarray(vector, dtype=np.float32)
        )
        np.testing.assert_array_equal(row, meant)


_INDICES = st.none() | st.integers(-1, 5) | st.sampled_from([True, 0.0, "0", [], {}, 10**400])


@given(st.lists(_INDICES, min_size=1, max_size=4))
def test_indices_are_each_text_once_or_refused(indices: list[Any]) -> None:
    items = [{"index": index, "embedding": [float(place)]} for place, index in enumerate(indices)]
    body = json.dumps({"data": items}, default=str).encode()

    reply = _read(body, len(items))

    if reply is None:
        return
    for place, index in enumerate(indices):
        if index is not None:
            assert type(index) is int
            assert reply.vectors[index, 0] == place


@pytest.mark.parametrize(
    "embedding",
    [
        "[1e400, 1]",
        "[NaN, 1]",
        "[Infinity, -Infinity]",
        "[1" + "0" * 400 + ", 1]",
        "[" * 500 + "]" * 500,
        "[[1], [1, 2]]",
        "[true, null]",
        '["1", 2]',
        "{}",
        '"AAAA"',
        '"AACAPw=="',
        '"%%%"',
        '"界"',
        '"\\ud800"',
        '"' + "A" * 1_000_001 + '"',
        "null",
        "[]",
        '""',
    ],
)
def test_what_is_no_vector_is_refused_or_not_comparable(embedding: str) -> None:
    reply = _read(b'{"data": [{"index": 0, "embedding": %s}]}' % embedding.encode(), 1)

    if reply is not None:
        with pytest.raises(EmbeddingFailed):
            fit(reply.vectors, 2)


@pytest.mark.parametrize("tokens", ["1" + "0" * 400, "-1", "0", "1e3", "true", '"5"', "null", "[]"])
def test_tokens_that_cannot_be_are_not_counted(tokens: str) -> None:
    """They would end in a counter, and in a column of PostgreSQL, that cannot hold them."""
    body = b'{"data": [{"embedding": [1]}], "usage": {"total_tokens": %s}}' % tokens.encode()

    assert read_reply(body, expected=1).tokens is None


def _known(error: Exception) -> None:
    assert isinstance(error, EmbeddingUnavailable | TextRefused | ProviderRefused)
    assert str(error)
    if isinstance(error, EmbeddingUnavailable) and error.retry_after_s is not None:
        assert 0 <= error.retry_after_s <= _DAY_S
    if isinstance(error, TextRefused) and error.max_inputs is not None:
        assert 0 < error.max_inputs < 100


def test_bent_refusals_are_understood_or_taken_for_an_outage(fuzzing: Fuzzing) -> None:
    """case 33 and 34: none of them ends the process, or makes it wait for ever."""
    caps = 0
    for number, mutated in enumerate(fuzzing.inputs(REFUSALS, 4000)):
        status = (400, 429, 429, 413, 503, 401, 418, 500)[number % 8]
        with blamed(mutated):
            error_in(mutated.body)
            refused_parameter(mutated.body, ["dimensions"])
            error = refusal(status, {}, mutated.body, sent=100, texts=["no \ud800"], now=_NOW)
            _known(error)
            caps += isinstance(error, TextRefused) and error.max_inputs is not None
    assert caps > 20


@given(
    _STATUSES,
    st.dictionaries(
        st.sampled_from(["retry-after", "retry-after-ms", "date"]),
        st.text(max_size=40)
        | st.integers().map(str)
        | st.floats().map(str)
        | st.datetimes().map(format_datetime)
        | st.builds(
            "Sun, {} Aug {} {}:{}:00 {:+}".format,
            *(st.integers(-1, 10**25), st.integers(0, 10**25), st.integers(-1, 99)),
            *(st.integers(0, 10**20), st.integers(-(10**25), 10**25)),
        ),
    ),
)
@example(429, {"retry-after": "Sun, 02 Aug 2026 09:00:00 +99999999999999999"})
@example(429, {"retry-after": "Sun, 02 Aug 99999999999999999999 09:00:00 GMT"})
@example(
    429, {"retry-after": "Sun, 02 Aug 9999 23:59:59 -2300", "date": "1 Jan 0001 00:00:00 +2300"}
)
@example(429, {"retry-after": "٣", "retry-after-ms": "1_0"})
def test_any_headers_ask_for_a_wait_that_makes_sense(status: int, headers: dict[str, str]) -> None:
    wait_s = retry_after_s(headers, None, now=_NOW)
    assert wait_s is None or 0 <= wait_s <= _DAY_S
    _known(refusal(status, headers, b"", sent=4, now=_NOW))


@given(_STATUSES, st.text(max_size=30), st.integers(0, 10**30))
@example(400, "at most ", 10**4999)
@example(400, "maximum ", 10**4999)
@example(400, "array too long ", 10**4999)
def test_any_number_in_a_message_is_a_cap_or_none(status: int, words: str, number: int) -> None:
    digits = str(number) if number < 10**4000 else "9" * 5000
    for said in (f"{words}{digits} inputs", f"no more than {digits}", f"maximum {digits}"):
        body = json.dumps({"error": {"message": said}}).encode()
        _known(refusal(status, {}, body, sent=100, now=_NOW))


@given(st.binary())
@example(b'{"error": ' + b"[" * 990 + b"]" * 990 + b"}")
@example(b'{"error": {"details": [{"violations": [' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"]}]}}")
def test_any_bytes_are_a_refusal(body: bytes) -> None:
    for status in (200, 400, 429, 503):
        _known(refusal(status, {}, body, sent=2, texts=["a"], now=_NOW))
