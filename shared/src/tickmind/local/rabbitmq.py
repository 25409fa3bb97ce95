"""A private RabbitMQ: its own ports on loopback, its own directory, its own Erlang name server."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aio_pika

from tickmind.errors import ConfigurationError
from tickmind.local.locking import exclusive
from tickmind.local.ports import LOOPBACK, free_port, release_port
from tickmind.local.processes import Child, Command, StartFailed, uninterrupted
from tickmind.local.rabbitmq_install import ensure_rabbitmq, find_rabbitmq, install_command

__all__ = [
    "LocalRabbitmq",
    "ensure_rabbitmq",
    "find_rabbitmq",
    "install_command",
    "running_rabbitmq",
]

#: The same on every machine, so that the data may be moved; its name server is private, so it
#: meets no other node. The host part must resolve, by our own hosts file, to loopback.
NODE = "tickmind@localhost"

#: Measured on 2 cores: 4 s, 6 s when both are busy, 70 s with a load of 18.
START_TIMEOUT_S = 180.0

#: Measured: 1 s; queues with many messages take longer to close.
STOP_GRACE_S = 20.0

#: One rabbitmqctl command starts an Erlang of its own, some 2 s.
CTL_TIMEOUT_S = 60.0

#: How long epmd may take from start to listening (measured: 10 ms).
EPMD_TIMEOUT_S = 10.0


@dataclass(slots=True, kw_only=True)
class LocalRabbitmq:
    """One RabbitMQ node with the user guest (password guest), which may come from loopback only.

    `settings`: lines of its rabbitmq.conf beside ours.
    """

    server: Path
    data_dir: Path
    port: int
    distribution_port: int
    epmd_port: int
    log_dir: Path
    settings: Sequence[str] = ()
    _epmd: Child | None = field(default=None, repr=False)
    _child: Child | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """AMQP URL; without a path, which means the virtual host `/` (RabbitMQ's URI spec)."""
        return f"amqp://guest:guest@{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the Erlang machine that is the broker."""
        if self._child is None:
            raise RuntimeError("RabbitMQ was never started")
        return self._child.pid

    @property
    def child(self) -> Child | None:
        """The broker process, for those who watch over it."""
        return self._child

    async def start(self) -> None:
        """Start the broker and wait until it accepts an AMQP connection; raises StartFailed."""
        self._forget_unfinished()
        self._write_configuration()
        if self._epmd is None or not self._epmd.running:
            # Ours to end. Erlang would start one that stays behind after the broker.
            epmd = ("-port", str(self.epmd_port), "-address", LOOPBACK)
            self._epmd = Child(self._command("epmd", (str(_epmd_program()), *epmd)))
            await self._epmd.start()
            await self._epmd.ready(self._epmd_listens, timeout_s=EPMD_TIMEOUT_S)
        if self._child is None:
            self._child = Child(self._command("RabbitMQ", (str(self.server),)))
        await self._child.start()
        await self._child.ready(
            self._accepts,
            timeout_s=START_TIMEOUT_S,
            hint="Data of another RabbitMQ version are one reason: begin anew with --fresh.",
        )
        self._begun.touch()

    async def stop(self) -> None:
        """End the broker and its name server; durable queues and their messages stay."""
        await self.stop_broker()
        if self._epmd is not None:
            await self._epmd.stop()

    async def stop_broker(self) -> None:
        """End the broker alone, to be started again."""
        if self._child is not None:
            await self._child.stop()

    async def restart(self) -> None:
        """Stop and start the broker on the same port with the same data."""
        await self.stop_broker()
        await self.start()

    async def rabbitmqctl(self, *arguments: str) -> str:
        """What `rabbitmqctl ARGUMENTS` prints about this broker; raises StartFailed if it fails."""
        program = self.server.with_name("rabbitmqctl")
        process = await asyncio.create_subprocess_exec(
            str(program),
            "--quiet",
            *arguments,
            env=self._environment,
            cwd=self.data_dir,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(CTL_TIMEOUT_S):
                output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise StartFailed(
                f"rabbitmqctl {' '.join(arguments)} failed with exit code {process.returncode}: "
                f"{errors.decode().strip()}"
            )
        return output.decode()

    @property
    def _environment(self) -> dict[str, str]:
        """All the broker and rabbitmqctl are told, and nothing of a machine-wide RabbitMQ's."""
        base = self.data_dir
        loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            # Where Erlang keeps its cookie, the password between node and rabbitmqctl.
            "HOME": str(base / "home"),
            # Resolving the machine's name by DNS alone costs some 5 s at start.
            "ERL_INETRC": str(base / "inetrc"),
            "ERL_EPMD_PORT": str(self.epmd_port),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            # No core-sized dump for a broker that a test kills.
            "ERL_CRASH_DUMP_SECONDS": "0",
            # Makes the start script become Erlang instead of staying as its parent, as the comment
            # in that script says; nothing else reads it.
            "RUNNING_UNDER_SYSTEMD": "true",
            "RABBITMQ_NODENAME": NODE,
            "RABBITMQ_DIST_PORT": str(self.distribution_port),
            "RABBITMQ_CONF_ENV_FILE": str(base / "rabbitmq-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(base / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(base / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(base / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(base / "data"),
            "RABBITMQ_LOG_BASE": str(base / "log"),
            "RABBITMQ_PID_FILE": str(base / "rabbitmq.pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{loopback} -start_epmd false",
            "RABBITMQ_CTL_ERL_ARGS": f"{loopback} -start_epmd false",
        }

    @property
    def _begun(self) -> Path:
        """Marks data of a broker that was ready once, and so may have been given messages."""
        return self.data_dir / "begun"

    def _forget_unfinished(self) -> None:
        """Remove what a first start, killed before it was ready, left: RabbitMQ would refuse it
        (schema_integrity_check_failed)."""
        data = self.data_dir / "data"
        if data.exists() and not self._begun.exists():
            shutil.rmtree(data)

    def _write_configuration(self) -> None:
        (self.data_dir / "home").mkdir(exist_ok=True)
        files = {
            "rabbitmq.conf": "\n".join(
                (
                    f"listeners.tcp.loopback = {LOOPBACK}:{self.port}",
                    "log.console = true",
                    "log.console.level = info",
                    "log.console.use_colors = off",
                    "log.file = false",
                    # RabbitMQ's own default, whatever a packager has made of it.
                    "disk_free_limit.absolute = 50MB",
                    *self.settings,
                )
            ),
            "rabbitmq-env.conf": "",
            "enabled_plugins": "[].",
            # inet(3), "Erlang's own hosts file": only these names, never DNS.
            "inetrc": "\n".join(
                (
                    "{lookup, [file]}.",
                    f'{{host, {{127,0,0,1}}, ["localhost", "{_erlang(socket.gethostname())}"]}}.',
                )
            ),
        }
        for name, text in files.items():
            (self.data_dir / name).write_text(f"{text}\n")
        (self.data_dir / "port").write_text(f"{self.port}\n")

    def _command(self, name: str, argv: tuple[str, ...]) -> Command:
        return Command(
            name=name,
            argv=argv,
            env=self._environment,
            cwd=self.data_dir,
            log_path=self.log_dir / f"{name.lower()}.log",
            pid_path=self.data_dir / f"child-{name.lower()}.pid",
            grace_s=STOP_GRACE_S,
        )

    async def _accepts(self) -> bool:
        if not await _listens(self.port):
            return False
        try:
            connection = await aio_pika.connect(self.url, timeout=10)
        except (aio_pika.exceptions.AMQPError, OSError, TimeoutError):
            return False
        await connection.close()
        return True

    async def _epmd_listens(self) -> bool:
        return await _listens(self.epmd_port)


@asynccontextmanager
async def running_rabbitmq(
    data_dir: Path, *, log_dir: Path | None = None, settings: Sequence[str] = ()
) -> AsyncIterator[LocalRabbitmq]:
    """A RabbitMQ node on `data_dir`, ended on leaving; its data, and its port where that is still
    free, are kept for the next time. `settings`: lines of rabbitmq.conf beside ours.

    Raises ConfigurationError when RabbitMQ is not installed (see `ensure_rabbitmq`) or runs there
    already, StartFailed when it does not start.
    """
    server = find_rabbitmq()
    if server is None:
        how = install_command()
        raise ConfigurationError(
            "RabbitMQ is not installed: "
            + (f"type `{how}`." if how else "install it so that rabbitmq-server is on PATH.")
        )
    data_dir = data_dir.absolute()
    data_dir.mkdir(parents=True, exist_ok=True)
    sentence = (
        f"RabbitMQ is running already in {data_dir}, started by process {{pid}}: "
        "stop that one or choose another directory."
    )
    with exclusive(data_dir / "lock", sentence):
        broker = LocalRabbitmq(
            server=server,
            data_dir=data_dir,
            port=free_port(_last_port(data_dir)),
            distribution_port=free_port(),
            epmd_port=free_port(),
            log_dir=log_dir or data_dir,
            settings=settings,
        )
        try:
            await broker.start()
            yield broker
        finally:
            await uninterrupted(broker.stop())
            for port in (broker.port, broker.distribution_port, broker.epmd_port):
                release_port(port)


def _last_port(data_dir: Path) -> int | None:
    try:
        return int((data_dir / "port").read_text())
    except (FileNotFoundError, ValueError):
        return None


def _epmd_program() -> Path:
    """Erlang's port mapper, beside the `erl` that RabbitMQ will find on PATH."""
    erl, epmd = shutil.which("erl"), shutil.which("epmd")
    if erl is not None:
        root = Path(erl).resolve().parent.parent
        for candidate in (root / "bin" / "epmd", *sorted(root.glob("erts-*/bin/epmd"))):
            if os.access(candidate, os.X_OK):
                return candidate
    if epmd is not None:
        return Path(epmd)
    raise ConfigurationError(
        "RabbitMQ needs Erlang with its program epmd, and there is none on PATH: "
        "put the directory of `erl` and `epmd` on PATH and try again."
    )


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        return False
    writer.close()
    return True


def _erlang(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
