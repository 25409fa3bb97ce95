"""What was said before what: the utterance a memory answers, the text its vector is of. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from tickmind.grading import MAX_CONTEXT_CHARS
from tickmind.identity import in_context
from tickmind.memory import Memory

__all__ = ["MAX_CONTEXT_TICKS", "Conversations", "Said", "Utterance", "text_to_embed"]

#: An answer comes within so many ticks; what was said before belongs to another conversation.
MAX_CONTEXT_TICKS = 20
#: Of what an agent said and heard, so much is kept for lines of a trace that come late.
_KEPT_TICKS = 200


@dataclass(frozen=True, slots=True, order=True)
class Utterance:
    """Ordered as conversations go; within a tick by something that is the same everywhere.

    `speaker`: who said it, by whatever speakers are told apart by; None: who remembers it.
    """

    tick: int
    event_key: bytes
    speaker: Hashable = field(compare=False)
    content: str = field(compare=False)

    @classmethod
    def of(cls, memory: Memory, speaker: Hashable) -> Utterance:
        content = memory.content[-MAX_CONTEXT_CHARS:]
        return cls(memory.tick, memory.event_key, speaker, content)


class Said:
    """What agents said and heard, each kind for itself. `agent`: whatever tells agents apart."""

    def __init__(self) -> None:
        self._said: dict[tuple[Hashable, str], list[Utterance]] = defaultdict(list)

    def add(self, agent: Hashable, kind: str, utterance: Utterance) -> None:
        insort(self._said[agent, kind], utterance)

    def before(self, agent: Hashable, kind: str, tick: int) -> Utterance | None:
        """The latest one of an earlier tick, if it may be answered in this one."""
        own = self._said.get((agent, kind), [])
        place = bisect_left(own, (tick,), key=lambda utterance: (utterance.tick,))
        if place == 0 or own[place - 1].tick < tick - MAX_CONTEXT_TICKS:
            return None
        return own[place - 1]

    def forget(self, agent: Hashable, kind: str, *, until: int) -> None:
        """Let go of what was said before this tick."""
        own = self._said[agent, kind]
        if own and own[0].tick < until:
            del own[: bisect_left(own, (until,), key=lambda utterance: (utterance.tick,))]


class Conversations:
    """What memories answer that are recorded one message after the other: as `store.context`
    finds it."""

    def __init__(self) -> None:
        self._said = Said()

    def answered(self, memories: Sequence[Memory]) -> list[Memory]:
        """One message's new memories with what they answer; kept for those that follow."""
        found = [self._with_context(memory) for memory in memories]
        for memory in memories:
            agent = (memory.world, memory.agent)
            self._said.add(agent, memory.kind, Utterance.of(memory, memory.speaker))
            self._said.forget(agent, memory.kind, until=memory.tick - _KEPT_TICKS)
        return found

    def _with_context(self, memory: Memory) -> Memory:
        if memory.context_use == "none" or memory.context is not None:
            return memory
        before = self._said.before((memory.world, memory.agent), memory.kind, memory.tick)
        # Where who spoke is not there now, that was another conversation.
        if before is None or not (before.speaker is None or before.speaker in memory.present):
            return memory
        return memory._replace(context=before.content)


def text_to_embed(memory: Memory, context: str | None) -> str:
    """The text that the vector is of, of a memory that answers `context`."""
    if context is None or memory.context_use != "embedded":
        return memory.content
    return in_context(memory.content, context)
