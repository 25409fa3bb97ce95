"""PostgreSQL and RabbitMQ that speak TLS, with the certificates of these tests, and what they hear.

Each is reached through a door, which keeps what came over the wire.
"""

from __future__ import annotations

import os
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest
from pydantic import SecretStr

from tests.brokers import install_rabbitmq
from tests.proxy import Door, door
from tickmind.local.ports import LOOPBACK, free_port, release_port
from tickmind.local.processes import Child, Command, run
from tickmind.local.rabbitmq import running_rabbitmq
from tickmind.local.system_user import database_user
from tickmind.settings import BrokerSettings, DatabaseSettings

__all__ = [
    "CA",
    "OTHER_CA",
    "PASSWORD",
    "USER",
    "SecureServers",
    "only_began_tls",
    "own_tls_postgres",
    "secure_rabbitmq",
    "server_tls",
    "tls_before",
]

_CERTIFICATES = Path(__file__).parent / "certificates"
_SERVER = _CERTIFICATES / "server.pem"
#: Whose certificates the servers have, and who signed nothing.
CA, OTHER_CA = _CERTIFICATES / "ca.pem", _CERTIFICATES / "other-ca.pem"
#: A user of either server; its name and password must be seen by nobody on the way.
USER, PASSWORD = "secretive", "dHJ1c3Qgbm9i-b2R5"

# What begins TLS: a handshake record of version 3.x (RFC 8446, 5.1), after PostgreSQL's request.
_HANDSHAKE = b"\x16\x03"
_SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
_START_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureServers:
    """Doors before servers; `database_name`: there, as USER."""

    postgres: Door
    rabbitmq: Door
    database_name: str
    vhost: str = "/"

    def database(self, ca: Path = CA) -> DatabaseSettings:
        return DatabaseSettings(
            database_host="localhost",
            database_port=self.postgres.port,
            database_user=USER,
            database_password=SecretStr(PASSWORD),
            database_name=self.database_name,
            database_sslmode="verify-full",
            database_ca_file=ca,
        )

    def broker(self, ca: Path = CA) -> BrokerSettings:
        return BrokerSettings(
            amqp_host="localhost",
            amqp_port=self.rabbitmq.port,
            amqp_user=USER,
            amqp_password=SecretStr(PASSWORD),
            amqp_vhost=self.vhost,
            amqp_tls=True,
            amqp_ca_file=ca,
        )

    @property
    def heard(self) -> list[bytes]:
        """What each connection to either server sent."""
        return [bytes(said) for door in (self.postgres, self.rabbitmq) for said in door.heard]


def only_began_tls(said: bytes) -> bool:
    """Whether a connection sent nothing but what begins TLS: neither server's own protocol, which
    tells the user's name first."""
    rest = said.removeprefix(_SSL_REQUEST)
    # An alert (21), which is how a client refuses a certificate, may follow.
    return not rest or rest.startswith((_HANDSHAKE, b"\x15\x03"))


def server_tls() -> ssl.SSLContext:
    """What a server of these tests shows to who connects."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(_SERVER)
    return tls


@asynccontextmanager
async def tls_before(socket: Path) -> AsyncIterator[Door]:
    """A door that hears what is sent to PostgreSQL at this socket as it goes over the wire, where
    TLS is spoken: behind it stands another, where TLS ends."""
    async with (
        door(socket, tls=server_tls(), postgres=True) as inner,
        door((LOOPBACK, inner.port)) as outer,
    ):
        yield outer


@asynccontextmanager
async def secure_rabbitmq(directory: Path) -> AsyncIterator[Door]:
    """A door before a broker's own TLS listener; the user has rights to everything."""
    await install_rabbitmq()
    secure_port = free_port()
    try:
        async with running_rabbitmq(
            directory,
            settings=(
                f"listeners.ssl.loopback = {LOOPBACK}:{secure_port}",
                f"ssl_options.certfile = {_SERVER}",
                f"ssl_options.keyfile = {_SERVER}",
                f"ssl_options.cacertfile = {CA}",
                "ssl_options.verify = verify_none",
            ),
        ) as rabbitmq:
            await rabbitmq.rabbitmqctl(
                "eval",
                f'ok = rabbit_auth_backend_internal:add_user(<<"{USER}">>, <<"{PASSWORD}">>,'
                f' <<"t">>), rabbit_auth_backend_internal:set_permissions(<<"{USER}">>, <<"/">>,'
                f' <<".*">>, <<".*">>, <<".*">>, <<"t">>).',
            )
            async with door((LOOPBACK, secure_port)) as opened:
                yield opened
    finally:
        release_port(secure_port)


def _programs() -> Path:
    """Of a PostgreSQL that can speak TLS, which the one in the wheel cannot. Skips the test where
    this machine has none; on CI, fails it."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), reverse=True)
    on_path = shutil.which("postgres")
    if found or on_path:
        return (found[0] if found else Path(str(on_path))).parent
    reason = "no PostgreSQL with TLS on this machine: install the package postgresql"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTls:
    """A PostgreSQL with ssl=on, without pgvector, and the door before it."""

    door: Door
    socket_dir: Path
    port: int

    async def sessions(self) -> dict[str, bool]:
        """Who is connected by TCP, and whether TLS is what they speak."""
        connection = await asyncpg.connect(
            host=str(self.socket_dir), port=self.port, user="postgres", database="postgres"
        )
        try:
            rows = await connection.fetch(
                "SELECT application_name AS name, bool_and(s.ssl) AS secure"
                " FROM pg_stat_activity a JOIN pg_stat_ssl s USING (pid)"
                " WHERE a.client_addr IS NOT NULL GROUP BY 1"
            )
        finally:
            await connection.close()
        return {row["name"]: row["secure"] for row in rows}


@asynccontextmanager
async def own_tls_postgres(directory: Path) -> AsyncIterator[OwnTls]:
    """By TCP only encrypted sessions with a password are let in."""
    programs = _programs()
    directory.mkdir(parents=True)
    user = database_user(directory / "cluster")
    # The server refuses a key that others may read.
    key, cluster = directory / "server.pem", directory / "cluster"
    shutil.copy(_SERVER, key)
    key.chmod(0o600)
    cluster.mkdir(mode=0o700)
    if user is not None:
        for path in (key, cluster, directory):
            os.chown(path, user.uid, user.gid)
    port = free_port()

    def command(program: str, *arguments: str) -> Command:
        return Command(
            name="PostgreSQL",
            argv=(str(programs / program), *arguments),
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
            cwd=directory,
            log_path=directory / "postgres.log",
            pid_path=directory / f"child-{program}.pid",
            user=user,
            grace_s=20.0,
        )

    async def connect() -> asyncpg.Connection[asyncpg.Record]:
        return await asyncpg.connect(
            host=str(directory), port=port, user="postgres", database="postgres", timeout=10
        )

    async def accepts() -> bool:
        try:
            await (await connect()).close()
        except (OSError, asyncpg.PostgresError):
            return False
        return True

    await run(
        command("initdb", "-D", str(cluster), "-U", "postgres", "--auth=trust", "--no-sync"),
        timeout_s=_START_S,
    )
    (cluster / "pg_hba.conf").write_text(
        "local all postgres trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n"
    )
    settings = {
        "listen_addresses": LOOPBACK,
        "port": str(port),
        "unix_socket_directories": str(directory),
        "ssl": "on",
        "ssl_cert_file": str(key),
        "ssl_key_file": str(key),
        "fsync": "off",
    }
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    server = Child(command("postgres", "-D", str(cluster), *options))
    try:
        await server.start()
        await server.ready(accepts, timeout_s=_START_S)
        connection = await connect()
        await connection.execute(f"CREATE ROLE {USER} LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
        await connection.close()
        async with door((LOOPBACK, port)) as opened:
            yield OwnTls(door=opened, socket_dir=directory, port=port)
    finally:
        await server.stop()
        release_port(port)
