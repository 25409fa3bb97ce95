"""The answer to one request while it comes together, agent by agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

from tickmind import fragment
from tickmind.decoding import DecodedRecall
from tickmind.errors import InvalidMessage
from tickmind.memory import Scored, Watermarks
from tickmind.messages import (
    AgentReply,
    Explained,
    RecalledMemory,
    RecallQuery,
    RecallReply,
    WatermarksOut,
)

__all__ = ["FILTERED", "MAX_REPLY_BYTES", "NO_AGENT", "NO_WORLD", "Answers", "encoded"]

#: A longer reply would end the channel it is published on: RabbitMQ 4 takes 16 MiB.
MAX_REPLY_BYTES = 8 * 1024 * 1024

#: Fields of a request that keep memories back.
_LIMITS = (
    "as_of_tick",
    "from_tick",
    "to_tick",
    "exclude_last_ticks",
    "kinds",
    "min_importance",
)
#: Why nothing is remembered, where nothing went wrong.
NO_WORLD = "nothing is recorded of a world of this name"
NO_AGENT = "this world has no agent of this name that remembers anything"
FILTERED = "none of this agent's memories is let through by what the request asks for"


class Answers:
    """Replies of one request, filled in as they become known; each once."""

    def __init__(self, request: DecodedRecall) -> None:
        self.request = request
        self.watermarks = Watermarks()
        #: Places whose observation has no vector yet.
        self.unembedded: set[int] = set()
        #: Milliseconds of steps that all queries share, and of each query's own embedding.
        self.ms: dict[str, float] = {}
        self.embed_ms: dict[int, float] = {}
        #: When the first of the agents was answered, by the loop's clock; None: none was yet.
        self.first_at: float | None = None
        #: Characters of memories and of fragments, which are at least as many bytes: what could
        #: never be sent need not be kept until then.
        self._chars = {"memories": 0, "fragment": 0}
        self._left_out: set[str] = set()
        self._replies: dict[int, AgentReply] = {
            place: AgentReply(
                agent=_agent_of(request.options.queries[place]),
                status="empty",
                reason=query.reason,
                detail=str(query),
            )
            for place, query in enumerate(request.queries)
            if isinstance(query, InvalidMessage)
        }

    def open(self) -> list[tuple[int, RecallQuery]]:
        """Queries without an answer yet, with their places."""
        return [
            (place, query)
            for place, query in enumerate(self.request.queries)
            if place not in self._replies and isinstance(query, RecallQuery)
        ]

    def fill(
        self,
        reason: str | None,
        detail: str | None = None,
        *,
        places: Collection[int] | None = None,
    ) -> None:
        """The same empty answer for all that have none, or those among `places`."""
        for place, query in self.open():
            if places is None or place in places:
                self._replies[place] = AgentReply(
                    agent=query.agent, status="empty", reason=reason, detail=detail
                )

    def remember(
        self,
        place: int,
        memories: Sequence[Scored],
        explain: Explained | None = None,
        *,
        reason: str | None = None,
        detail: str | None = None,
    ) -> None:
        """What the agent asked for at `place` remembers; nothing, maybe, and then `detail` says
        why. `reason`: why only this much could be known."""
        options = self.request.options
        query = self.request.queries[place]
        assert isinstance(query, RecallQuery)
        if self.first_at is None:
            self.first_at = asyncio.get_running_loop().time()
        if not memories and detail is None:
            limited = any(getattr(options, name) is not None for name in _LIMITS)
            detail = FILTERED if limited else None
        told = fragment.render(memories, language=options.language, max_chars=options.max_chars)
        self._chars["fragment"] += len(told)
        self._chars["memories"] += sum(len(memory.content) for memory in memories)
        self._replies[place] = AgentReply(
            agent=query.agent,
            status=("ok" if reason is None else "degraded") if memories else "empty",
            reason=reason,
            detail=detail,
            fragment=told,
            memories=[
                RecalledMemory(
                    id=memory.id,
                    tick=memory.tick,
                    kind=memory.kind,
                    content=memory.content,
                    importance=memory.importance,
                    core=memory.is_core,
                    score=memory.score,
                    relevance=memory.relevance,
                    recency=memory.recency,
                )
                for memory in memories
            ],
            explain=explain,
        )
        for part, shorter in _SHORTER.items():
            if self._chars[part] > MAX_REPLY_BYTES:
                places = [place] if part in self._left_out else list(self._replies)
                self._left_out.add(part)
                for one in places:
                    if getattr(self._replies[one], part):
                        self._replies[one] = shorter(self._replies[one])

    def nobody(self, place: int) -> None:
        """Nobody has heard of the agent asked for at `place`: it remembers nothing."""
        recorded = self.watermarks.recorded is not None
        self.remember(place, [], detail=NO_AGENT if recorded else NO_WORLD)

    def reply(self) -> RecallReply:
        """All of them in the order of the request; every query must have its answer."""
        options = self.request.options
        return RecallReply(
            world=options.world,
            tick=options.tick,
            replies=[self._replies[place] for place in range(len(self.request.queries))],
            watermarks=WatermarksOut(
                recorded=self.watermarks.recorded, embedded=self.watermarks.embedded
            ),
        )


def encoded(reply: RecallReply) -> bytes:
    """As it is published, at most MAX_REPLY_BYTES: without the memories, then without the
    fragments, where it would be longer; each answer says so."""
    body = reply.model_dump_json().encode()
    for part, shorter in _SHORTER.items():
        if len(body) > MAX_REPLY_BYTES:
            replies = [shorter(one) if getattr(one, part) else one for one in reply.replies]
            reply = reply.model_copy(update={"replies": replies})
            body = reply.model_dump_json().encode()
    return body


def _without_memories(answer: AgentReply) -> AgentReply:
    detail = f"the reply would have more than {MAX_REPLY_BYTES} bytes: its memories are left out"
    return answer.model_copy(update={"memories": [], "detail": detail})


def _too_large(answer: AgentReply) -> AgentReply:
    empty = {"status": "empty", "reason": "too_large", "fragment": "", "memories": []}
    empty["detail"] = "ask for fewer agents in one request, for fewer memories or shorter fragments"
    return answer.model_copy(update=empty)


#: What makes an answer shorter, by the part that it loses.
_SHORTER: Mapping[str, Callable[[AgentReply], AgentReply]] = MappingProxyType(
    {"memories": _without_memories, "fragment": _too_large}
)


def _agent_of(raw: object) -> str:
    """Whom a bad query meant, as far as it says."""
    agent = raw.get("agent") if isinstance(raw, dict) else None
    return str(agent)[:200] if isinstance(agent, str | int) else ""
