"""What the retriever does with a request: embed, rank, word, before the deadline.

Knows nothing of the broker. Never raises for what goes wrong: each agent's answer is a fragment,
or an empty one with its reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from sqlalchemy.exc import SQLAlchemyError

from tickmind.clean import is_blank
from tickmind.database import Database
from tickmind.decoding import decode_recall
from tickmind.errors import InvalidMessage, TickmindError
from tickmind.memory import Watermarks
from tickmind.messages import RecallReply
from tickmind.store.recall_signature import PAYS_FROM
from tickmind.store.spaces import Generation, active_generation
from tickmind.store.whom import Whom, whom
from tickmind.telemetry import log
from tickmind.tracing import exemplar
from tickmind_retriever.admitting import Admission
from tickmind_retriever.answers import Answers
from tickmind_retriever.asking import SHED, Asking, detail_of, ms_since, reason_of
from tickmind_retriever.awaiting import Awaiting
from tickmind_retriever.metrics import Metrics
from tickmind_retriever.query_vectors import QueryVectors
from tickmind_retriever.ranker import Ranker
from tickmind_retriever.ranking import Ranking
from tickmind_retriever.sharing import Shared
from tickmind_retriever.spaces import Spaces

__all__ = ["Handler"]

_logger = logging.getLogger("tickmind.retriever")

#: How long the active generation is taken as known: a switch is noticed within this.
_GENERATION_S = 2.0
#: Requests that share one look at the active generation: all there may be.
_MOST_ASKING = 1000
#: Requests whose agents one statement looks up: twice what may be under way by default.
_REQUESTS_A_LOOKUP = 64
#: While a lookup is under way, what comes shares the next. One takes 0.4 ms where PostgreSQL is
#: idle and 10 where it is overloaded; after this long it keeps nobody waiting.
_LOOKUP_S = 0.02
#: How long work that a deadline cut off may take to end: PostgreSQL is told to cancel it.
_CUT_OFF_S = 2.0
#: Of the time a request has, what is kept for ranking where something else can be done without: a
#: quarter, at most so long (exact ranking takes 5 ms for 1,000 memories, 250 ms for 50,000).
_RANKING_SHARE = 0.25
_RANKING_MOST_S = 0.5
#: Where more is asked than can be answered, only what would be answered before this share of its
#: deadline is left is begun. At three times capacity, client and servers on two cores, 0.28 of
#: capacity was answered at the last moment, and 0.05 in time for the client.
_SPARE_SHARE = 0.25
#: What no space has for its id: nothing waits for vectors there.
_NO_SPACE = 0


class Handler:
    """Answers recall requests."""

    def __init__(
        self,
        database: Database,
        spaces: Spaces,
        metrics: Metrics,
        *,
        ranking: Ranking,
        reserve_s: float,
        parallel: int,
        signatures_from: int = PAYS_FROM,
        audit_one_in: int = 0,
    ) -> None:
        self._database = database
        self._spaces = spaces
        self._metrics = metrics
        self._ranking = ranking
        self._reserve_s = reserve_s
        self._admission = Admission()
        self._awaiting = Awaiting(database)
        self._ranker = Ranker(
            database,
            metrics,
            parallel=parallel,
            signatures_from=signatures_from,
            audit_one_in=audit_one_in,
        )
        self._lookups = Shared(
            self._look_up, parallel=1, most=_REQUESTS_A_LOOKUP, patience_s=_LOOKUP_S
        )
        self._generations = Shared(
            self._read_generation, parallel=1, most=_MOST_ASKING, patience_s=_LOOKUP_S
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
        until = begun + left_s - self._reserve_s
        # Under an overload whoever waits for the answer is busy, too: the last moment is too late.
        spare_s = max(self._reserve_s, request.options.deadline_ms / 1000 * _SPARE_SHARE)
        if not self._admission.admits(left_s=left_s - spare_s, waited_s=age_s):
            self._metrics.shed.inc(len(answers.open()))
            answers.fill("deadline", SHED)
            return self._told(answers)
        kept_s = min(_RANKING_MOST_S, max(0.0, until - begun) * _RANKING_SHARE)
        terms = self._ranking.of(request.options.world).terms(request.options)
        asking = Asking(
            answers=answers,
            terms=terms,
            begun=begun,
            until=until,
            spare_s=spare_s - self._reserve_s,
            without_by=until - kept_s,
        )
        with self._admission.begun():
            await self._within(until, asking)
        # One that waited for a tick waited for something else, too.
        if answers.first_at is not None and request.options.wait_for_tick is None:
            self._admission.answered(after_s=answers.first_at - begun)
        self._metrics.seconds.observe(loop.time() - begun, exemplar())
        return self._told(answers)

    def _told(self, answers: Answers) -> RecallReply:
        reply = answers.reply()
        for answer in reply.replies:
            self._metrics.recalls.labels(answer.status, answer.reason or "").inc()
        return reply

    async def _within(self, until: float, asking: Asking) -> None:
        """Fill the answers, as many as can be until then."""
        answers = asking.answers
        answering = asyncio.create_task(self._answer(asking))
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
            late = "the embedding API took too long"
            answers.fill("deadline", late, places=answers.unembedded)
            answers.fill("deadline", "the memories were not ranked in time")
            return
        try:
            answering.result()
        except TickmindError as exc:
            answers.fill(reason_of(exc), str(exc))
        except SQLAlchemyError as exc:
            log(_logger, logging.ERROR, "recall_failed", error=type(exc).__name__)
            answers.fill("database", detail_of(exc))

    def _ended(self, answering: asyncio.Task[None]) -> None:
        self._cut_off.discard(answering)
        if not answering.cancelled() and (exc := answering.exception()) is not None:
            log(_logger, logging.WARNING, "cut_off_failed", error=type(exc).__name__)

    async def _answer(self, asking: Asking) -> None:
        answers, options = asking.answers, asking.answers.request.options
        blank = {place for place, query in answers.open() if is_blank(query.observation)}
        answers.fill("invalid", "the observation is blank: say what the agent sees", places=blank)
        # Query and memories by the same generation: a switch meanwhile is the next request's.
        generation = await self.generation()
        space, fault = self._space(generation)
        if space is None or generation is None:
            if options.fallback == "none":
                answers.fill("embedding", fault)
                return
            found = await self._found(asking, generation)
            await self._ranker.without_vectors(asking, found, "embedding", fault)
            return
        with space.wanted(query.observation for _, query in answers.open()) as vectors:
            # The ids are looked up while the provider thinks.
            found = await self._found(asking, generation)
            answers.ms["find"] = ms_since(asking.begun)
            await self._ranker.rank_all(asking, found, vectors, generation)

    def _space(self, generation: Generation | None) -> tuple[QueryVectors | None, str]:
        """Where to get vectors; None, and why there are none."""
        if generation is None:
            return None, "nothing is embedded yet: no embedder has run"
        try:
            return self._spaces.vectors(generation), ""
        except TickmindError as exc:
            return None, str(exc)

    async def _found(self, asking: Asking, generation: Generation | None) -> Whom:
        """Who is asked, once the world's memory has reached the tick that the request waits for
        or has waited for long enough."""
        options = asking.answers.request.options
        space_id = generation.space_id if generation is not None else _NO_SPACE
        agents = [query.agent for _, query in asking.answers.open()]
        if options.wait_for_tick is not None and agents:
            loop = asyncio.get_running_loop()
            since = loop.time()
            left_s = asking.without_by - since
            await self._awaiting.reached(
                options.world,
                options.wait_for_tick,
                space_id=space_id,
                embedded=options.wait_until == "embedded",
                at_most_s=min(options.wait_ms / 1000, left_s),
            )
            asking.waited_s += loop.time() - since
        (found,) = await self._lookups.ask((options.world, space_id), [agents])
        asking.answers.watermarks = (
            found.watermarks
            if generation is not None
            else Watermarks(recorded=found.watermarks.recorded)
        )
        return found

    async def _look_up(self, key: tuple[str, int], asked: Sequence[Sequence[str]]) -> list[Whom]:
        """The ids of all agents that several requests ask about, given to each of them."""
        world, space_id = key
        names = [name for agents in asked for name in agents]
        async with self._database.reading() as session:
            found = await whom(session, world, names, space_id=space_id)
        return [found] * len(asked)

    async def generation(self) -> Generation | None:
        """The active generation, at most `_GENERATION_S` old; None: there is none yet."""
        now = asyncio.get_running_loop().time()
        if self._generation is None or now >= self._generation_until:
            (self._generation,) = await self._generations.ask(None, [None])
            self._generation_until = now + _GENERATION_S
        return self._generation

    async def _read_generation(self, _: None, asked: Sequence[None]) -> Sequence[Generation | None]:
        """What all who ask share: by itself, each would want a connection of the pool at once."""
        async with self._database.reading() as session:
            return [await active_generation(session)] * len(asked)

    async def prepare(self) -> None:
        """Make ready for the active generation's space. Raises DatabaseUnavailable, and
        ConfigurationError where the space cannot be reached."""
        generation = await self.generation()
        if generation is not None:
            self._spaces.vectors(generation)
            await self._ranker.prepare(generation)

    async def close(self) -> None:
        """Wait a moment for what deadlines cut off."""
        await self._awaiting.close()
        await self._ranker.close()
        ending = {
            *self._cut_off,
            *self._generations.under_way,
            *self._lookups.under_way,
            *self._ranker.under_way,
        }
        if ending:
            await asyncio.wait(ending, timeout=_CUT_OFF_S)
