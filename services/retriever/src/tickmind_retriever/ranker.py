"""The memories of each agent of a request, ranked: by vectors as they come, or without them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from tickmind.database import Database
from tickmind.errors import TickmindError
from tickmind.memory import Scored
from tickmind.messages import Explained, RecallQuery
from tickmind.store.recall import Question, rank
from tickmind.store.spaces import Generation
from tickmind.store.whom import Whom
from tickmind.telemetry import log
from tickmind_retriever.asking import SHED, Asking, detail_of, ms_since, reason_of
from tickmind_retriever.auditing import Auditing
from tickmind_retriever.chosen import chosen
from tickmind_retriever.fallback import Fallback
from tickmind_retriever.metrics import Metrics
from tickmind_retriever.plans import EXACT, Plan, Plans
from tickmind_retriever.query_vectors import Vector
from tickmind_retriever.ranking import Terms
from tickmind_retriever.sharing import Shared, TooLate
from tickmind_retriever.words import Words

__all__ = ["Ranker"]

_logger = logging.getLogger("tickmind.retriever")

#: Agents ranked by one statement: enough to spare round trips, few enough to answer in parts.
_AGENTS_A_STATEMENT = 8
#: Statements of one request that wait or run at once, for each place: a request for 1,000 agents
#: has 125, and one that comes after it is not to wait for them all.
_STATEMENTS_A_PLACE = 2


#: What words found, by place of a query: memory ids with how well.
_Found = dict[int, dict[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Manner:
    """How questions are ranked: those that want the same may share a statement."""

    generation: Generation
    terms: Terms
    plan: Plan = EXACT


class Ranker:
    """Ranks what requests ask for, in at most `parallel` statements at once of either sort."""

    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        *,
        parallel: int,
        signatures_from: int,
        audit_one_in: int,
    ) -> None:
        # Words take a fifth of the time that vectors take.
        self._by_words = by_words = max(1, parallel // 4)
        self._database = database
        self._metrics = metrics
        self._parallel = max(1, parallel - by_words)
        self._words = Words(database, parallel=by_words)
        self._fallback = Fallback(database, parallel=self._parallel)
        self._rankings = Shared(
            self._rank_together, parallel=self._parallel, most=_AGENTS_A_STATEMENT, spread=True
        )
        self._plans = Plans(database, signatures_from=signatures_from)
        self._auditing = Auditing(
            database,
            metrics.audited,
            one_in=audit_one_in,
            busy=lambda: bool(self._rankings.under_way),
        )

    @property
    def under_way(self) -> set[asyncio.Task[Any]]:
        """Statements that have not ended."""
        return {*self._rankings.under_way, *self._fallback.under_way, *self._words.under_way}

    async def rank_all(
        self,
        asking: Asking,
        found: Whom,
        vectors: Mapping[str, asyncio.Future[Vector]],
        generation: Generation,
    ) -> None:
        """Rank each agent's memories as soon as the vector of its observation is there."""
        answers = asking.answers
        waiting: dict[asyncio.Future[Vector], list[tuple[int, RecallQuery]]] = {}
        for place, query in answers.open():
            if query.agent in found.agents:
                waiting.setdefault(vectors[query.observation], []).append((place, query))
            else:
                answers.nobody(place)
        turns = asyncio.Semaphore(self._parallel * _STATEMENTS_A_PLACE)
        async with asyncio.TaskGroup() as tasks:
            wanted = [
                (place, query)
                for place, query in answers.open()
                if asking.terms.weights is not None and not _failed(vectors[query.observation])
            ]
            words = self._begin_words(tasks, asking, found, wanted)
            while waiting:
                answers.unembedded = {place for asked in waiting.values() for place, _ in asked}
                here = any(future.done() for future in waiting)
                since = asyncio.get_running_loop().time()
                done, late = await asyncio.wait(
                    waiting,
                    timeout=self._patience_s(asking),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not here:
                    asking.waited_s += asyncio.get_running_loop().time() - since
                if not done:
                    asked = [query for future in late for query in waiting.pop(future)]
                    late_for = "deadline", "the embedding API took too long"
                    tasks.create_task(self._without(asking, found, asked, *late_for, words))
                questions = []
                for future in done:
                    asked = waiting.pop(future)
                    answers.embed_ms |= {place: ms_since(asking.begun) for place, _ in asked}
                    exc = future.exception()
                    if isinstance(exc, TickmindError):
                        why = reason_of(exc), str(exc)
                        tasks.create_task(self._without(asking, found, asked, *why, words))
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
                    tasks.create_task(self._rank(asking, found, chunk, generation, turns, words))
            answers.unembedded = set()

    def _begin_words(
        self,
        tasks: asyncio.TaskGroup,
        asking: Asking,
        found: Whom,
        wanted: Sequence[tuple[int, RecallQuery]],
    ) -> dict[int, asyncio.Task[_Found]]:
        """Look for the words of these: tasks by place of a query, each with what it found for
        several. A few at once, so that others' are not kept waiting behind all of them."""
        turns = asyncio.Semaphore(self._by_words * _STATEMENTS_A_PLACE)
        asked = [(place, found.agents[query.agent], query.observation) for place, query in wanted]
        looking: dict[int, asyncio.Task[_Found]] = {}
        for first in range(0, len(asked), _AGENTS_A_STATEMENT):
            chunk = asked[first : first + _AGENTS_A_STATEMENT]
            task = tasks.create_task(self._find_words(asking.terms, chunk, turns))
            looking |= {place: task for place, _, _ in chunk}
        return looking

    async def _find_words(
        self, terms: Terms, asked: Sequence[tuple[int, int, str]], turns: asyncio.Semaphore
    ) -> _Found:
        """What words find, by place. Nothing where the database refuses: vectors may do."""
        questions = [(agent, observation) for _, agent, observation in asked]
        try:
            async with turns:
                found = await self._words.find(questions, filters=terms.filters)
        except (TickmindError, SQLAlchemyError) as exc:
            log(_logger, logging.ERROR, "words_failed", error=type(exc).__name__)
            return {}
        return {place: hits for (place, _, _), hits in zip(asked, found, strict=True)}

    def _patience_s(self, asking: Asking) -> float | None:
        """How long to wait for vectors: to the end, or as long as it can be done without them."""
        if asking.answers.request.options.fallback == "none":
            return None
        return max(0.0, asking.without_by - asyncio.get_running_loop().time())

    async def _rank(
        self,
        asking: Asking,
        found: Whom,
        questions: Sequence[tuple[int, Question]],
        generation: Generation,
        turns: asyncio.Semaphore,
        words: Mapping[int, asyncio.Task[_Found]],
    ) -> None:
        used: dict[int, tuple[Plan, int]] = {}
        answer_by = asking.answer_by()

        async def ask(terms: Terms, asked: Sequence[Question]) -> Sequence[list[Scored]]:
            agents = {question.agent_id for question in asked}
            plans = await self._plans.of(generation, agents, terms)
            used.update({id_: (plan, terms.k) for id_, plan in plans.items()})
            manner = _Manner(generation=generation, terms=terms)
            return await self._ranked(manner, plans, asked, answer_by)

        places = [place for place, _ in questions]
        begun = asyncio.get_running_loop().time()
        explained: Sequence[Explained | None] = [None] * len(questions)
        try:
            both = [
                replace(asked, words=(await words[place]).get(place, {}))
                if place in words
                else asked
                for place, asked in questions
            ]
            async with turns:
                ranked = await chosen(ask, asking.terms, both, with_core=found.with_core)
            if asking.answers.request.options.explain:
                explained = await self._explained(asking, generation, questions, used, begun)
        except TooLate:
            self._metrics.shed.inc(len(places))
            asking.answers.fill("deadline", SHED, places=places)
            return
        except (TickmindError, SQLAlchemyError) as exc:
            log(_logger, logging.ERROR, "rank_failed", error=type(exc).__name__)
            asking.answers.fill("database", detail_of(exc), places=places)
            return
        for place, memories, how in zip(places, ranked, explained, strict=True):
            asking.answers.remember(place, memories, how)

    async def _explained(
        self,
        asking: Asking,
        generation: Generation,
        questions: Sequence[tuple[int, Question]],
        used: Mapping[int, tuple[Plan, int]],
        begun: float,
    ) -> Sequence[Explained]:
        """How they were ranked, since `begun`; `used`: by agent, the last plan, and for how many
        memories."""
        answers, took = asking.answers, {"rank": ms_since(begun)}
        return await self._plans.explained(
            generation,
            [(asked.agent_id, *used[asked.agent_id]) for _, asked in questions],
            by_relevance=asking.terms.weights is None,
            ms=[answers.ms | {"embed": answers.embed_ms[place]} | took for place, _ in questions],
        )

    async def _ranked(
        self,
        manner: _Manner,
        plans: Mapping[int, Plan],
        questions: Sequence[Question],
        until: float,
    ) -> Sequence[list[Scored]]:
        """Each by the plan for its agent; each plan has statements of its own. Raises TooLate."""
        by_plan: dict[Plan, list[int]] = {}
        for place, asked in enumerate(questions):
            by_plan.setdefault(plans[asked.agent_id], []).append(place)
        answers = await asyncio.gather(
            *(
                self._rankings.ask(
                    replace(manner, plan=plan),
                    [questions[place] for place in places],
                    until=until,
                )
                for plan, places in by_plan.items()
            )
        )
        ranked: list[list[Scored]] = [[] for _ in questions]
        for places, found in zip(by_plan.values(), answers, strict=True):
            for place, memories in zip(places, found, strict=True):
                ranked[place] = memories
        return ranked

    async def without_vectors(self, asking: Asking, found: Whom, reason: str, detail: str) -> None:
        """Answer all by what is known without vectors, where the request asks for that."""
        await self._without(asking, found, asking.answers.open(), reason, detail, {})

    async def _without(
        self,
        asking: Asking,
        found: Whom,
        asked: Sequence[tuple[int, RecallQuery]],
        reason: str,
        detail: str,
        words: Mapping[int, asyncio.Task[_Found]],
    ) -> None:
        """`words`: those that are looked for already."""
        answers = asking.answers
        if answers.request.options.fallback == "none":
            answers.fill(reason, detail, places=[place for place, _ in asked])
            return
        known = [(place, query) for place, query in asked if query.agent in found.agents]
        for place, query in asked:
            if query.agent not in found.agents:
                answers.nobody(place)
        turns = asyncio.Semaphore(self._parallel * _STATEMENTS_A_PLACE)
        async with asyncio.TaskGroup() as tasks:
            absent = [(place, query) for place, query in known if place not in words]
            looking = {**words, **self._begin_words(tasks, asking, found, absent)}
            for first in range(0, len(known), _AGENTS_A_STATEMENT):
                questions = [
                    (place, found.agents[query.agent], looking[place])
                    for place, query in known[first : first + _AGENTS_A_STATEMENT]
                ]
                tasks.create_task(
                    self._rank_without(asking, found, questions, reason, detail, turns)
                )

    async def _rank_without(
        self,
        asking: Asking,
        found: Whom,
        asked: Sequence[tuple[int, int, asyncio.Task[_Found]]],
        reason: str,
        detail: str,
        turns: asyncio.Semaphore,
    ) -> None:
        """`asked`: places, agents, and who looks for their words."""
        answers = asking.answers
        places = [place for place, _, _ in asked]
        try:
            questions = [
                Question(agent_id=agent, vector=None, words=(await looking).get(place, {}))
                for place, agent, looking in asked
            ]
            async with turns:
                ranked = await self._fallback.rank(
                    asking.terms, questions, with_core=found.with_core
                )
        except (TickmindError, SQLAlchemyError) as exc:
            log(_logger, logging.ERROR, "rank_failed", error=type(exc).__name__)
            answers.fill("database", detail_of(exc), places=places)
            return
        for place, memories in zip(places, ranked, strict=True):
            answers.remember(place, memories, reason=reason, detail=detail)

    async def _rank_together(
        self, manner: _Manner, questions: Sequence[Question]
    ) -> list[list[Scored]]:
        terms = manner.terms
        prefilter = await self._plans.prefilter(manner.generation, terms.k, manner.plan)
        ranking = partial(
            rank,
            generation=manner.generation,
            tick=terms.tick,
            k=terms.k,
            filters=terms.filters,
            weights=terms.weights,
            half_life_ticks=terms.half_life_ticks,
        )
        async with self._database.reading() as session:
            found = await ranking(session, questions, prefilter=prefilter)
        self._metrics.plans.labels(manner.plan.name).inc(len(questions))
        if prefilter is not None:
            self._auditing.offer(ranking, questions, prefilter)
        return found

    async def prepare(self, generation: Generation) -> None:
        """Read what ranks by this generation's signatures. Raises DatabaseUnavailable."""
        await self._plans.prefilter(generation, 1)

    async def close(self) -> None:
        """Give up what nobody waits for."""
        await self._auditing.close()


def _failed(vector: asyncio.Future[Vector]) -> bool:
    """Whether there will be none, as is known already."""
    return vector.done() and vector.exception() is not None
