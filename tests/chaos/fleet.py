"""The three services as processes, many of each: started, killed, replaced, scaled."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tickmind.local.environment import answers_ok, child_environment
from tickmind.local.ports import LOOPBACK, free_port, release_port
from tickmind.local.processes import Child, Command, uninterrupted

__all__ = ["ROOT", "SERVICES", "Fleet", "Replica", "environment"]

SERVICES = ("recorder", "embedder", "retriever")
ROOT = Path(__file__).parents[2]
#: Where the packages of a checkout lie.
_SOURCES = (
    "shared/src",
    "migrations/src",
    *(f"services/{service}/src" for service in SERVICES),
)

#: A replica is ready within 3 s on 2 idle cores; beside a whole town it takes several times that.
_READY_S = 60.0
#: An orderly end finishes what is in flight: an embedder's call (5 s at most, see `town`) above
#: all. Kubernetes gives 30 s.
_END_S = 30.0
#: Starts at once: each is 1 s of one core.
_STARTS = 2
#: Whether a replica ended by itself is looked at this often; one that did is started again after
#: as long, as a kubelet does.
_LOOK_S = 0.25


def environment(settings: Mapping[str, str], checkout: Path = ROOT) -> dict[str, str]:
    """What a Python of ours is told, so that it runs the code of a checkout."""
    sources = (*(checkout / source for source in _SOURCES), ROOT)
    # In front of the installed packages, which are this checkout's.
    return child_environment({**settings, "PYTHONPATH": os.pathsep.join(map(str, sources))})


@dataclass(eq=False, kw_only=True)
class Replica:
    """One process of a service. `meant_to_run`: nobody has stopped it."""

    service: str
    number: int
    port: int
    child: Child
    meant_to_run: bool = False

    def __str__(self) -> str:
        return f"{self.service}-{self.number}"

    async def ready(self) -> None:
        """Wait until /readyz says so. Raises StartFailed with the end of its log."""
        await self.child.ready(lambda: answers_ok(self.port, "/readyz"), timeout_s=_READY_S)

    async def kill(self) -> None:
        """SIGKILL, and wait until it is gone; nobody starts it again."""
        self.meant_to_run = False
        self.child.send(signal.SIGKILL)
        await self.child.wait()

    async def end(self) -> None:
        """SIGTERM; it must finish what it does and leave with 0."""
        self.meant_to_run = False
        self.child.send(signal.SIGTERM)
        code = await self.child.wait(_END_S)
        if code != 0:
            what = f"did not end within {_END_S:g} s" if code is None else f"ended with {code}"
            raise self.child.failure(f"was asked to end and {what}")


@dataclass(kw_only=True)
class Fleet:
    """Replicas by service. `settings`: TICKMIND_… variables of every replica; `state_dir`: where
    their logs go.

    A replica that ends by itself is started again, as a kubelet does; `exits` tells which, and the
    town's check fails for it unless the scenario says that services may end.
    """

    settings: Mapping[str, str]
    state_dir: Path
    replicas: dict[str, list[Replica]] = field(
        default_factory=lambda: {service: [] for service in SERVICES}
    )
    exits: list[str] = field(default_factory=list)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_STARTS))
    _watching: asyncio.Task[None] | None = None

    @property
    def all(self) -> Sequence[Replica]:
        return [replica for replicas in self.replicas.values() for replica in replicas]

    async def add(
        self,
        service: str,
        *,
        settings: Mapping[str, str] | None = None,
        checkout: Path | None = None,
        through: Sequence[str] = (),
    ) -> Replica:
        """Start one more replica and wait until it is ready.

        `settings`: on top of the fleet's; `checkout`: the tree whose code it runs, if not this
        one; `through`: a module that runs the service's, `python -m THROUGH tickmind_SERVICE`.
        """
        replica = self._new(service, settings or {}, checkout or ROOT, through)
        self.replicas[service].append(replica)
        await self.start(replica)
        return replica

    async def start(self, replica: Replica) -> None:
        """Start a replica, again if it was killed, and wait until it is ready."""
        async with self._gate:
            await replica.child.start()
            replica.meant_to_run = True
            await replica.ready()

    async def remove(self, replica: Replica) -> None:
        """End a replica in order, for good."""
        self.replicas[replica.service].remove(replica)
        try:
            await replica.end()
        finally:
            await self._finish(replica)

    async def scale(self, service: str, replicas: int) -> None:
        """As many as that, all of them ready; who is too many ends in order."""
        while len(self.replicas[service]) > replicas:
            await self.remove(self.replicas[service][-1])
        missing = replicas - len(self.replicas[service])
        await asyncio.gather(*(self.add(service) for _ in range(missing)))

    async def begin(self, counts: Mapping[str, int]) -> None:
        """Start so many of each, and from now on start again whoever ends by itself."""
        await asyncio.gather(*(self.scale(service, count) for service, count in counts.items()))
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """End all there are, however they are."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        left, self.replicas = self.all, {service: [] for service in SERVICES}
        await asyncio.gather(*(self._finish(replica) for replica in left))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            for replica in self.all:
                if replica.meant_to_run and not replica.child.running:
                    lines = replica.child.log_tail()
                    self.exits.append(f"{replica} ended by itself: {' | '.join(lines[-3:])}")
                    await replica.child.start()

    async def _finish(self, replica: Replica) -> None:
        replica.meant_to_run = False
        await uninterrupted(replica.child.stop())
        with contextlib.suppress(KeyError):
            release_port(replica.port)

    def _new(
        self,
        service: str,
        settings: Mapping[str, str],
        checkout: Path,
        through: Sequence[str],
    ) -> Replica:
        number, port = next(self._numbers), free_port()
        name = f"{service}-{number}"
        told = {
            **self.settings,
            **settings,
            "TICKMIND_HEALTH_HOST": LOOPBACK,
            "TICKMIND_HEALTH_PORT": str(port),
        }
        command = Command(
            name=name,
            argv=(sys.executable, "-m", *through, f"tickmind_{service}"),
            env=environment(told, checkout),
            cwd=checkout,
            log_path=self.state_dir / f"{name}.log",
            pid_path=self.state_dir / f"{name}.pid",
            grace_s=_END_S,
        )
        return Replica(service=service, number=number, port=port, child=Child(command))
