"""The Docker engine that the tests use: one that runs here already, or one of their own."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tests.containers.commands import Ended, missing, run
from tickmind.local.processes import Child, Command, uninterrupted

__all__ = ["Engine", "running_engine"]

#: An engine of one's own starts in 2 s on 2 cores.
_READY_TIMEOUT_S = 60.0
_STOP_S = 30.0


class Engine:
    """A running engine. `own`: nobody else uses it."""

    def __init__(self, client: str, host: str | None, *, own: bool) -> None:
        self.own = own
        self._client = client
        kept = {key: value for key, value in os.environ.items() if not _misleads(key)}
        self.env: Mapping[str, str] = {
            **kept,
            "DOCKER_BUILDKIT": "1",
            **({"DOCKER_HOST": host} if host else {}),
        }

    async def docker(self, *arguments: str, timeout_s: float = 120.0, check: bool = True) -> Ended:
        """Run the command-line client; fails the test if it fails, unless told not to check."""
        return await run([self._client, *arguments], env=self.env, timeout_s=timeout_s, check=check)

    async def answers(self) -> bool:
        return (await self.docker("version", check=False)).code == 0


def _misleads(variable: str) -> bool:
    """What the developer's shell says to Compose or the services must not reach a test."""
    return variable.startswith(("COMPOSE_", "TICKMIND_", "POSTGRES_", "RABBITMQ_"))


@asynccontextmanager
async def running_engine(root: Path) -> AsyncIterator[Engine]:
    """An engine: the one that answers here, else one of our own whose data are below `root`.

    A second one is never started beside another: they would fight over bridges and firewall.
    """
    # Debian's client speaks to Debian's engine; another on PATH may need a newer one.
    client = "/usr/bin/docker" if Path("/usr/bin/docker").exists() else shutil.which("docker")
    if client is None:
        missing("no docker on PATH: install Docker (Debian: docker.io)")
    engine = Engine(client, None, own=False)
    if await engine.answers():
        yield engine
        return
    if shutil.which("dockerd") is None or os.geteuid() != 0:
        missing("no Docker engine answers, and to start one takes dockerd (docker.io) and root")
    root.mkdir(parents=True, exist_ok=True)
    socket = root / "docker.sock"
    daemon = Child(
        Command(
            name="dockerd",
            argv=(
                "dockerd",
                *("--data-root", str(root / "data"), "--exec-root", str(root / "exec")),
                *("--pidfile", str(root / "docker.pid"), "--host", f"unix://{socket}"),
                # The firewall of this machine stays as it is; images are built on its network.
                f"--iptables={str(await _forwarding_is_closed()).lower()}",
            ),
            env=dict(os.environ),
            cwd=root,
            log_path=root / "dockerd.log",
            pid_path=root / "child.pid",
            grace_s=_STOP_S,
        )
    )
    engine = Engine(client, f"unix://{socket}", own=True)
    await daemon.start()
    try:
        await daemon.ready(engine.answers, timeout_s=_READY_TIMEOUT_S)
        await _empty(engine)
        yield engine
        await _empty(engine)
    finally:
        await uninterrupted(daemon.stop())


async def _empty(engine: Engine) -> None:
    """Remove everything but images: also what an earlier run could not, as it was killed."""
    left = (await engine.docker("ps", "--all", "--quiet")).out.split()
    if left:
        await engine.docker("rm", "--force", "--volumes", *left)
    for kind in ("network", "volume"):
        await engine.docker(kind, "prune", "--force")


async def _forwarding_is_closed() -> bool:
    """Whether packets between bridged containers need rules of the engine's own to pass."""
    if shutil.which("iptables") is None:
        return False
    listed = await run(["iptables", "--list-rules", "FORWARD"], check=False)
    return "-P FORWARD DROP" in listed.out
