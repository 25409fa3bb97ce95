"""The local embedding server: OpenAI's form, and a query never waits for a crowd."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import threading
import unicodedata
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import openai
import pytest
from numpy.typing import NDArray

from tickmind.local.embedding_server import DIMENSIONS, MODEL, load_model
from tickmind.local.environment import answers_ok, child_environment
from tickmind.local.model_queue import LIGATURE, MAX_WAITING, ModelQueue, Overloaded, cleaned
from tickmind.local.ports import LOOPBACK, free_port
from tickmind.local.processes import Child, Command

Vector = NDArray[np.float32]


@pytest.fixture(scope="session")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's own client on a server of this session."""
    directory, port = tmp_path_factory.mktemp("embedding"), free_port()
    server = Child(
        Command(
            name="embedding",
            argv=(sys.executable, "-m", "tickmind.local.embedding_server", "--port", str(port)),
            env=child_environment({}),
            cwd=directory,
            log_path=directory / "embedding.log",
            pid_path=directory / "child-embedding.pid",
        )
    )
    await server.start()
    try:
        await server.ready(lambda: answers_ok(port, "/healthz"), timeout_s=60)
        url = f"http://{LOOPBACK}:{port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="local", max_retries=0) as client:
            yield client
    finally:
        await server.stop()


async def vectors(client: openai.AsyncOpenAI, *texts: str, **options: Any) -> Vector:
    reply = await client.embeddings.create(model=MODEL, input=list(texts), **options)
    assert [item.index for item in reply.data] == list(range(len(texts)))
    return np.array([decoded(item.embedding) for item in reply.data], dtype=np.float32)


def decoded(embedding: list[float] | str) -> Vector:
    """OpenAI's client hands on what was asked for: base64 stays base64."""
    if isinstance(embedding, str):
        return np.frombuffer(base64.b64decode(embedding), dtype="<f4")
    return np.array(embedding, dtype=np.float32)


async def test_vectors_are_the_same_when_sent_as_floats_or_base64(
    client: openai.AsyncOpenAI,
) -> None:
    texts = ("passage: The market sells fresh fish", "passage: 市场卖鲜鱼", "passage: 魚市場")
    floats = await vectors(client, *texts, encoding_format="float", dimensions=DIMENSIONS)
    encoded = await vectors(client, *texts, encoding_format="base64")
    assert floats.shape == (3, DIMENSIONS)
    assert np.array_equal(floats, encoded)
    assert np.allclose(np.linalg.norm(floats, axis=1), 1.0, atol=1e-5)


async def test_prefixes_choose_what_the_model_is_told(client: openai.AsyncOpenAI) -> None:
    query, passage, bare = await vectors(client, "query: fish", "passage: fish", "fish")
    model = load_model()
    assert np.allclose(query, model.query(["fish"])[0], atol=1e-6)
    assert np.allclose(passage, model.passage(["fish"])[0], atol=1e-6)
    assert np.array_equal(passage, bare)
    assert not np.allclose(query, passage, atol=1e-2)


async def test_usage_counts_tokens_and_models_are_listed(client: openai.AsyncOpenAI) -> None:
    one = await client.embeddings.create(model=MODEL, input="passage: fish")
    two = await client.embeddings.create(model=MODEL, input=["passage: fish", "passage: fish"])
    assert two.usage.total_tokens == 2 * one.usage.total_tokens > 2
    assert [model.id async for model in client.models.list()] == [MODEL]


@pytest.mark.parametrize(
    ("request_", "status", "param", "code"),
    [
        ({"input": ""}, 400, "input", None),
        ({"input": []}, 400, "input", None),
        ({"input": ["a", "passage: "]}, 400, "input", None),
        ({"input": [[1, 2]]}, 400, "input", None),
        ({"input": ["a"] * 2049}, 400, "input", None),
        ({"input": "a", "dimensions": 256}, 400, "dimensions", None),
        ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format", None),
        ({"input": "a", "model": "other"}, 404, "model", "model_not_found"),
        ({"input": "word " * 9000}, 400, "input", "context_length_exceeded"),
        ({"input": "x" * 16_000_001}, 413, None, None),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else None,
)
async def test_bad_request_is_refused_in_openai_form(
    client: openai.AsyncOpenAI,
    request_: dict[str, Any],
    status: int,
    param: str | None,
    code: str | None,
) -> None:
    with pytest.raises(openai.APIStatusError) as raised:
        await client.embeddings.create(**{"model": MODEL, **request_})
    error = raised.value
    assert (error.status_code, error.param, error.code) == (status, param, code)
    assert error.type == "invalid_request_error"


async def test_text_longer_than_the_window_is_embedded_whole(client: openai.AsyncOpenAI) -> None:
    """A long text is closer to each of its halves than the halves are to each other."""
    fish, war = "The market sells fresh fish. " * 40, "The army besieged the old castle. " * 40
    both, first, second = await vectors(client, fish + war, fish, war)
    assert min(both @ first, both @ second) > first @ second
    assert np.isclose(np.linalg.norm(both), 1.0, atol=1e-5)


async def test_hostile_characters_do_not_end_the_server(client: openai.AsyncOpenAI) -> None:
    """NUL ends a C string, half a surrogate pair is no UTF-8, and one ligature overruns the
    tokenizer's buffer."""
    body = json.dumps({"model": MODEL, "input": ["a\0b", "\ud800", LIGATURE * 100]})
    url = f"{client.base_url}embeddings"
    request = urllib.request.Request(url, body.encode(), {"content-type": "application/json"})
    with await asyncio.to_thread(urllib.request.urlopen, request) as reply:
        assert len(json.load(reply)["data"]) == 3
    with_nul, without = await vectors(client, "fish\0market", "fish")
    assert not np.allclose(with_nul, without, atol=1e-2)


def test_no_character_overruns_the_tokenizer() -> None:
    """Each that unfolds to many when normalised, a thousand times over; an overrun would end this
    process."""
    model = load_model()
    unfolding = [
        character
        for character in map(chr, range(0x80, sys.maxunicode))
        if len(unicodedata.normalize("NFKC", character)) > 4
    ]
    assert LIGATURE in unfolding
    for character in unfolding:
        assert model.token_count(cleaned(character * 1000)) > 0


class SlowModel:
    """A model that computes one slice whenever it is allowed to, and remembers their order."""

    def __init__(self) -> None:
        self.slices: list[list[str]] = []
        self.begun = threading.Semaphore(0)
        self.allowed = threading.Semaphore(0)

    def query(self, texts: list[str]) -> Vector:
        return self._compute(texts)

    passage = query

    def token_count(self, text: str, is_query: bool = False) -> int:
        return len(text.split())

    def _compute(self, texts: list[str]) -> Vector:
        self.slices.append(texts)
        self.begun.release()
        self.allowed.acquire()
        return np.ones((len(texts), DIMENSIONS), dtype=np.float32)


@pytest.fixture
async def slow() -> AsyncIterator[tuple[SlowModel, ModelQueue]]:
    """A queue whose model is at work on a first slice."""
    model = SlowModel()
    queue = ModelQueue(model)
    worker = asyncio.create_task(queue.run())
    first = asyncio.create_task(queue.embed(["first"], [False]))
    await asyncio.to_thread(model.begun.acquire)
    yield model, queue
    for _ in range(100):
        model.allowed.release()
    await first
    worker.cancel()
    await asyncio.wait([worker])


async def waiting(queue: ModelQueue, texts: list[str], are_queries: bool) -> asyncio.Task[Any]:
    """A request, once all of it waits in the queue."""
    before = len(queue)
    task = asyncio.create_task(queue.embed(texts, [are_queries] * len(texts)))
    while len(queue) < before + len(texts):  # noqa: ASYNC110  # the tokenizer's thread decides
        await asyncio.sleep(0)
    return task


async def test_query_and_small_request_pass_a_crowd_of_passages(
    slow: tuple[SlowModel, ModelQueue],
) -> None:
    model, queue = slow
    crowd = await waiting(queue, [f"crowd {number}" for number in range(100)], False)
    small = await waiting(queue, ["small"], False)
    query = await waiting(queue, ["query"], True)
    for _ in range(4):
        model.allowed.release()
    await asyncio.gather(query, small)
    assert not crowd.done()
    assert model.slices[1] == ["query"]
    assert "small" in model.slices[2] + model.slices[3]
    crowd.cancel()


async def test_request_that_was_given_up_is_not_computed(
    slow: tuple[SlowModel, ModelQueue],
) -> None:
    model, queue = slow
    given_up = await waiting(queue, ["given up"], False)
    wanted = await waiting(queue, ["wanted"], False)
    given_up.cancel()
    await asyncio.wait([given_up])
    model.allowed.release()
    model.allowed.release()
    await wanted
    assert model.slices == [["first"], ["wanted"]]


async def test_repeated_text_is_computed_once(slow: tuple[SlowModel, ModelQueue]) -> None:
    model, queue = slow
    model.allowed.release()
    model.allowed.release()
    await queue.embed(["again", "again"], [False, False])
    await queue.embed(["again"], [False])
    assert model.slices == [["first"], ["again"]]


async def test_request_is_refused_when_too_much_is_waiting(
    slow: tuple[SlowModel, ModelQueue],
) -> None:
    _, queue = slow
    with pytest.raises(Overloaded):
        await queue.embed(
            [str(number) for number in range(MAX_WAITING + 1)], [False] * (MAX_WAITING + 1)
        )
