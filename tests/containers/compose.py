"""docker-compose.yml at work, in a project of the tests' own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import SecretStr

from tests.containers.commands import Ended, run
from tests.containers.engine import Engine
from tests.e2e.documents import ROOT
from tickmind.database import Database
from tickmind.settings import DatabaseSettings

__all__ = ["LOOPBACK", "PASSWORDS", "Compose", "env_file"]

#: The variables of .env.example that are to be filled in.
PASSWORDS = tuple(
    line.removesuffix("=")
    for line in (ROOT / ".env.example").read_text(encoding="utf-8").splitlines()
    if line.endswith("_PASSWORD=")
)

LOOPBACK = "127.0.0.1"


def env_file(settings: Mapping[str, str]) -> str:
    """.env.example with these values: in place where it has the variable, else at its end."""
    lines = (ROOT / ".env.example").read_text(encoding="utf-8").splitlines()
    left = dict(settings)
    for number, line in enumerate(lines):
        name = line.partition("=")[0]
        if name in left:
            lines[number] = f"{name}='{left.pop(name)}'"
    return "\n".join([*lines, *(f"{name}='{value}'" for name, value in left.items()), ""])


class Compose:
    """One project: the compose file in a directory of its own, with its .env."""

    def __init__(
        self, engine: Engine, argv: list[str], directory: Path, settings: Mapping[str, str]
    ) -> None:
        self.engine = engine
        self.settings = dict(settings)
        self._argv = argv
        self._directory = directory
        shutil.copy(ROOT / "docker-compose.yml", directory)
        files = Path("charts", "tickmind", "files")
        shutil.copytree(ROOT / files, directory / files)
        (directory / ".env").write_text(env_file(settings), encoding="utf-8")

    async def __call__(
        self, *arguments: str, timeout_s: float = 180.0, check: bool = True
    ) -> Ended:
        """Run a command of Compose; fails the test if it fails, unless told not to check."""
        return await run(
            [*self._argv, *arguments],
            env=self.engine.env,
            cwd=self._directory,
            timeout_s=timeout_s,
            check=check,
        )

    async def up(self, *arguments: str) -> None:
        """Start what is not running, with the images that were built, and wait for health."""
        try:
            await self("up", "--no-build", "--wait", "--wait-timeout", "150", *arguments)
        except AssertionError as fault:
            fault.add_note((await self("logs", "--tail", "20", check=False)).out)
            raise

    async def containers(self, *services: str) -> list[str]:
        """The ids of the containers, stopped ones too, of these services or of all."""
        return (await self("ps", "--all", "--quiet", *services)).out.split()

    async def inspected(self, *services: str) -> list[dict[str, Any]]:
        """What the engine knows of those containers."""
        ids = await self.containers(*services)
        found: list[dict[str, Any]] = json.loads((await self.engine.docker("inspect", *ids)).out)
        return found

    async def health_ports(self, service: str) -> list[int]:
        """The ports of this machine on which the service's containers tell of their health."""
        return [
            int(bound["HostPort"])
            for container in await self.inspected(service)
            for bound in container["NetworkSettings"]["Ports"].get("8080/tcp") or []
        ]

    def amqp_url(self) -> str:
        password = quote(self.settings["RABBITMQ_ENGINE_PASSWORD"], safe="")
        return f"amqp://engine:{password}@{LOOPBACK}:{self.settings['RABBITMQ_HOST_PORT']}"

    def database(self, name: str = "tickmind") -> Database:
        """A pool on a database of the project's PostgreSQL, from this machine."""
        settings = DatabaseSettings(
            database_host=LOOPBACK,
            database_name=name,
            database_port=int(self.settings["POSTGRES_HOST_PORT"]),
            database_password=SecretStr(self.settings["POSTGRES_OWNER_PASSWORD"]),
            database_pool_timeout_s=30.0,
        )
        return Database(settings, application="test")
