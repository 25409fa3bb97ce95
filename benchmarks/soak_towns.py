"""What `soak` puts on the services: towns that live side by side, and what their agents ask."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from benchmarks.recall_load import observation
from tickmind import MemoryClient

__all__ = [
    "DECISIONS",
    "MEMORIES",
    "RECALLS",
    "RECALL_TIMEOUT_S",
    "Call",
    "Load",
    "Stretch",
    "Town",
    "Towns",
]

#: Agents of a town; of these, who decides in one tick.
_AGENTS = 50
_TALKERS = 10
_WALKERS = 10
DECISIONS = _TALKERS + _WALKERS
#: A talk is remembered by who said it and by who heard it, a walk by who walked.
MEMORIES = 2 * _TALKERS + _WALKERS
#: Agents that ask in one tick, each in a request of its own, which costs more than one for all.
RECALLS = 4
#: A walk ends on one of so many squares by so many: the same ones come again, which is linked
#: without being embedded; a talk is always new.
_SQUARES = 200
#: What is under way at once at the most: at three times the capacity of two cores some 100 ticks
#: and 400 recalls a second, which take 10 s and 0.8 s until they are given up.
_MOST_UNDER_WAY = 2000
#: The client's defaults.
PUBLISH_TIMEOUT_S = 10.0
RECALL_TIMEOUT_S = 0.8


@dataclass(slots=True, kw_only=True)
class Town:
    """One world. `confirmed`: its ticks that the broker has taken; `tick`: the next one."""

    name: str
    tick: int = 0
    confirmed: set[int] = field(default_factory=set)

    def agent(self, source: random.Random) -> str:
        """One of them."""
        return f"agent-{source.randrange(_AGENTS):02}"


class Towns:
    """`count` towns at a time, of ages spread over `life` ticks. One that has lived so long ends,
    and a new one takes its place: what an agent remembers, and with it what a recall costs, stays
    the same on the whole, however long this goes on."""

    def __init__(self, *, count: int, life: int) -> None:
        self._life = life
        self._source = random.Random(11)
        self._turn = 0
        self.all: list[Town] = []
        self._living = [self._found() for _ in range(count)]

    def ages(self) -> list[tuple[Town, int]]:
        """Each living town with the age it is to have when the measuring begins."""
        share = self._life // len(self._living)
        return [(town, place * share) for place, town in enumerate(self._living)]

    def next(self) -> tuple[Town, int]:
        """The town whose turn it is, with its next tick."""
        place = self._turn = (self._turn + 1) % len(self._living)
        if self._living[place].tick >= self._life:
            self._living[place] = self._found()
        return self.grow(self._living[place])

    def grow(self, town: Town) -> tuple[Town, int]:
        """That town with its next tick."""
        town.tick += 1
        return town, town.tick - 1

    def question(self) -> tuple[Town, str, str]:
        """A living town, one of its agents, and what that one sees."""
        town = self._source.choice(self._living)
        return town, town.agent(self._source), observation(self._source)

    def decisions(self) -> list[dict[str, Any]]:
        """What the agents of one tick decide: MEMORIES memories, no talk like any other."""
        source = self._source
        agents = [f"agent-{number:02}" for number in source.sample(range(_AGENTS), 2 * _TALKERS)]
        decided: list[dict[str, Any]] = [
            {
                "agent": agent,
                "action": "talk",
                "speech": observation(source),
                "heard_by": [agents[_TALKERS + place]],
            }
            for place, agent in enumerate(agents[:_TALKERS])
        ]
        decided += [
            {
                "agent": agent,
                "action": "move",
                "target": [source.randrange(_SQUARES), source.randrange(_SQUARES)],
            }
            for agent in agents[_TALKERS : _TALKERS + _WALKERS]
        ]
        return decided

    def _found(self) -> Town:
        town = Town(name=f"town-{len(self.all) + 1}")
        self.all.append(town)
        return town


@dataclass(frozen=True, slots=True)
class Call:
    """One publish or recall. `at`: when it was begun, of `time.perf_counter`; `outcome`: `ok`, or
    what the client said instead."""

    at: float
    took_s: float
    outcome: str

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"


@dataclass(slots=True, kw_only=True)
class Stretch:
    """What came of a load. `skipped`: ticks not begun, since too much was under way or this
    process could not keep up; `sent`: set once no more is begun."""

    rate: float
    begun: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0
    ticks: int = 0
    skipped: int = 0
    publishes: list[Call] = field(default_factory=list)
    recalls: list[Call] = field(default_factory=list)
    sent: asyncio.Event = field(default_factory=asyncio.Event)


class Load:
    """Plays ticks of the towns, each with its recalls, at a rate that does not wait for answers."""

    def __init__(self, client: MemoryClient, towns: Towns) -> None:
        self._client = client
        self.towns = towns
        #: Publishes and recalls that have not ended.
        self.under_way = 0

    async def fill(self, *, at_once: int) -> None:
        """Let the towns grow to the ages they begin with, as fast as ticks are confirmed. Raises
        RuntimeError where one is not."""
        due = [town for town, age in self.towns.ages() for _ in range(age)]
        waiting = iter(due)
        filling = Stretch(rate=0.0)

        async def some() -> None:
            for town in waiting:
                await self._publish(filling, *self.towns.grow(town))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(at_once):
                tasks.create_task(some())
        for call in filling.publishes:
            if not call.ok:
                msg = f"a tick was not confirmed: {call.outcome}"
                raise RuntimeError(msg)

    async def play(self, stretch: Stretch, *, seconds: float) -> None:
        """Begin `stretch.rate` ticks a second for so long; returns when all have ended, each of
        its own within its timeout."""
        stretch.begun = begun = time.perf_counter()
        due = round(stretch.rate * seconds)
        async with asyncio.TaskGroup() as tasks:
            for number in range(due):
                await asyncio.sleep(max(0.0, begun + number / stretch.rate - time.perf_counter()))
                if time.perf_counter() - begun > seconds:
                    stretch.skipped += due - number
                    break
                if self.under_way >= _MOST_UNDER_WAY:
                    stretch.skipped += 1
                    continue
                self._begin(tasks, stretch)
            stretch.seconds = time.perf_counter() - begun
            stretch.sent.set()

    def _begin(self, tasks: asyncio.TaskGroup, stretch: Stretch) -> None:
        town, tick = self.towns.next()
        stretch.ticks += 1
        calls: list[Coroutine[Any, Any, None]] = [self._publish(stretch, town, tick)]
        calls += [self._ask(stretch) for _ in range(RECALLS)]
        for call in calls:
            self.under_way += 1
            tasks.create_task(call).add_done_callback(self._ended)

    def _ended(self, _: object) -> None:
        self.under_way -= 1

    async def _publish(self, stretch: Stretch, town: Town, tick: int) -> None:
        decisions = self.towns.decisions()
        begun = time.perf_counter()
        receipt = await self._client.publish_tick(
            town.name, tick, decisions, timeout_s=PUBLISH_TIMEOUT_S
        )
        took_s = time.perf_counter() - begun
        if receipt.confirmed:
            town.confirmed.add(tick)
        stretch.publishes.append(Call(begun, took_s, receipt.reason or "ok"))

    async def _ask(self, stretch: Stretch) -> None:
        stretch.recalls.append(await self.recall())

    async def recall(self) -> Call:
        """One agent asked what it remembers, with the client's own deadline. An agent that has
        nothing to remember yet is answered, too."""
        town, agent, observed = self.towns.question()
        begun = time.perf_counter()
        answer = await self._client.recall(
            town.name, agent, observed, tick=town.tick, timeout_s=RECALL_TIMEOUT_S
        )
        return Call(begun, time.perf_counter() - begun, answer.reason or "ok")
