"""What the retriever does with a request: embed, rank, word, before the deadline.

Knows nothing of the broker. Never raises for what goes wrong: each agent's answer is a fragment,
or an empty one with its reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from sqlalchemy.exc import SQLAlchemyError

from tickmind.clean import is_blank
from tickmind.database import Database
from tickmind.decoding import decode_recall
from tickmind.errors import InvalidMessage, TickmindError
from tickmind.memory import Scored, Weights
from tickmind.messages import RecallEnvelope, RecallQuery, RecallReply
from tickmind.metering import begin_at_zero
from tickmind.store.recall import Filters, Question, Whom, rank, whom
from tickmind.store.spaces import Generation, active_generation
from tickmind.telemetry import log
from tickmind.tracing import exemplar
from tickmind_retriever.answers import Answers
from tickmind_retriever.query_vectors import Vector
from tickmind_retriever.sharing import Shared
from tickmind_retriever.spaces import Spaces

__all__ = ["Handler", "Metrics"]

_logger = logging.getLogger("tickmind.retriever")

#: How long the active generation is taken as known: a switch is noticed within this.
_GENERATION_S = 2.0
#: Agents ranked by one statement: enough to spare round trips, few enough to answer in parts.
_AGENTS_A_STATEMENT = 8
#: Requests whose agents one statement looks up: twice what may be under way by default.
_REQUESTS_A_LOOKUP = 64
#: While a lookup is under way, what comes shares the next. One takes 0.4 ms where PostgreSQL is
#: idle and 10 where it is overloaded; after this long it keeps nobody waiting.
_LOOKUP_S = 0.02
#: How long work that a deadline cut off may take to end: PostgreSQL is told to cancel it.
_CUT_OFF_S = 2.0


_EMPTY = ("", "deadline", "embedding", "database", "invalid", "internal")


class Metrics:
    """What the retriever counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.recalls = Counter(
            "tickmind_recalls",
            "Answers by status and reason",
            ["status", "reason"],
            registry=registry,
        )
        begin_at_zero(self.recalls, (("ok", ""), *(("empty", reason) for reason in _EMPTY)))
        self.seconds = Histogram(
            "tickmind_recall_seconds",
            "From the request's arrival here to its reply",
            buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2),
            registry=registry,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Manner:
    """How questions are ranked: those that want the same may share a statement."""

    generation: Generation
    tick: int
    k: int
    filters: Filters
    weights: Weights | None


class Handler:
    """Answers recall requests."""

    def __init__(
        self,
        database: Database,
        spaces: Spaces,
        metrics: Metrics,
        *,
        half_life_ticks: float,
        reserve_s: float,
        parallel: int,
    ) -> None:
        self._database = database
        self._spaces = spaces
        self._metrics = metrics
        self._half_life_ticks = half_life_ticks
        self._reserve_s = reserve_s
        self._lookups = Shared(
            self._look_up, parallel=1, most=_REQUESTS_A_LOOKUP, patience_s=_LOOKUP_S
        )
        self._rankings = Shared(
            self._rank_together, parallel=parallel, most=_AGENTS_A_STATEMENT, spread=True
        )
        self._generation: Generation | None = None
        self._generation_until = 0.0
        self._cut_off: set[asyncio.Task[None]] = set()

    async def recall(self, body: bytes, *, age_s: float = 0.0) -> RecallReply | None:
        """Answer one request; `age_s`: how long ago it was sent. Never raises for input or faults,
        and returns before the request's deadline. None: that is over, nobody waits for an answer.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            request = decode_recall(body)
        except InvalidMessage as exc:
            self._metrics.recalls.labels("empty", exc.reason).inc()
            return RecallReply(reason=exc.reason, detail=str(exc))
        left_s = request.options.deadline_ms / 1000 - age_s
        if age_s > 0 and left_s <= 0:
            return None
        answers = Answers(request)
        await self._within(begun + left_s - self._reserve_s, answers)
        reply = answers.reply()
        self._metrics.seconds.observe(loop.time() - begun, exemplar())
        for answer in reply.replies:
            self._metrics.recalls.labels(answer.status, answer.reason or "").inc()
        return reply

    async def _within(self, until: float, answers: Answers) -> None:
        """Fill the answers, as many as can be until then."""
        answering = asyncio.create_task(self._answer(answers))
        try:
            left_s = max(0.0, until - asyncio.get_running_loop().time())
            await asyncio.wait({answering}, timeout=left_s)
        finally:
            if not answering.done():
                # Not waited for: a server that does not answer may not take a cancellation either.
                answering.cancel()
                self._cut_off.add(answering)
                answering.add_done_callback(self._ended)
        if not answering.done():
            answers.fill("deadline")
            return
        try:
            answering.result()
        except TickmindError as exc:
            answers.fill(_reason(exc), str(exc))
        except SQLAlchemyError as exc:
            log(_logger, logging.ERROR, "recall_failed", error=type(exc).__name__)
            answers.fill("database", _detail(exc))

    def _ended(self, answering: asyncio.Task[None]) -> None:
        self._cut_off.discard(answering)
        if not answering.cancelled() and (exc := answering.exception()) is not None:
            log(_logger, logging.WARNING, "cut_off_failed", error=type(exc).__name__)

    async def _answer(self, answers: Answers) -> None:
        options = answers.request.options
        generation = await self.generation()
        if generation is None:
            answers.fill("embedding", "nothing is embedded yet: no embedder has run")
            return
        # Query and memories by the same generation: a switch meanwhile is the next request's.
        space = self._spaces.vectors(generation)
        blank = {place for place, query in answers.open() if is_blank(query.observation)}
        answers.fill("invalid", "the observation is blank: say what the agent sees", places=blank)
        queries = answers.open()
        with space.wanted(query.observation for _, query in queries) as vectors:
            # The ids are looked up while the provider thinks.
            found = await self._whom(
                options.world, [query.agent for _, query in queries], generation
            )
            answers.watermarks = found.watermarks
            await self._rank_all(answers, found, vectors, generation)

    async def _whom(self, world: str, agents: Sequence[str], generation: Generation) -> Whom:
        (found,) = await self._lookups.ask((world, generation.space_id), [agents])
        return found

    async def _look_up(self, key: tuple[str, int], asked: Sequence[Sequence[str]]) -> list[Whom]:
        """The ids of all agents that several requests ask about, given to each of them."""
        world, space_id = key
        names = [name for agents in asked for name in agents]
        async with self._database.reading() as session:
            found = await whom(session, world, names, space_id=space_id)
        return [found] * len(asked)

    async def _rank_all(
        self,
        answers: Answers,
        found: Whom,
        vectors: Mapping[str, asyncio.Future[Vector]],
        generation: Generation,
    ) -> None:
        """Rank each agent's memories as soon as the vector of its observation is there."""
        waiting: dict[asyncio.Future[Vector], list[tuple[int, RecallQuery]]] = {}
        for place, query in answers.open():
            if query.agent in found.agents:
                waiting.setdefault(vectors[query.observation], []).append((place, query))
            else:  # nobody has heard of this agent: it remembers nothing
                answers.remember(place, [])
        async with asyncio.TaskGroup() as tasks:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                questions = []
                for future in done:
                    asked = waiting.pop(future)
                    exc = future.exception()
                    if isinstance(exc, TickmindError):
                        places = [place for place, _ in asked]
                        answers.fill(_reason(exc), str(exc), places=places)
                        continue
                    questions += [
                        (
                            place,
                            Question(agent_id=found.agents[query.agent], vector=future.result()),
                        )
                        for place, query in asked
                    ]
                questions.sort(key=lambda question: question[0])
                for first in range(0, len(questions), _AGENTS_A_STATEMENT):
                    chunk = questions[first : first + _AGENTS_A_STATEMENT]
                    tasks.create_task(self._rank(answers, chunk, generation))

    async def _rank(
        self,
        answers: Answers,
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
    ) -> Sequence[list[Scored]]:
        manner = _Manner(
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
        )
        return await self._rankings.ask(manner, questions)

    async def _rank_together(
        self, manner: _Manner, questions: Sequence[Question]
    ) -> list[list[Scored]]:
        async with self._database.reading() as session:
            return await rank(
                session,
                questions,
                generation=manner.generation,
                tick=manner.tick,
                k=manner.k,
                filters=manner.filters,
                weights=manner.weights,
                half_life_ticks=self._half_life_ticks,
            )

    async def generation(self) -> Generation | None:
        """The active generation, at most `_GENERATION_S` old; None: there is none yet."""
        now = asyncio.get_running_loop().time()
        if self._generation is None or now >= self._generation_until:
            async with self._database.reading() as session:
                self._generation = await active_generation(session)
            self._generation_until = now + _GENERATION_S
        return self._generation

    async def prepare(self) -> None:
        """Make ready for the active generation's space. Raises DatabaseUnavailable, and
        ConfigurationError where the space cannot be reached."""
        generation = await self.generation()
        if generation is not None:
            self._spaces.vectors(generation)

    async def close(self) -> None:
        """Wait a moment for what deadlines cut off."""
        ending = self._cut_off | self._lookups.under_way | self._rankings.under_way
        if ending:
            await asyncio.wait(ending, timeout=_CUT_OFF_S)


def _reason(exc: TickmindError) -> str:
    """The reply's word for what failed."""
    return "database" if exc.reason == "database" else "embedding"


def _detail(exc: TickmindError | SQLAlchemyError) -> str:
    """What happened, without the statement and its parameters."""
    if isinstance(exc, TickmindError):
        return str(exc)
    return f"the database refused the statement ({type(exc).__name__})"
