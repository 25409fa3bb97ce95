"""Which spaces are filled: the active one, and beside it those that are to take its place.

Each has a lane of its own: provider, budget, handler, worker. The database says which there are;
lanes begin and end within seconds of a command, without a restart.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from opentelemetry.context import Context

from tickmind.budget import Budget
from tickmind.database import Database
from tickmind.embedding import Embedder, provider_of
from tickmind.errors import ConfigurationError, TransientError
from tickmind.limits import Limit
from tickmind.measured import measured
from tickmind.metered import MeteredProvider
from tickmind.removing import collect_some
from tickmind.serving import difference, endpoint_of, name_of, served_by, settings_of, space_of
from tickmind.settings import EmbeddingSettings
from tickmind.store.spaces import Generation, ensure_space, filled_generations, keep_served
from tickmind.telemetry import log
from tickmind_embedder.handler import Handler
from tickmind_embedder.metrics import Metrics
from tickmind_embedder.settings import EmbedderSettings
from tickmind_embedder.transactions import BACKFILL_S, reading, writing
from tickmind_embedder.worker import Worker

__all__ = ["Lanes"]

_logger = logging.getLogger("tickmind.embedder")

#: A space that was added, activated or dropped is noticed within this.
_LOOK_S = 2.0
#: Vectors collected in one transaction, which linking waits for.
_COLLECTED_AT_ONCE = 1000


class _Lane:
    """One space at work. `generation`: as last looked up."""

    def __init__(
        self,
        generation: Generation,
        settings: EmbeddingSettings,
        pace: EmbedderSettings,
        database: Database,
        metrics: Metrics,
        others_first: Callable[[_Lane], Awaitable[bool]],
    ) -> None:
        """Raises ConfigurationError for settings that no text could be embedded with."""
        self.generation = generation
        self.settings = settings
        self.stop = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        provider = measured(provider_of(settings), metrics.api, settings)
        if settings.embedding_provider != "hash":  # made-up vectors cost nothing
            budget = Budget(
                database, settings.budget_name(), settings.limits(), waited=metrics.waited.inc
            )
            budget.stop_with(self.stop)
            provider = MeteredProvider(provider, budget)
        self.embedder = Embedder(settings, provider)
        self.handler = Handler(
            database,
            self.embedder,
            metrics,
            lease_s=pace.embedder_lease_s,
            max_attempts=pace.embedder_max_attempts,
        )
        self.worker = Worker(
            self.handler,
            concurrency=pace.embedder_concurrency,
            sweep_s=pace.embedder_sweep_s,
            others_first=lambda: others_first(self),
        )

    @property
    def active(self) -> bool:
        return self.generation.status == "active"

    def begin(self) -> None:
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self.worker.run(self.stop)
        except ConfigurationError as exc:  # retired or dropped while it looked: it is not ours now
            log(_logger, logging.INFO, "space_gone", reason=str(exc))
        finally:
            await self.embedder.close()


class Lanes:
    """Fills every space that is active or building.

    Where two are served by the same machines, a building one claims only while the active one has
    nothing to claim; elsewhere it takes nothing from it.
    """

    def __init__(self, database: Database, settings: EmbedderSettings, metrics: Metrics) -> None:
        """Raises ConfigurationError for settings that no text could be embedded with."""
        self._database = database
        self._settings = settings
        self._metrics = metrics
        self._lanes: dict[int, _Lane] = {}
        self._ending: list[_Lane] = []
        self._notes: dict[int, str] = {}
        self._told: set[str] = set()
        self._collect_at = 0.0
        self._own = Embedder(settings)  # wrong settings are told at once

    def hint(self, trace: Context | None = None) -> None:
        """Something was recorded: look now. `trace`: whose wake-up it is."""
        for lane in self._lanes.values():
            lane.worker.hint(trace)

    def budgets(self) -> list[tuple[str, tuple[Limit, ...]]]:
        """Name and limits of each budget in use."""
        settings = [lane.settings for lane in self._lanes.values()]
        metered = [one for one in settings if one.embedding_provider != "hash"]
        return list(
            {one.budget_name(): (one.budget_name(), one.limits()) for one in metered}.values()
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop`; what is in flight then is finished. What ends a lane by accident ends
        all."""
        self._collect_later(self._settings.embedder_collect_s * (0.5 + random.random() / 2))
        begun = False
        try:
            while not stop.is_set():
                try:
                    await self._look(keep=not begun)
                    begun = True
                    await self._collect()
                except TransientError as exc:
                    log(_logger, logging.WARNING, "waiting", reason=exc.reason)
                await self._wait(stop)
        except BaseException:
            for task in self._tasks():
                task.cancel()
            raise
        finally:
            for lane in list(self._lanes.values()):
                self._end(lane)
            await asyncio.gather(*self._tasks(), return_exceptions=True)
            await self._own.close()
        for task in self._tasks():
            task.result()

    def _tasks(self) -> list[asyncio.Task[None]]:
        lanes = [*self._lanes.values(), *self._ending]
        return [lane.task for lane in lanes if lane.task is not None]

    async def _wait(self, stop: asyncio.Event) -> None:
        """Until it is time to look again. Raises what ended a lane."""
        stopped = asyncio.ensure_future(stop.wait())
        under_way = [task for task in self._tasks() if not task.done()]
        try:
            await asyncio.wait(
                [stopped, *under_way], timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            stopped.cancel()
        for task in self._tasks():
            if task.done():
                task.result()
        self._ending = [lane for lane in self._ending if lane.task and not lane.task.done()]

    async def _look(self, *, keep: bool) -> None:
        """Begin, change and end lanes as the database says. `keep`: the way to our own space, as
        our settings say it, is the latest there is."""
        async with reading(self._database) as session:
            filled = await filled_generations(session)
        own, served = space_of(self._settings), served_by(self._settings)
        if keep or not filled:
            most_s = None if filled else BACKFILL_S
            async with writing(self._database, most_s=most_s) as session:
                await ensure_space(session, own, served)
                await keep_served(session, own, served)
                filled = await filled_generations(session)
        self._notes.clear()
        there = {generation.space_id for generation in filled}
        for lane in [lane for id_, lane in self._lanes.items() if id_ not in there]:
            self._end(lane)
        for generation in filled:
            self._serve(generation)
        if differs := difference(filled[0].space, self._settings):
            self._note(0, differs)

    def _serve(self, generation: Generation) -> None:
        lane = self._lanes.get(generation.space_id)
        if lane is not None:
            lane.generation = generation
            if lane.task is None or lane.task.done():  # it had gone for a moment
                self._end(lane)
                lane = None
        try:
            settings = settings_of(generation.space, generation.served, self._settings)
            if lane is not None and lane.settings == settings:
                return
            new = _Lane(
                generation,
                settings,
                self._settings,
                self._database,
                self._metrics,
                self._others_first,
            )
        except ConfigurationError as exc:
            self._note(generation.space_id, str(exc))
            return
        if lane is not None:  # it is reached in another way from now on
            self._end(lane)
        self._lanes[generation.space_id] = new
        new.begin()
        log(_logger, logging.INFO, "space_filled", space=generation.space_id)

    def _end(self, lane: _Lane) -> None:
        """No new work; what is in flight is finished meanwhile."""
        lane.stop.set()
        self._lanes.pop(lane.generation.space_id)
        self._ending.append(lane)
        self._metrics.backlog(lane.generation.space_id, 0)

    def _note(self, space_id: int, note: str) -> None:
        self._notes[space_id] = note
        if note not in self._told:
            self._told.add(note)
            log(_logger, logging.WARNING, "embedding_space", note=note)

    def _first(self) -> _Lane | None:
        """The lane of the active space."""
        return next((lane for lane in self._lanes.values() if lane.active), None)

    async def _others_first(self, lane: _Lane) -> bool:
        first = self._first()
        if lane.active or first is None or first.worker.fault is not None:
            return False
        if endpoint_of(first.settings) != endpoint_of(lane.settings):
            return False
        return await first.handler.claimable()

    def _collect_later(self, after_s: float) -> None:
        self._collect_at = asyncio.get_running_loop().time() + after_s

    async def _collect(self) -> None:
        """Now and then, when there is nothing else to do, vectors that no memory uses."""
        every_s = self._settings.embedder_collect_s
        idle = all(lane.worker.idle for lane in self._lanes.values())
        if not every_s or not idle or asyncio.get_running_loop().time() < self._collect_at:
            return
        # Should it fail, not at once again: it holds recorders up for a moment.
        self._collect_later(every_s)
        collected = await collect_some(lambda: writing(self._database), most=_COLLECTED_AT_ONCE)
        if collected:
            log(_logger, logging.INFO, "vectors_collected", vectors=collected)
        if collected == _COLLECTED_AT_ONCE:
            self._collect_later(_LOOK_S)

    async def fault(self) -> str | None:
        """Why recalls' own space gets no vectors just now, in one sentence; None: it does."""
        first = self._first()
        if first is not None:
            return first.worker.fault or await first.embedder.fault()
        unreachable = [note for id_, note in self._notes.items() if id_]
        if unreachable:
            return unreachable[0]
        return await self._own.fault()

    async def stalled(self) -> str | None:
        """Why nothing can be stored, in one sentence; None: it can. A database may answer and let
        nobody write."""
        waits = (lane.worker.stalled for lane in self._lanes.values())
        return next((wait for wait in waits if wait is not None), None)

    async def note(self) -> str | None:
        """What a person should know though it stops nothing."""
        notes = list(self._notes.values())
        for lane in self._lanes.values():
            if not lane.active and lane.worker.fault is not None:
                notes.append(f"{name_of(lane.generation.space)}: {lane.worker.fault}")
        return "; ".join(notes) or None
