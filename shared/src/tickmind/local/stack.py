"""The whole of tickmind on one machine: started together, ended together, data kept."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tickmind.local.embedding_server import DIMENSIONS, MODEL, PASSAGE_PREFIX, QUERY_PREFIX
from tickmind.local.environment import answers_ok, child_environment
from tickmind.local.locking import exclusive
from tickmind.local.ports import LOOPBACK, free_port, release_port
from tickmind.local.postgres import LocalPostgres, running_postgres
from tickmind.local.process_tree import stop_orphans
from tickmind.local.processes import Child, Command, run, uninterrupted
from tickmind.local.rabbitmq import LocalRabbitmq, running_rabbitmq
from tickmind.local.rabbitmq_install import ensure_rabbitmq
from tickmind.local.signals import patient, termination_cancels
from tickmind.local.state_dir import PARTS, prepare, wipe

__all__ = ["EMBEDDING", "POSTGRES", "RABBITMQ", "SERVICES", "LocalStack", "local_stack"]

#: The services, in the order of an event's path.
SERVICES = ("recorder", "embedder", "retriever")

#: The parts below them, by the names that `kill`, `stop_service` and `start_service` take too.
POSTGRES, RABBITMQ, EMBEDDING = "postgres", "rabbitmq", "embedding"

#: Measured on 2 busy cores that start everything at once: the embedding server 1.4 s, the
#: migrations 1.5 s, the services 4 s; with a load of 18 more than 60 s. What ends is told at once,
#: so a long wait costs only where a process hangs, and there is Ctrl-C.
READY_TIMEOUT_S = 180.0
MIGRATION_TIMEOUT_S = 180.0

#: What a service does on SIGTERM is to finish its requests in flight.
SERVICE_GRACE_S = 15.0

#: Signals that no process ends by.
PAUSES = (signal.SIGSTOP, signal.SIGCONT)

#: How soon a process that ended by itself is noticed.
WATCH_S = 0.5


def command_of(process: str) -> tuple[str, ...]:
    """The command that runs a service or `migrations`: its package as a module."""
    return (sys.executable, "-m", f"tickmind_{process}")


class LocalStack:
    """A running stack: where its parts are, and the handles to break and mend them.

    A process is named by its service and, for further replicas, a number: `recorder`, 1.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        settings: Mapping[str, str],
        commands: Callable[[str], Sequence[str]],
        report: Callable[[str], None],
    ) -> None:
        self.state_dir = state_dir
        self.log_dir = state_dir / "logs"
        self._settings = settings
        self._commands = commands
        self._report = report
        self._postgres: LocalPostgres | None = None
        self._rabbitmq: LocalRabbitmq | None = None
        self._children: dict[str, Child] = {}
        self._ports: dict[str, int] = {}
        self._meant_to_end: set[str] = set()

    @property
    def postgres(self) -> LocalPostgres:
        if self._postgres is None:
            raise RuntimeError("PostgreSQL is not started yet")
        return self._postgres

    @property
    def rabbitmq(self) -> LocalRabbitmq:
        if self._rabbitmq is None:
            raise RuntimeError("RabbitMQ is not started yet")
        return self._rabbitmq

    @property
    def database_url(self) -> str:
        return self.postgres.url

    @property
    def amqp_url(self) -> str:
        return self.rabbitmq.url

    @property
    def embedding_base_url(self) -> str:
        """Base URL for an OpenAI client."""
        return f"http://{LOOPBACK}:{self._port(EMBEDDING)}/v1"

    @property
    def health_urls(self) -> dict[str, str]:
        """By process: the URL below which its health endpoints are."""
        return {
            name: f"http://{LOOPBACK}:{port}"
            for name, port in self._ports.items()
            if name != EMBEDDING
        }

    @property
    def settings(self) -> dict[str, str]:
        """What every service of this stack is told, as environment variables."""
        return {
            "TICKMIND_DATABASE_URL": self.database_url,
            "TICKMIND_AMQP_URL": self.amqp_url,
            "TICKMIND_EMBEDDING_BASE_URL": self.embedding_base_url,
            "TICKMIND_EMBEDDING_MODEL": MODEL,
            "TICKMIND_EMBEDDING_PROFILE": "openai-compatible",
            "TICKMIND_EMBEDDING_DIMENSIONS": str(DIMENSIONS),
            "TICKMIND_EMBEDDING_DOCUMENT_PREFIX": PASSAGE_PREFIX,
            "TICKMIND_EMBEDDING_QUERY_PREFIX": QUERY_PREFIX,
            "TICKMIND_EMBEDDING_API_KEY": "local",
            **self._settings,
        }

    def pid(self, service: str, replica: int = 0) -> int:
        return self._child(service, replica).pid

    def kill(
        self, service: str, number: signal.Signals = signal.SIGKILL, *, replica: int = 0
    ) -> None:
        """Send a signal to a process: SIGKILL for a crash, SIGSTOP for a hang, SIGCONT after it."""
        if number not in PAUSES:
            self._meant_to_end.add(_process(service, replica))
        self._child(service, replica).send(number)

    async def ended(self, service: str, replica: int = 0) -> int:
        """Wait for the end of a process; its exit code, negative for the signal that ended it."""
        code = await self._child(service, replica).wait()
        assert code is not None
        return code

    async def start_service(
        self, service: str, replica: int = 0, *, settings: Mapping[str, str] | None = None
    ) -> None:
        """Start a process, an ended one again or a further replica, and wait until it is ready.

        `settings`: environment variables on top of the stack's. Raises StartFailed.
        """
        process = _process(service, replica)
        self._meant_to_end.add(process)
        if service == POSTGRES:
            await self.postgres.start()
        elif service == RABBITMQ:
            await self.rabbitmq.start()
        elif service == EMBEDDING:
            port = str(self._port(EMBEDDING))
            server = (sys.executable, "-m", "tickmind.local.embedding_server", "--port", port)
            await self._serve(process, server, {}, "/healthz")
        else:
            health = {
                "TICKMIND_HEALTH_HOST": LOOPBACK,
                "TICKMIND_HEALTH_PORT": str(self._port(process)),
            }
            told = {**self.settings, **health, **(settings or {})}
            await self._serve(process, self._commands(service), told, "/readyz")
        self._meant_to_end.discard(process)

    async def stop_service(self, service: str, replica: int = 0) -> None:
        """End a process in order, and all it started."""
        self._meant_to_end.add(_process(service, replica))
        await self._child(service, replica).stop()

    async def restart_rabbitmq(self) -> None:
        """Stop and start the broker; its port and its durable queues stay."""
        await self.stop_service(RABBITMQ)
        await self.start_service(RABBITMQ)

    async def failed(self) -> None:
        """Wait until a process ends that nobody ended here; raises StartFailed with its log."""
        while True:
            for process in (POSTGRES, RABBITMQ, *self._children):
                child = self._child(process)
                if not child.running and process not in self._meant_to_end:
                    raise child.failure("ended unexpectedly")
            await asyncio.sleep(WATCH_S)

    async def _start(
        self, services: Sequence[str], servers: AsyncExitStack, *, durable: bool
    ) -> None:
        """Everything, what does not need each other at the same time."""

        async def postgres() -> None:
            server = running_postgres(
                self.state_dir / "postgres",
                durable=durable,
                log_path=self.log_dir / "postgres.log",
            )
            self._postgres = await servers.enter_async_context(server)

        async def rabbitmq() -> None:
            server = running_rabbitmq(self.state_dir / "rabbitmq", log_dir=self.log_dir)
            self._rabbitmq = await servers.enter_async_context(server)

        await _together(
            self._reported("PostgreSQL", postgres()),
            self._reported("RabbitMQ", rabbitmq()),
            self._reported("Embedding model", self.start_service(EMBEDDING)),
        )
        await self._reported("Tables", self._migrate())
        await _together(
            *(
                self._reported(service.capitalize(), self.start_service(service))
                for service in services
            )
        )

    async def _stop(self) -> None:
        """The services and the embedding server; PostgreSQL and RabbitMQ end after them."""
        await asyncio.gather(*(child.stop() for child in self._children.values()))
        for port in self._ports.values():
            release_port(port)

    async def _migrate(self) -> None:
        command = self._command("migrations", self._commands("migrations"), self.settings)
        await run(command, timeout_s=MIGRATION_TIMEOUT_S)

    async def _serve(
        self, process: str, argv: Sequence[str], settings: Mapping[str, str], path: str
    ) -> None:
        child = Child(self._command(process, argv, settings))
        self._children[process] = child
        await child.start()
        port = self._port(process)
        await child.ready(lambda: answers_ok(port, path), timeout_s=READY_TIMEOUT_S)

    def _command(self, process: str, argv: Sequence[str], settings: Mapping[str, str]) -> Command:
        return Command(
            name=process,
            argv=tuple(argv),
            env=child_environment(settings),
            cwd=Path.cwd(),
            log_path=self.log_dir / f"{process}.log",
            pid_path=self.state_dir / "run" / f"child-{process}.pid",
            grace_s=SERVICE_GRACE_S,
        )

    async def _reported(self, part: str, starting: Coroutine[Any, Any, None]) -> None:
        begun = time.monotonic()
        await starting
        self._report(f"{part} ready ({time.monotonic() - begun:.1f} s)")

    def _port(self, process: str) -> int:
        if process not in self._ports:
            self._ports[process] = free_port()
        return self._ports[process]

    def _child(self, service: str, replica: int = 0) -> Child:
        process = _process(service, replica)
        children = {
            POSTGRES: self.postgres.child,
            RABBITMQ: self.rabbitmq.child,
            **self._children,
        }
        child = children.get(process)
        if child is None:
            raise KeyError(f"there is no process {process} in this stack")
        return child


@asynccontextmanager
async def local_stack(
    state_dir: Path,
    *,
    services: Sequence[str] = SERVICES,
    fresh: bool = False,
    durable: bool = True,
    assume_yes: bool = False,
    ask: Callable[[str], bool] | None = None,
    report: Callable[[str], None] = lambda line: None,
    settings: Mapping[str, str] | None = None,
    commands: Callable[[str], Sequence[str]] = command_of,
) -> AsyncIterator[LocalStack]:
    """PostgreSQL, RabbitMQ, the embedding model, the tables and the services, all ready.

    Everything ends on leaving, on Ctrl-C and on SIGTERM (then with SystemExit); the data are kept
    for the next time, or wiped first with `fresh`. `durable`: whether they survive a crash of the
    machine. `assume_yes` and `ask`: about installing RabbitMQ where it is missing. `report` is
    told in words what is ready. `settings`: further environment variables of every service.
    `commands`: what to run for a service and for `migrations`.

    Raises ConfigurationError (RabbitMQ missing, the directory in use or not to be written) and
    StartFailed, which shows the last lines of the log of what did not start.
    """
    state_dir = state_dir.absolute()
    with termination_cancels():
        prepare(state_dir)
        sentence = (
            f"A stack is running already in {state_dir}, started by process {{pid}}: "
            "stop that one or choose another state directory."
        )
        with exclusive(state_dir / "lock", sentence):
            await ensure_rabbitmq(assume_yes, ask, report=report)
            await stop_orphans(state_dir / part for part in PARTS)
            if fresh:
                await asyncio.to_thread(wipe, state_dir)
            stack = LocalStack(state_dir, settings=settings or {}, commands=commands, report=report)
            servers = AsyncExitStack()
            try:
                await stack._start(services, servers, durable=durable)
                yield stack
            finally:
                with patient(lambda: report("Stopping; this takes a few seconds.")):
                    await uninterrupted(_end(stack, servers))


async def _end(stack: LocalStack, servers: AsyncExitStack) -> None:
    try:
        await stack._stop()
    finally:
        await servers.aclose()


async def _together(*starting: Coroutine[Any, Any, None]) -> None:
    """Run all at the same time; the first failure cancels the others and is raised as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in starting:
                group.create_task(one)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


def _process(service: str, replica: int) -> str:
    return f"{service}-{replica}" if replica else service
