"""What the retriever does with a request: embed, rank, word, before the deadline.

Knows nothing of the broker. Never raises for what goes wrong: each agent's answer is a fragment,
or an empty one with its reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram
from sqlalchemy.exc import SQLAlchemyError

from tickmind import fragment
from tickmind.clean import is_blank
from tickmind.database import Database
from tickmind.decoding import DecodedRecall, decode_recall
from tickmind.errors import ConfigurationError, InvalidMessage, TickmindError
from tickmind.memory import Scored, Watermarks, Weights
from tickmind.messages import (
    AgentReply,
    RecalledMemory,
    RecallEnvelope,
    RecallQuery,
    RecallReply,
    WatermarksOut,
)
from tickmind.store.recall import Filters, Question, Whom, rank, whom
from tickmind.store.spaces import Generation, Space, active_generation
from tickmind.telemetry import log
from tickmind_retriever.query_vectors import QueryVectors

__all__ = ["Handler", "Metrics"]

A = TypeVar("A")
B = TypeVar("B")

_logger = logging.getLogger("tickmind.retriever")

#: How long the active generation is taken as known: a switch is noticed within this.
_GENERATION_S = 2.0
#: Agents ranked by one statement: enough to spare round trips, few enough to answer in parts.
_AGENTS_A_STATEMENT = 8


class Metrics:
    """What the retriever counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.recalls = Counter(
            "tickmind_recalls",
            "Answers by status and reason",
            ["status", "reason"],
            registry=registry,
        )
        self.seconds = Histogram(
            "tickmind_recall_seconds",
            "From the request's arrival here to its reply",
            buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2),
            registry=registry,
        )


class _Answers:
    """Replies of one request, filled in as they become known."""

    def __init__(self, request: DecodedRecall) -> None:
        self.request = request
        self.replies: list[AgentReply | None] = [
            AgentReply(
                agent=_agent_of(request.options.queries[place]),
                status="empty",
                reason=query.reason,
                detail=str(query),
            )
            if isinstance(query, InvalidMessage)
            else None
            for place, query in enumerate(request.queries)
        ]
        self.watermarks = Watermarks()

    def open(self) -> list[tuple[int, RecallQuery]]:
        """Queries without an answer yet, with their places."""
        return [
            (place, query)
            for place, query in enumerate(self.request.queries)
            if self.replies[place] is None and isinstance(query, RecallQuery)
        ]

    def fill(
        self, reason: str | None, detail: str | None = None, *, places: Sequence[int] | None = None
    ) -> None:
        """The same empty answer for all that have none, or those among `places`."""
        for place, query in self.open():
            if places is not None and place not in places:
                continue
            self.replies[place] = AgentReply(
                agent=query.agent, status="empty", reason=reason, detail=detail
            )

    def remember(self, place: int, memories: Sequence[Scored]) -> None:
        options = self.request.options
        query = self.request.queries[place]
        assert isinstance(query, RecallQuery)
        self.replies[place] = AgentReply(
            agent=query.agent,
            status="ok" if memories else "empty",
            fragment=fragment.render(
                memories, language=options.language, max_chars=options.max_chars
            ),
            memories=[
                RecalledMemory(
                    id=memory.id,
                    tick=memory.tick,
                    kind=memory.kind,
                    content=memory.content,
                    importance=memory.importance,
                    score=memory.score,
                    relevance=memory.relevance,
                    recency=memory.recency,
                )
                for memory in memories
            ],
        )

    def reply(self) -> RecallReply:
        return RecallReply(
            world=self.request.options.world,
            tick=self.request.options.tick,
            replies=[reply for reply in self.replies if reply is not None],
            watermarks=WatermarksOut(
                recorded=self.watermarks.recorded, embedded=self.watermarks.embedded
            ),
        )


def _agent_of(raw: object) -> str:
    """Whom a bad query meant, as far as it says."""
    agent = raw.get("agent") if isinstance(raw, dict) else None
    return str(agent)[:200] if isinstance(agent, str | int) else ""


class Handler:
    """Answers recall requests."""

    def __init__(
        self,
        database: Database,
        vectors: QueryVectors,
        metrics: Metrics,
        *,
        space: Space,
        half_life_ticks: float,
        reserve_s: float,
        parallel: int,
    ) -> None:
        self._database = database
        self._vectors = vectors
        self._metrics = metrics
        self._space = space
        self._half_life_ticks = half_life_ticks
        self._reserve_s = reserve_s
        self._statements = asyncio.Semaphore(parallel)
        self._generation: Generation | None = None
        self._generation_until = 0.0

    async def recall(self, body: bytes, *, age_s: float = 0.0) -> RecallReply:
        """Answer one request; `age_s`: how long ago it was sent. Never raises for input or faults,
        and returns before the request's deadline."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            request = decode_recall(body)
        except InvalidMessage as exc:
            self._metrics.recalls.labels("empty", exc.reason).inc()
            return RecallReply(reason=exc.reason, detail=str(exc))
        answers = _Answers(request)
        budget_s = request.options.deadline_ms / 1000 - age_s - self._reserve_s
        try:
            async with asyncio.timeout_at(begun + budget_s):
                await self._answer(answers)
        except TimeoutError:
            answers.fill("deadline")
        except TickmindError as exc:
            answers.fill(_reason(exc), str(exc))
        except SQLAlchemyError as exc:
            log(_logger, logging.ERROR, "recall_failed", error=type(exc).__name__)
            answers.fill("database", _detail(exc))
        reply = answers.reply()
        self._metrics.seconds.observe(loop.time() - begun)
        for answer in reply.replies:
            self._metrics.recalls.labels(answer.status, answer.reason or "").inc()
        return reply

    async def _answer(self, answers: _Answers) -> None:
        options = answers.request.options
        generation = await self.generation()
        if generation is None:
            answers.fill("embedding", "nothing is embedded yet: no embedder has run")
            return
        for place, query in answers.open():
            if is_blank(query.observation):
                answers.replies[place] = AgentReply(
                    agent=query.agent,
                    status="empty",
                    reason="invalid",
                    detail="the observation is blank: say what the agent sees",
                )
        queries = answers.open()
        if not queries:
            return
        # The ids are looked up while the provider thinks.
        found, vectors = await _both(
            self._whom(options.world, [query.agent for _, query in queries], generation),
            self._vectors.of([query.observation for _, query in queries]),
        )
        answers.watermarks = found.watermarks
        questions = []
        for (place, query), vector in zip(queries, vectors, strict=True):
            agent_id = found.agents.get(query.agent)
            if agent_id is None:  # nobody has heard of this agent: it remembers nothing
                answers.remember(place, [])
            else:
                questions.append((place, Question(agent_id=agent_id, vector=vector)))
        async with asyncio.TaskGroup() as tasks:
            for first in range(0, len(questions), _AGENTS_A_STATEMENT):
                chunk = questions[first : first + _AGENTS_A_STATEMENT]
                tasks.create_task(self._rank(answers, chunk, generation))

    async def _whom(self, world: str, agents: Sequence[str], generation: Generation) -> Whom:
        async with self._database.reading() as session:
            return await whom(session, world, agents, space_id=generation.space_id)

    async def _rank(
        self,
        answers: _Answers,
        questions: Sequence[tuple[int, Question]],
        generation: Generation,
    ) -> None:
        options = answers.request.options
        places = [place for place, _ in questions]
        try:
            ranked = await self._ranked(options, [asked for _, asked in questions], generation)
        except (TickmindError, SQLAlchemyError) as exc:
            log(_logger, logging.ERROR, "rank_failed", error=type(exc).__name__)
            answers.fill("database", _detail(exc), places=places)
            return
        for place, memories in zip(places, ranked, strict=True):
            answers.remember(place, memories)

    async def _ranked(
        self, options: RecallEnvelope, questions: Sequence[Question], generation: Generation
    ) -> list[list[Scored]]:
        async with self._statements, self._database.reading() as session:
            return await rank(
                session,
                questions,
                generation=generation,
                tick=options.tick,
                k=options.k,
                filters=Filters(
                    as_of_tick=options.as_of_tick,
                    kinds=tuple(options.kinds) if options.kinds is not None else None,
                    min_importance=options.min_importance,
                ),
                weights=None
                if options.ranking == "relevance"
                else Weights(**options.weights.model_dump()),
                half_life_ticks=self._half_life_ticks,
            )

    async def generation(self) -> Generation | None:
        """The active generation, at most `_GENERATION_S` old; None: there is none yet.

        Raises ConfigurationError where it is of another space than our query vectors.
        """
        now = asyncio.get_running_loop().time()
        if self._generation is None or now >= self._generation_until:
            async with self._database.reading() as session:
                self._generation = await active_generation(session)
            self._generation_until = now + _GENERATION_S
        found = self._generation
        if found is not None and found.space != self._space:
            msg = (
                f"this database is embedded with {found.space.model} in"
                f" {found.space.dimensions} dimensions and its prefixes, these settings name"
                f" {self._space.model} in {self._space.dimensions}: set TICKMIND_EMBEDDING_* to"
                " the same"
            )
            raise ConfigurationError(msg)
        return found


async def _both(first: Awaitable[A], second: Awaitable[B]) -> tuple[A, B]:
    """Both results; where one fails, the other is cancelled and the failure is raised as it is."""
    tasks = (asyncio.ensure_future(first), asyncio.ensure_future(second))
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _reason(exc: TickmindError) -> str:
    """The reply's word for what failed."""
    return "database" if exc.reason == "database" else "embedding"


def _detail(exc: TickmindError | SQLAlchemyError) -> str:
    """What happened, without the statement and its parameters."""
    if isinstance(exc, TickmindError):
        return str(exc)
    return f"the database refused the statement ({type(exc).__name__})"
