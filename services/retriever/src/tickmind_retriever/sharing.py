"""What many requests ask of the database at the same time, asked once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from opentelemetry.context import Context, get_current

from tickmind.tracing import span
from tickmind_retriever.expecting import Expected

__all__ = ["Shared", "TooLate"]

K = TypeVar("K", bound=Hashable)
Q = TypeVar("Q")
A = TypeVar("A")


class TooLate(Exception):
    """Questions that waited so long that an answer would come too late: they were not asked."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ask(Generic[Q, A]):
    """One asker's questions. `answers` is cancelled when the asker gives up, by `until` if it
    says so."""

    questions: Sequence[Q]
    answers: asyncio.Future[Sequence[A]]
    until: float | None
    trace: Context = field(default_factory=get_current)


class Shared(Generic[K, Q, A]):
    """Questions of one key that are asked while every place for calls is taken share the next
    call: where much is asked, what a statement costs by itself is paid once for many.

    `call(key, questions)` gives the answers in the order of the questions, at most `most` of them
    unless one asker has more. `parallel`: places for calls. `spread`: what waits is spread over
    the places, for calls that take as long as they have questions. `patience_s`: a call that
    takes longer loses its place, so that nobody waits behind what does not answer.

    Where more is asked than can be answered, those who have waited longest have the least time
    left: a call for them is work thrown away. Who waited, and has less time left than calls take
    just now, is told so at once, and the next ones come in time.
    """

    def __init__(
        self,
        call: Callable[[K, Sequence[Q]], Coroutine[Any, Any, Sequence[A]]],
        *,
        parallel: int,
        most: int,
        spread: bool = False,
        patience_s: float | None = None,
    ) -> None:
        self._call = call
        self._name = getattr(call, "__name__", "call").strip("_")  # of its spans
        self._parallel = parallel
        self._most = most
        self._spread = spread
        self._patience_s = patience_s
        self._waiting: dict[K, deque[_Ask[Q, A]]] = {}
        self._calls: dict[asyncio.Task[Sequence[A]], list[_Ask[Q, A]]] = {}
        self._placed: set[asyncio.Task[Sequence[A]]] = set()
        self._given_up: set[asyncio.Task[Sequence[A]]] = set()
        self._expected = Expected()

    async def ask(
        self, key: K, questions: Sequence[Q], *, until: float | None = None
    ) -> Sequence[A]:
        """The answers to these questions. Raises what the call raises, and TooLate where `until`,
        by the loop's clock, would not be kept.

        Cancelled, it takes nothing from those who share the call. With its last asker a call is
        cancelled too, and its place is free at once: a server that does not answer may not take
        the cancellation either.
        """
        answers = asyncio.get_running_loop().create_future()
        asked: _Ask[Q, A] = _Ask(questions=questions, answers=answers, until=until)
        self._waiting.setdefault(key, deque()).append(asked)
        self._depart(at_once=True)
        try:
            return await asked.answers
        except asyncio.CancelledError:
            self._end_unwanted()
            raise

    @property
    def under_way(self) -> set[asyncio.Task[Sequence[A]]]:
        """Calls that have not ended, those too that nobody waits for."""
        return self._given_up | self._calls.keys()

    def _depart(self, *, at_once: bool = False) -> None:
        """Start calls while there are places; `at_once`: nobody has waited for one."""
        in_time = asyncio.get_running_loop().time() + self._expected.seconds
        if at_once:  # begun whatever is expected: there is something to learn from it
            in_time = float("-inf")
        while self._waiting and len(self._placed) < self._parallel:
            key, waiting = next(iter(self._waiting.items()))
            del self._waiting[key]
            asks = self._boarded(waiting, in_time)
            if waiting:
                self._waiting[key] = waiting  # behind the other keys
            if asks:
                self._start(key, asks)

    def _boarded(self, waiting: deque[_Ask[Q, A]], in_time: float) -> list[_Ask[Q, A]]:
        room = self._most
        if self._spread:
            room = min(room, -(-len(waiting) // self._parallel))
        asks: list[_Ask[Q, A]] = []
        while waiting and (not asks or len(waiting[0].questions) <= room):
            asked = waiting.popleft()
            if asked.answers.cancelled():
                continue
            if asked.until is not None and asked.until < in_time:
                asked.answers.set_exception(TooLate())
                continue
            asks.append(asked)
            room -= len(asked.questions)
        return asks

    def _start(self, key: K, asks: list[_Ask[Q, A]]) -> None:
        questions = [question for asked in asks for question in asked.questions]
        task = asyncio.create_task(self._called(key, questions, [asked.trace for asked in asks]))
        self._calls[task] = asks
        self._placed.add(task)
        task.add_done_callback(self._ended)
        if self._patience_s is not None:
            asyncio.get_running_loop().call_later(self._patience_s, self._leave, task)

    async def _called(
        self, key: K, questions: Sequence[Q], traces: Sequence[Context]
    ) -> Sequence[A]:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with span(self._name, joins=traces, attributes={"tickmind.questions": len(questions)}):
            answers = await self._call(key, questions)
        self._expected.took(loop.time() - begun)
        return answers

    def _leave(self, task: asyncio.Task[Sequence[A]]) -> None:
        """A call's place is free, whatever becomes of the call."""
        if task in self._placed:
            self._placed.remove(task)
            self._depart()

    def _end_unwanted(self) -> None:
        """Cancel the calls that nobody waits for any more."""
        for task, asks in list(self._calls.items()):
            if all(asked.answers.cancelled() for asked in asks):
                del self._calls[task]
                self._given_up.add(task)
                task.cancel()
                self._leave(task)

    def _ended(self, task: asyncio.Task[Sequence[A]]) -> None:
        self._given_up.discard(task)
        asks = self._calls.pop(task, [])
        exc = None if task.cancelled() else task.exception()
        first = 0
        for asked in asks:
            last = first + len(asked.questions)
            if asked.answers.done():
                pass
            elif task.cancelled():
                asked.answers.cancel()
            elif exc is not None:
                asked.answers.set_exception(exc)
            else:
                asked.answers.set_result(task.result()[first:last])
            first = last
        self._leave(task)
