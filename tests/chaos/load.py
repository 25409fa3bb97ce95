"""The load of a town: engines that publish its ticks until confirmed, and ask for memories."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.chaos.ledger import Ledger, Recall
from tests.chaos.replay import ReplayedTick, Trace, replay
from tickmind import MemoryClient

__all__ = ["DEADLINE_S", "Load", "Pace"]

#: What the contract grants a recall unless told otherwise.
DEADLINE_S = 0.8
#: One try of publishing; it is repeated until the broker confirms.
_PUBLISH_S = 5.0
#: Between two of them.
_AGAIN_S = 0.1
#: How often the loop shows that it is run; what it is behind by more is a stall.
_BEAT_S = 0.01
#: Queries in one request: some agents of a tick.
_QUERIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast each world lives: ticks published a second by one engine, and recalls asked a
    second. The trace has one tick in 10 s to 10 min, so this is a hundred times its speed; 2
    worlds come to 90 events and 60 memories a second."""

    ticks_per_s: float = 6.0
    recalls_per_s: float = 4.0


@dataclass(kw_only=True)
class Load:
    """One engine for each world. `again`: how many times more each tick is delivered, by any of
    the engines, shuffled among so many ticks (0: each once, in order).

    Ends for good by `stop`, with every tick that was begun confirmed.
    """

    worlds: Sequence[str]
    trace: Trace
    ledger: Ledger
    clients: Sequence[MemoryClient]
    pace: Pace
    random: Random
    again: int = 0
    shuffled: int = 1
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _silent: asyncio.Event = field(default_factory=asyncio.Event)
    _publishers: list[asyncio.Task[None]] = field(default_factory=list)
    _askers: list[asyncio.Task[None]] = field(default_factory=list)
    #: Highest tick that each world is confirmed to have, which is its now.
    _now: dict[str, int] = field(default_factory=dict)
    _asked: asyncio.Condition = field(default_factory=asyncio.Condition)
    #: Seconds for which the loop was not run, since the load began.
    _stalled_s: float = 0.0
    _beating: asyncio.Task[None] | None = None

    def begin(self) -> None:
        for world in self.worlds:
            # Chance of their own, so that neither's choices hang on who came first.
            publishing, asking = (Random(self.random.random()) for _ in range(2))
            self._publishers.append(asyncio.create_task(self._publish(world, publishing)))
            self._askers.append(asyncio.create_task(self._ask(world, asking)))
        self._beating = asyncio.create_task(self._beat())

    @property
    def failed(self) -> BaseException | None:
        """What ended a part of the load that should still run: the client raised."""
        for task in (*self._publishers, *self._askers):
            if task.done() and not task.cancelled() and (exc := task.exception()) is not None:
                return exc
        return None

    async def stop_publishing(self, timeout_s: float) -> None:
        """Finish the ticks begun; asking goes on. Raises TimeoutError."""
        self._stopping.set()
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(*self._publishers)

    async def stop_asking(self) -> None:
        """Let the recalls under way end."""
        self._silent.set()
        await asyncio.gather(*self._askers)

    async def close(self) -> None:
        """End at once, wherever it is."""
        beating = () if self._beating is None else (self._beating,)
        tasks = (*self._publishers, *self._askers, *beating)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def known_since(self, began_s: float) -> None:
        """Wait until each world had a recall, begun after that moment, answered in full."""
        async with self._asked:
            await self._asked.wait_for(lambda: self._known(began_s) >= set(self.worlds))

    def _known(self, began_s: float) -> set[str]:
        recent = [recall for recall in self.ledger.recalls[-200:] if recall.began_s >= began_s]
        return {recall.world for recall in recent if recall.known}

    async def _publish(self, world: str, chance: Random) -> None:
        ticks = replay(self.trace, world)
        while not self._stopping.is_set():
            some = [next(ticks) for _ in range(self.shuffled)]
            for tick in some:
                self.ledger.publishing(world, tick.tick, tick.decisions)
            sent = some * (1 + self.again)
            if len(sent) > 1:
                chance.shuffle(sent)
                # Several engines at once, so that no one's order is kept.
                parts = [sent[place :: len(self.clients)] for place in range(len(self.clients))]
                await asyncio.gather(
                    *(
                        self._send(part, client, chance)
                        for part, client in zip(parts, self.clients, strict=True)
                    )
                )
            else:
                await self._send(sent, chance.choice(self.clients), chance)

    async def _send(
        self, ticks: Sequence[ReplayedTick], client: MemoryClient, chance: Random
    ) -> None:
        for tick in ticks:
            while True:
                receipt = await client.publish_tick(
                    tick.world, tick.tick, tick.decisions, timeout_s=_PUBLISH_S
                )
                if receipt.confirmed:
                    break
                await asyncio.sleep(_AGAIN_S)
            self.ledger.confirm(tick.world, tick.tick, len(tick.decisions))
            self._now[tick.world] = max(self._now.get(tick.world, 0), tick.tick)
            await _pause(self._stopping, 1 / self.pace.ticks_per_s, chance)

    async def _ask(self, world: str, chance: Random) -> None:
        others = tuple(other for other in self.worlds if other != world)
        loop = asyncio.get_running_loop()
        while not self._silent.is_set():
            agents = chance.sample(self.trace.agents, min(_QUERIES, len(self.trace.agents)))
            queries: list[tuple[str | int, str]] = [
                (agent, chance.choice(self.trace.observations)) for agent in agents
            ]
            options: dict[str, Any] = {"tick": self._now.get(world, 0), "timeout_s": DEADLINE_S}
            client = chance.choice(self.clients)
            began_s, stalled_s = loop.time(), self._stalled_s
            answers = await client.recall_many(world, queries, **options)
            took_s = loop.time() - began_s
            if took_s > DEADLINE_S:
                await asyncio.sleep(_BEAT_S)  # a stall that is just over is told by then
            async with self._asked:
                self.ledger.recalls.append(
                    Recall(
                        world=world,
                        agents=tuple(agents),
                        answers=tuple(answers),
                        began_s=began_s,
                        took_s=took_s,
                        deadline_s=DEADLINE_S,
                        stalled_s=self._stalled_s - stalled_s,
                        foreign_words=others,
                    )
                )
                self._asked.notify_all()
            await _pause(self._silent, 1 / self.pace.recalls_per_s, chance)

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            await asyncio.sleep(_BEAT_S)
            self._stalled_s += max(0.0, loop.time() - began_s - 2 * _BEAT_S)


async def _pause(over: asyncio.Event, seconds: float, chance: Random) -> None:
    """A pause of so long on average, or until it is over."""
    try:
        async with asyncio.timeout(seconds * chance.uniform(0.5, 1.5)):
            await over.wait()
    except TimeoutError:
        return
