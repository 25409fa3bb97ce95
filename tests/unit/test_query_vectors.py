"""Vectors of observations: one flight a text, few calls, and nobody harmed by another."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.running import eventually
from tickmind.embedding import Embedder, HashProvider, Reply, Unmetered
from tickmind.errors import (
    ConfigurationError,
    EmbeddingFailed,
    EmbeddingUnavailable,
    TextRefused,
    TickmindError,
)
from tickmind.hashed import hash_embed
from tickmind.settings import EmbeddingSettings
from tickmind_retriever import breaker, query_vectors
from tickmind_retriever.query_vectors import QueryVectors


class Held(Unmetered):
    """Hash vectors that come when the test says so."""

    def __init__(self) -> None:
        self._hashes = HashProvider(8)
        self.requests: list[list[str]] = []
        self.fails: TickmindError | None = None
        self.refuses: set[str] = set()
        self.go = asyncio.Event()
        self.asked = asyncio.Event()
        self.cancelled = 0

    async def call(self, texts: Sequence[str]) -> Reply:
        self.requests.append(list(texts))
        self.asked.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fails is not None:
            raise self.fails
        if self.refuses & set(texts):
            msg = "refused"
            raise TextRefused(msg)
        return await self._hashes.call(texts)

    async def fault(self) -> str | None:
        return None

    async def close(self) -> None:
        pass


def _vectors(provider: Held, *, kept: int = 100, **options: Any) -> QueryVectors:
    settings = EmbeddingSettings(embedding_provider="hash", embedding_dimensions=8, **options)
    return QueryVectors(Embedder(settings, provider), kept=kept)


async def _ask(vectors: QueryVectors, *texts: str) -> list[Any]:
    with vectors.wanted(texts) as futures:
        await asyncio.wait(futures.values())
        return [futures[text].result() for text in texts]


async def _started(*asks: Any) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(ask) for ask in asks]
    await asyncio.sleep(0)  # each runs to where it waits
    return tasks


async def test_vectors_are_those_of_the_texts_and_asked_for_once() -> None:
    provider = Held()
    provider.go.set()
    vectors = _vectors(provider)
    found = await _ask(vectors, "a", "b", "a")
    assert [vector.tolist() for vector in found] == [
        pytest.approx(hash_embed(text, 8)) for text in "aba"
    ]
    again = await _ask(vectors, "b", "a")
    assert np.array_equal(again, [found[1], found[0]])
    assert provider.requests == [["a", "b"]]


async def test_same_text_asked_for_at_once_is_one_flight() -> None:
    provider = Held()
    vectors = _vectors(provider)
    tasks = await _started(*(_ask(vectors, "same") for _ in range(20)))
    provider.go.set()
    answers = await asyncio.gather(*tasks)
    assert provider.requests == [["same"]]
    assert all(np.array_equal(answer[0], answers[0][0]) for answer in answers)


async def test_what_comes_during_calls_shares_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(query_vectors, "_CALLS", 2)
    provider = Held()
    vectors = _vectors(provider, embedding_max_inputs=4)
    tasks = await _started(*(_ask(vectors, f"text {i}") for i in range(12)))
    await asyncio.sleep(0)
    assert provider.requests == [["text 0"], ["text 1"]]
    provider.go.set()
    await asyncio.gather(*tasks)
    assert [len(request) for request in provider.requests] == [1, 1, 4, 4, 2]


async def test_requests_hold_no_more_texts_than_the_provider_takes() -> None:
    provider = Held()
    provider.go.set()
    vectors = _vectors(provider, embedding_max_inputs=10)
    await _ask(vectors, *(f"text {i}" for i in range(25)))
    assert [len(request) for request in provider.requests] == [10, 10, 5]


@pytest.mark.parametrize("kept", [0, 1, 3])
async def test_cache_keeps_the_latest_and_no_more(kept: int) -> None:
    provider = Held()
    provider.go.set()
    vectors = _vectors(provider, kept=kept)
    for text in "abcde":
        await _ask(vectors, text)
    provider.requests.clear()
    for text in "edcba":
        await _ask(vectors, text)
    assert len(provider.requests) == 5 - kept


async def test_use_keeps_a_text_in_the_cache() -> None:
    provider = Held()
    provider.go.set()
    vectors = _vectors(provider, kept=2)
    for text in ("a", "b", "a", "c"):
        await _ask(vectors, text)
    provider.requests.clear()
    await _ask(vectors, "a")
    await _ask(vectors, "b")
    assert provider.requests == [["b"]]


async def test_long_texts_are_kept_apart_and_not_kept_themselves() -> None:
    """An observation may have 100,000 characters; 2,000 of them would be 200 MB."""
    provider = Held()
    provider.go.set()
    vectors = _vectors(provider)
    tracemalloc.start()
    for number in range(10):
        await _ask(vectors, "x" * 20_000 + f"{number}")
        provider.requests.clear()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 100_000
    await _ask(vectors, *("x" * 20_000 + f"{number}" for number in range(10)))
    assert provider.requests == []
    await _ask(vectors, "x" * 20_000 + "10")
    assert provider.requests != []


async def test_cached_text_may_leave_the_cache_while_its_asker_waits() -> None:
    provider = Held()
    provider.go.set()
    vectors = _vectors(provider, kept=1)
    (kept,) = await _ask(vectors, "kept")
    provider.go.clear()
    (waiting,) = await _started(_ask(vectors, "kept", "slow"))
    provider.go.set()
    found = await waiting
    assert np.array_equal(found[0], kept)


async def test_cached_vector_does_not_keep_its_batch_in_memory() -> None:
    provider = Held()
    provider.go.set()
    found = await _ask(_vectors(provider), *(f"text {i}" for i in range(50)))
    assert all(vector.base is None or vector.base.size == 8 for vector in found)


async def test_caller_that_gives_up_takes_nothing_from_the_others() -> None:
    provider = Held()
    vectors = _vectors(provider)
    first, second = await _started(_ask(vectors, "same"), _ask(vectors, "same", "other"))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    provider.go.set()
    assert len(await second) == 2
    assert provider.cancelled == 0


async def test_call_that_nobody_waits_for_any_more_is_kept() -> None:
    provider = Held()
    vectors = _vectors(provider)
    (task,) = await _started(_ask(vectors, "a"))
    await provider.asked.wait()
    task.cancel()
    provider.go.set()
    await asyncio.wait([task])
    await _ask(vectors, "a")
    assert provider.requests == [["a"]]


async def test_call_that_nobody_waits_for_gives_its_place_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(query_vectors, "_CALLS", 1)
    provider = Held()
    vectors = _vectors(provider)
    (given_up,) = await _started(_ask(vectors, "given up"))
    await provider.asked.wait()
    given_up.cancel()
    await asyncio.wait([given_up])
    wanted, again = await _started(_ask(vectors, "wanted"), _ask(vectors, "given up"))
    await asyncio.sleep(0)
    provider.go.set()
    await asyncio.gather(wanted, again)
    assert provider.cancelled == 1
    assert provider.requests == [["given up"], ["wanted"], ["given up"]]


async def test_call_with_one_caller_left_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_vectors, "_CALLS", 1)
    provider = Held()
    vectors = _vectors(provider)
    gone, stays = await _started(_ask(vectors, "a"), _ask(vectors, "a"))
    await provider.asked.wait()
    gone.cancel()
    (other,) = await _started(_ask(vectors, "b"))
    provider.go.set()
    await asyncio.gather(stays, other)
    assert provider.cancelled == 0


async def test_text_that_nobody_waits_for_before_its_call_is_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(query_vectors, "_CALLS", 1)
    provider = Held()
    vectors = _vectors(provider)
    first, second, third = await _started(*(_ask(vectors, text) for text in "abc"))
    second.cancel()
    await asyncio.wait([second])
    provider.go.set()
    await asyncio.gather(first, third)
    assert provider.requests == [["a"], ["c"]]


@pytest.mark.parametrize(
    "error",
    [EmbeddingUnavailable("down"), EmbeddingFailed("nonsense"), ConfigurationError("key")],
    ids=lambda error: type(error).__name__,
)
async def test_error_reaches_every_caller_and_is_not_kept(error: TickmindError) -> None:
    provider = Held()
    provider.fails = error
    vectors = _vectors(provider)
    tasks = await _started(*(_ask(vectors, "same") for _ in range(3)))
    provider.go.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert outcomes == [error, error, error]

    provider.fails = None
    assert len(await _ask(vectors, "same")) == 1


async def test_refused_text_fails_alone_among_a_hundred() -> None:
    provider = Held()
    provider.go.set()
    provider.refuses = {"bad"}
    vectors = _vectors(provider)
    texts = [f"text {i}" for i in range(99)]
    texts.insert(37, "bad")
    with vectors.wanted(texts) as futures:
        await asyncio.wait(futures.values())
        failed = [text for text, future in futures.items() if future.exception()]
    assert failed == ["bad"]
    assert len(provider.requests) <= 16
    assert await vectors.fault() is None


async def test_provider_that_refuses_all_costs_a_bounded_number_of_calls() -> None:
    provider = Held()
    provider.go.set()
    provider.fails = TextRefused("no")
    vectors = _vectors(provider)
    with vectors.wanted(f"text {i}" for i in range(100)) as futures:
        await asyncio.wait(futures.values())
        assert all(isinstance(future.exception(), TextRefused) for future in futures.values())
    assert len(provider.requests) <= 24


async def test_fault_is_told_until_a_call_passes() -> None:
    provider = Held()
    provider.go.set()
    vectors = _vectors(provider)
    assert await vectors.fault() is None
    provider.fails = ConfigurationError("check the key")
    with pytest.raises(ConfigurationError):
        await _ask(vectors, "a")
    assert await vectors.fault() == "check the key"
    provider.fails = None
    await _ask(vectors, "a")
    assert await vectors.fault() is None


async def test_texts_of_a_moment_share_one_call() -> None:
    provider = Held()
    provider.go.set()
    settings = EmbeddingSettings(embedding_provider="hash", embedding_dimensions=8)
    vectors = QueryVectors(Embedder(settings, provider), kept=9, gather_s=0.05)
    first = await _started(_ask(vectors, "a"), _ask(vectors, "b"), _ask(vectors, "a", "c"))
    assert provider.requests == []
    await asyncio.gather(*first)
    assert provider.requests == [["a", "b", "c"]]
    await _ask(vectors, "b")  # kept: no call, and nothing to wait for
    await _ask(vectors, "d")
    assert provider.requests == [["a", "b", "c"], ["d"]]


async def test_provider_that_fails_is_asked_no_more_until_a_call_of_its_own_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(breaker, "_PROBE_FIRST_S", 0.02)
    provider = Held()
    provider.go.set()
    vectors = _vectors(provider)
    await _ask(vectors, "kept")
    provider.fails = EmbeddingUnavailable("no route", kind="network")
    for text in "abc":
        with pytest.raises(EmbeddingUnavailable, match="no route"):
            await _ask(vectors, text)
    assert vectors.refusing
    with pytest.raises(EmbeddingUnavailable, match="tried again by itself"):
        await _ask(vectors, "d")
    assert ["d"] not in provider.requests
    assert "no route" in (await vectors.fault() or "")
    assert len(await _ask(vectors, "kept")) == 1

    provider.fails = None

    async def refusing() -> bool:
        return vectors.refusing

    await eventually(refusing, lambda found: not found, what="the breaker")
    assert await vectors.fault() is None
    assert len(await _ask(vectors, "d")) == 1
    await vectors.close()


@pytest.mark.parametrize(
    "error",
    [
        EmbeddingUnavailable("slow down", kind="rate_limit"),
        EmbeddingUnavailable("no credit", kind="quota"),
        ConfigurationError("key"),
        TextRefused("no"),
        EmbeddingFailed("nonsense"),
    ],
    ids=lambda error: str(error),
)
async def test_what_is_told_at_once_is_no_outage(error: TickmindError) -> None:
    provider = Held()
    provider.go.set()
    provider.fails = error
    vectors = _vectors(provider)
    for number in range(5):
        with pytest.raises(type(error)):
            await _ask(vectors, f"text {number}")
    assert not vectors.refusing


@pytest.mark.parametrize(("felt_s", "opens"), [(0.0, True), (60.0, False)])
async def test_calls_that_all_gave_up_on_count_once_they_took_long_enough(
    monkeypatch: pytest.MonkeyPatch, felt_s: float, opens: bool
) -> None:
    monkeypatch.setattr(query_vectors, "_UNANSWERED_S", felt_s)
    provider = Held()
    vectors = _vectors(provider)
    for number in range(3):
        assert not vectors.refusing
        (task,) = await _started(_ask(vectors, f"text {number}"))
        await provider.asked.wait()
        task.cancel()
        await asyncio.wait([task])
    assert vectors.refusing is opens
    provider.go.set()  # what was given up on is answered after all

    async def refusing() -> bool:
        return vectors.refusing

    await eventually(refusing, lambda found: not found, what="the breaker")
    await vectors.close()


async def test_closing_tells_who_waits() -> None:
    provider = Held()
    vectors = _vectors(provider)
    (task,) = await _started(_ask(vectors, "a"))
    await provider.asked.wait()
    await vectors.close()
    with pytest.raises(EmbeddingUnavailable):
        await task
    assert provider.cancelled == 1
