"""Whether ranking by signatures, or by an index, finds what the exact ranking does: looked into now
and then."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from prometheus_client import Counter
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.database import Database
from tickmind.database_errors import DatabaseUnavailable
from tickmind.memory import Scored
from tickmind.store.recall import Question
from tickmind.store.recall_signature import Prefilter
from tickmind.telemetry import log

__all__ = ["Auditing", "Ranking"]

_logger = logging.getLogger("tickmind.retriever")

#: While recalls are ranked, whether they still are is looked up this often.
_LOOK_S = 0.2
#: An audit that has found no idle moment for so long is given up.
_PATIENCE_S = 60.0
#: Longest that one may take: a million memories, scored exactly.
_LONGEST_S = 30.0
_ONE_MOMENT = text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")


class Ranking(Protocol):
    """`rank` with all but its questions and its plan."""

    async def __call__(
        self,
        session: AsyncSession,
        questions: Sequence[Question],
        *,
        prefilter: Prefilter | None,
    ) -> list[list[Scored]]: ...


class Auditing:
    """One audit at a time, of one question, when nothing else is ranked. Both rankings see the
    same moment of the database, so that what is recorded meanwhile is no difference.

    `counted`: by `plan` and `found`, the memories of the exact ranking that the other had, and had
    not.
    """

    def __init__(
        self, database: Database, counted: Counter, *, one_in: int, busy: Callable[[], bool]
    ) -> None:
        self._database = database
        self._counted = counted
        self._one_in = one_in
        self._busy = busy
        self._under_way: asyncio.Task[None] | None = None

    def offer(self, ranking: Ranking, questions: Sequence[Question], prefilter: Prefilter) -> None:
        """Audit one of these, maybe: soon, not now."""
        if not self._one_in or (self._under_way is not None and not self._under_way.done()):
            return
        if random.random() * self._one_in < len(questions):
            question = random.choice(questions)
            self._under_way = asyncio.create_task(self._audit(ranking, question, prefilter))

    async def _audit(self, ranking: Ranking, question: Question, prefilter: Prefilter) -> None:
        if not await self._idle():
            return
        try:
            async with asyncio.timeout(_LONGEST_S), self._database.writing() as session:
                await session.execute(_ONE_MOMENT)
                (found,) = await ranking(session, [question], prefilter=prefilter)
                (exact,) = await ranking(session, [question], prefilter=None)
        except (DatabaseUnavailable, SQLAlchemyError, TimeoutError) as exc:
            log(_logger, logging.INFO, "audit_failed", error=type(exc).__name__)
            return
        ids = {memory.id for memory in found}
        missed = sum(memory.id not in ids for memory in exact)
        plan = "signatures" if prefilter.hnsw is None else "hnsw"
        self._counted.labels(plan, "true").inc(len(exact) - missed)
        self._counted.labels(plan, "false").inc(missed)

    async def _idle(self) -> bool:
        """Wait for an idle moment; False: there is none."""
        await asyncio.sleep(0)  # the ranking that offered itself is not done yet
        for _ in range(int(_PATIENCE_S / _LOOK_S)):
            if not self._busy():
                return True
            await asyncio.sleep(_LOOK_S)
        return False

    async def close(self) -> None:
        """Give up the one that is under way."""
        if self._under_way is not None:
            self._under_way.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._under_way
