"""A town under load, and faults: how a scenario is written.

    async def test_recorder_that_is_killed_loses_nothing(stack, scenario):
        async with town(stack, scenario, replicas={"recorder": 2}) as running:
            async with running.fault("recorder killed"):
                ...                              # break something; mended when the block ends
            await running.recovered()            # between faults, where they shall not overlap

`town` starts the services as processes on a database and a virtual host of their own, replays the
trace in two worlds whose agents have the same names, and asks for memories all the while. What
comes of it is judged when its block ends, for every scenario alike: it waits until the town has
recovered, ends the load, waits until everything is stored and embedded or parked, and holds the
ledger against the database, the broker and every answer (`Town.judge`). So a scenario only breaks
things, and asserts what is its own.

What a fault may use: `running.fleet` (replicas: kill, add, remove, scale), `running.stack`
(`postgres`, `rabbitmq`: start, stop, restart, `rabbitmqctl`), `running.provider` (the embedding
API: `faults`), `running.doors` (with `doors=True`: the network between services and database,
services and broker, engines and broker; see `tests.proxy`), `running.database` (a pool of the
test's own, not through a door), `running.random` (seeded: the only source of chance).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from tests.chaos.figures import Figures
from tests.chaos.finding import WIDTH, found, unsettled
from tests.chaos.fleet import SERVICES, Fleet
from tests.chaos.ledger import Ledger, Verdict
from tests.chaos.load import Load, Pace
from tests.chaos.network import Doors, open_doors
from tests.chaos.replay import Trace
from tests.chaos.stack import Stack
from tickmind import MemoryClient
from tickmind.database import Database
from tickmind.database_errors import DatabaseUnavailable
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.running import Provider, running_provider
from tickmind.policy import default_policy
from tickmind.settings import BrokerSettings, DatabaseSettings

__all__ = ["WORLDS", "Doors", "Scenario", "Town", "town"]

#: `--log-cli-level=info` tells what happens while it does.
_logger = logging.getLogger("chaos")

#: Words that no trace has, since they mark whose memory a text is.
WORLDS = ("rivertown", "hilltown")
#: The longest a town may take from the end of the last fault until it is well: consumers are to be
#: back within 60 s (case 36), and what waited meanwhile has to be worked off.
RECOVERY_MOST_S = 90.0
#: Between two looks at whether it is.
_LOOK_S = 0.1
#: Engines; each is a client with connections of its own.
_ENGINES = 3

#: Faster than production where only waiting would differ: a batch whose embedder died is free
#: after 5 s instead of 120, a call is given up after 5 s instead of 30. Small requests, so that
#: many are under way whenever something breaks.
_SETTINGS = {
    "TICKMIND_EMBEDDING_MODEL": "town",
    "TICKMIND_EMBEDDING_DIMENSIONS": str(WIDTH),
    "TICKMIND_EMBEDDING_MAX_INPUTS": "10",
    "TICKMIND_EMBEDDING_TIMEOUT_S": "5",
    "TICKMIND_EMBEDDER_LEASE_S": "5",
    "TICKMIND_LOG_FORMAT": "text",
}
#: What a hosted provider is like, but for its speed (200 to 500 ms there).
_PROVIDER = ProviderOptions(native_width=WIDTH, latency_s=0.05, latency_jitter_s=0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What a scenario is run with. `told`: where its figures go."""

    name: str
    seed: int
    trace: Trace
    told: list[Figures]


@dataclass(kw_only=True)
class Town:
    """A running town; see the module. `may_exit`: services may end by themselves, to be started
    again as in Kubernetes."""

    scenario: Scenario
    stack: Stack
    random: random.Random
    database_settings: DatabaseSettings
    broker_settings: BrokerSettings
    database: Database
    provider: Provider
    fleet: Fleet
    ledger: Ledger
    load: Load
    doors: Doors | None
    may_exit: bool
    faults: list[str] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    _breaking: int = 0
    _recovering: asyncio.Task[None] | None = None
    _begun: float = field(default_factory=time.monotonic)

    async def begin(self, replicas: Mapping[str, int]) -> None:
        """Start so many more of each service, then the load; returns once the town remembers."""
        await self.fleet.begin(replicas)
        self.load.begin()
        async with asyncio.timeout(RECOVERY_MOST_S):
            await self.load.known_since(0.0)

    @asynccontextmanager
    async def fault(self, name: str) -> AsyncIterator[None]:
        """Something is broken until the block ends; several may be at once."""
        _logger.info("fault: %s", name)
        self.faults.append(name)
        self._breaking += 1
        await self._stop_recovering()  # it counts from the end of the last of them
        try:
            yield
        finally:
            _logger.info("over: %s", name)
            self._breaking -= 1
            if not self._breaking:
                self._recovering = asyncio.create_task(self._recover())

    async def recovered(self) -> None:
        """Wait until what was published before the last fault ended is stored and embedded or
        parked, and recalls asked since are answered in full. Fails after RECOVERY_MOST_S."""
        assert not self._breaking, "still broken"
        if self._recovering is not None:
            await self._recovering

    async def close(self) -> None:
        """Wait for no recovery any more."""
        await self._stop_recovering()

    async def _stop_recovering(self) -> None:
        recovering, self._recovering = self._recovering, None
        if recovering is not None:
            recovering.cancel()
            [ended] = await asyncio.gather(recovering, return_exceptions=True)
            if isinstance(ended, AssertionError):
                raise ended

    async def lived(self, seconds: float) -> None:
        """Let the town live so long; fails as soon as the load does."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if (exc := self.load.failed) is not None:
                raise exc
            await asyncio.sleep(min(left, 0.1))

    async def _recover(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        before = {world: set(ticks) for world, ticks in self.ledger.confirmed.items()}
        waited_for = "recalls"
        try:
            async with asyncio.timeout(RECOVERY_MOST_S):
                await self.load.known_since(began_s)
                waited_for = "what was published"
                await self._until_settled(before)
        except TimeoutError:
            left = await unsettled(self.database, before)
            msg = f"{waited_for} not back {RECOVERY_MOST_S:g} s after {self.faults[-1]}: {left}"
            raise AssertionError(msg) from None
        self.recoveries.append(loop.time() - began_s)
        _logger.info("recovered in %.2f s", self.recoveries[-1])

    async def _until_settled(self, ticks: Mapping[str, set[int]]) -> None:
        while True:
            with contextlib.suppress(DatabaseUnavailable):
                if await unsettled(self.database, ticks) == 0:
                    return
            await asyncio.sleep(_LOOK_S)

    async def finish(self) -> None:
        """End the load once the town has recovered; return when all it published is settled."""
        if (exc := self.load.failed) is not None:
            raise exc
        await self.recovered()
        await self.load.stop_publishing(RECOVERY_MOST_S)
        async with asyncio.timeout(RECOVERY_MOST_S):
            await self._until_settled(self.ledger.confirmed)
            # Answers from all there is, too.
            await self.load.known_since(asyncio.get_running_loop().time())
        await self.load.stop_asking()

    async def judge(self) -> Verdict:
        """End the services, and hold the ledger against what is there. Tells the figures."""
        for service in SERVICES:
            await self.fleet.scale(service, 0)  # in order: what is unacknowledged shows itself
        there = await found(self.database, self.broker_settings)
        verdict = self.ledger.verdict(there)
        self.scenario.told.append(
            Figures(
                scenario=self.scenario.name,
                seed=self.scenario.seed,
                seconds=time.monotonic() - self._begun,
                events=self.ledger.events,
                deliveries=self.ledger.deliveries,
                memories=len(there.stored),
                faults=len(self.faults),
                recalls=len(self.ledger.recalls),
                recalls_ok=sum(recall.known for recall in self.ledger.recalls),
                lost=len(verdict.lost),
                duplicated=len(verdict.duplicated) + len(verdict.invented),
                wrong_agent=len(verdict.foreign),
                late=len(verdict.late),
                unfinished=len(verdict.unfinished),
                parked=there.parked,
                exits=len(self.fleet.exits),
                recovery_s=max(self.recoveries, default=0.0),
            )
        )
        return verdict


@asynccontextmanager
async def town(
    stack: Stack,
    scenario: Scenario,
    *,
    replicas: Mapping[str, int] | None = None,
    settings: Mapping[str, str] | None = None,
    pace: Pace | None = None,
    again: int = 0,
    shuffled: int = 1,
    doors: bool = False,
    may_exit: bool = False,
    migrated: bool = True,
    begin: bool = True,
) -> AsyncIterator[Town]:
    """A town that lives until the block ends, and then the ledger check; see the module.

    `replicas`: of each service, 1 unless told; `settings`: more TICKMIND_… variables for all;
    `again`, `shuffled`: see `Load`; `migrated`: whether its database has this release's schema;
    `begin` False: neither services nor load begin by themselves (`Town.begin`).
    """
    chance = random.Random(f"{scenario.seed} {scenario.name}")
    async with AsyncExitStack() as parts:
        database_settings = await stack.new_database(migrated=migrated)
        assert database_settings.database_url is not None
        broker_settings = await stack.new_virtual_host()
        database = Database(database_settings, application="chaos")
        parts.push_async_callback(database.dispose)
        provider = await parts.enter_async_context(running_provider(_PROVIDER))
        told = {
            **_SETTINGS,
            "TICKMIND_DATABASE_URL": database_settings.database_url.get_secret_value(),
            "TICKMIND_AMQP_URL": broker_settings.broker_url(),
            "TICKMIND_EMBEDDING_BASE_URL": provider.base_url,
            **(settings or {}),
        }
        engines_url = broker_settings.broker_url()
        network = None
        if doors:
            network = await parts.enter_async_context(open_doors(stack))
            told["TICKMIND_DATABASE_URL"] = network.database_url(database_settings)
            told["TICKMIND_AMQP_URL"] = network.services_url(broker_settings)
            engines_url = network.engines_url(broker_settings)
        logs = stack.state_dir / scenario.name
        logs.mkdir()
        fleet = Fleet(settings=told, state_dir=logs)
        parts.push_async_callback(fleet.close)
        clients = [
            await parts.enter_async_context(MemoryClient(engines_url)) for _ in range(_ENGINES)
        ]
        ledger = Ledger(policy=default_policy())
        load = Load(
            worlds=WORLDS,
            trace=scenario.trace,
            ledger=ledger,
            clients=clients,
            pace=pace or Pace(),
            random=chance,
            again=again,
            shuffled=shuffled,
        )
        parts.push_async_callback(load.close)
        running = Town(
            scenario=scenario,
            stack=stack,
            random=chance,
            database_settings=database_settings,
            broker_settings=broker_settings,
            database=database,
            provider=provider,
            fleet=fleet,
            ledger=ledger,
            load=load,
            doors=network,
            may_exit=may_exit,
        )
        parts.push_async_callback(running.close)
        if begin:
            await running.begin(dict.fromkeys(SERVICES, 1) | dict(replicas or {}))
        yield running
        await running.finish()
        verdict = await running.judge()
        assert verdict.sound, f"seed {scenario.seed}: {scenario.name}\n{verdict}"
        assert may_exit or not fleet.exits, f"seed {scenario.seed}: {fleet.exits}"
