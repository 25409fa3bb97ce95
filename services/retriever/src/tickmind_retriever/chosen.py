"""Which of the ranked memories come back: core ones first, and none that says the same twice."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Sequence
from typing import Protocol, TypeVar

from tickmind.distinct import merged
from tickmind.memory import Scored
from tickmind_retriever.ranking import Terms

__all__ = ["Ask", "Asked", "chosen"]

#: So many times what is wanted is ranked at first: rows beyond the first cost next to nothing, a
#: second statement ranks all over again.
_SPARE = 4
#: From one statement to the next, where too many said the same.
_GROWTH = 8
#: Most ranked for one question: of an agent that has said one thing more often than this, and
#: nothing else that ranks as high, fewer come back than were asked for.
_MOST = 4096


class Asked(Protocol):
    """A question about one agent."""

    @property
    def agent_id(self) -> int: ...


A = TypeVar("A", bound=Asked)
A_contra = TypeVar("A_contra", bound=Asked, contravariant=True)


class Ask(Protocol[A_contra]):
    """The best memories for each question in these terms, best first, whatever they say."""

    def __call__(
        self, terms: Terms, questions: Sequence[A_contra], /
    ) -> Awaitable[Sequence[list[Scored]]]: ...


async def chosen(
    ask: Ask[A], terms: Terms, questions: Sequence[A], *, with_core: Collection[int]
) -> list[list[Scored]]:
    """The memories that come back for each question, as `tickmind.distinct.merged` has them.

    Asks for more where too many say the same. `with_core`: ids of agents with core memories.
    """
    k, max_core = terms.k, terms.max_core
    core: list[Sequence[Scored]] = [()] * len(questions)
    places = [n for n, asked in enumerate(questions) if max_core and asked.agent_id in with_core]
    spare = 1 if terms.distinct == "off" else _SPARE
    if places:
        only_core = terms.asking(k=max_core * spare, core_only=True)
        found = await ask(only_core, [questions[place] for place in places])
        for place, memories in zip(places, found, strict=True):
            core[place] = memories
    best: list[list[Scored]] = [[] for _ in questions]
    left = list(range(len(questions)))
    asking = k * spare + (max_core if places else 0)
    while True:
        of_all = terms.asking(k=asking, core_only=False)
        ranked = await ask(of_all, [questions[place] for place in left])
        short = []
        for place, memories in zip(left, ranked, strict=True):
            best[place] = merged(
                core[place], memories, rule=terms.distinct, most=k, most_core=max_core
            )
            if len(best[place]) < k and len(memories) == asking:
                short.append(place)
        if not short or asking >= _MOST:
            return best
        left, asking = short, min(_MOST, asking * _GROWTH)
