"""The servers a benchmark runs on, its own and gone afterwards, and processes beside them."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from tickmind.local.environment import answers_ok, child_environment
from tickmind.local.ports import LOOPBACK, free_port, release_port
from tickmind.local.postgres import LocalPostgres, running_postgres
from tickmind.local.processes import Child, Command, uninterrupted
from tickmind.local.rabbitmq import LocalRabbitmq, running_rabbitmq
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind_migrations import upgrade

__all__ = ["Stack", "running_database", "running_stack"]

#: A service starts within 3 s on 2 idle cores, the embedding server too.
_READY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A migrated PostgreSQL and a RabbitMQ. `state_dir`: for what else a benchmark writes."""

    postgres: LocalPostgres
    rabbitmq: LocalRabbitmq
    state_dir: Path

    @property
    def database_settings(self) -> DatabaseSettings:
        return DatabaseSettings(database_url=SecretStr(self.postgres.url))

    @property
    def broker_settings(self) -> BrokerSettings:
        return BrokerSettings(amqp_url=SecretStr(self.rabbitmq.url))

    @property
    def service_settings(self) -> dict[str, str]:
        """What every service is told, as environment variables."""
        return {
            "TICKMIND_DATABASE_URL": self.postgres.url,
            "TICKMIND_AMQP_URL": self.rabbitmq.url,
            "TICKMIND_LOG_LEVEL": "warning",
            "TICKMIND_HEALTH_HOST": LOOPBACK,
            "TICKMIND_HEALTH_PORT": "0",
        }

    @asynccontextmanager
    async def service(
        self, name: str, settings: Mapping[str, str], *, instance: str = ""
    ) -> AsyncIterator[int]:
        """A service of tickmind as a process, once it is ready; its pid.

        `settings`: TICKMIND_… variables; else it has its defaults. `instance`: tells processes of
        one service that run at the same time apart.
        """
        told = {**self.service_settings, **settings}
        async with self.server(
            f"tickmind_{name}", settings=told, path="/readyz", instance=instance
        ) as (pid, _):
            yield pid

    @asynccontextmanager
    async def server(
        self,
        module: str,
        arguments: Sequence[str] = (),
        *,
        settings: Mapping[str, str],
        path: str,
        instance: str = "",
    ) -> AsyncIterator[tuple[int, int]]:
        """A module that serves HTTP, as a process; (its pid, its port) once `path` answers.

        `{port}` in an argument becomes the port; services are told by TICKMIND_HEALTH_PORT.
        """
        port = free_port()
        told = {**settings, "TICKMIND_HEALTH_PORT": str(port)}
        filled = [argument.replace("{port}", str(port)) for argument in arguments]
        child = self._child(module, filled, told, instance)
        try:
            await child.start()
            await child.ready(lambda: answers_ok(port, path), timeout_s=_READY_S)
            yield child.pid, port
        finally:
            await uninterrupted(child.stop())
            release_port(port)

    @asynccontextmanager
    async def process(
        self, module: str, arguments: Sequence[str] = (), *, settings: Mapping[str, str]
    ) -> AsyncIterator[Child]:
        """A module as a process, just started, ended in order when the block ends."""
        child = self._child(module, arguments, settings)
        try:
            await child.start()
            yield child
        finally:
            await uninterrupted(child.stop())

    def _child(
        self, module: str, arguments: Sequence[str], settings: Mapping[str, str], instance: str = ""
    ) -> Child:
        name = f"{module}-{instance}" if instance else module
        return Child(
            Command(
                name=name,
                argv=(sys.executable, "-m", module, *arguments),
                env=child_environment(settings),
                cwd=Path(__file__).parents[1],
                log_path=self.state_dir / f"{name}.log",
                pid_path=self.state_dir / f"child-{name}.pid",
            )
        )


@asynccontextmanager
async def running_stack() -> AsyncIterator[Stack]:
    """A stack in a temporary directory, wiped afterwards. Durable, as in production: a commit
    waits for the disk, whoever makes it.

    Raises StartFailed or ConfigurationError where a server does not start.
    """
    # /var/tmp: a real disk that the servers' system users can reach.
    state_dir = Path(tempfile.mkdtemp(prefix="tickmind-bench-", dir="/var/tmp"))
    state_dir.chmod(0o755)
    try:
        async with (
            running_postgres(state_dir / "postgres", durable=True) as postgres,
            running_rabbitmq(state_dir / "rabbitmq") as rabbitmq,
        ):
            stack = Stack(postgres=postgres, rabbitmq=rabbitmq, state_dir=state_dir)
            await upgrade(stack.database_settings, lambda _: None)
            yield stack
    finally:
        shutil.rmtree(state_dir, ignore_errors=True)


@asynccontextmanager
async def running_database() -> AsyncIterator[DatabaseSettings]:
    """A migrated PostgreSQL alone, wiped afterwards; for what is not about writing: not durable."""
    state_dir = Path(tempfile.mkdtemp(prefix="tickmind-bench-", dir="/var/tmp"))
    state_dir.chmod(0o755)
    try:
        async with running_postgres(state_dir / "postgres", durable=False) as postgres:
            settings = DatabaseSettings(database_url=SecretStr(postgres.url))
            await upgrade(settings, lambda _: None)
            yield settings
    finally:
        shutil.rmtree(state_dir, ignore_errors=True)
