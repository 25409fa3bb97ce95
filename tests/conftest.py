"""What the tests share: one real PostgreSQL and one real RabbitMQ a process, started here.

Nothing is started for tests that ask for neither. A database a test, from a migrated template.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import httpcore2
import hypothesis
import pytest
from pydantic import SecretStr

from tests.brokers import install_rabbitmq
from tests.commands import end_forks
from tests.mutating import Fuzzing
from tests.virtual_hosts import add_virtual_hosts
from tickmind.database import Database
from tickmind.local.postgres import LocalPostgres, running_postgres
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.running import Provider, running_provider
from tickmind.local.rabbitmq import LocalRabbitmq, running_rabbitmq
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind_migrations import upgrade

_DATA = Path(os.environ.get("TICKMIND_DATA", "../shared/data"))
_numbers = itertools.count(1)

#: Of the fuzzers: other inputs, and so many times as many.
FUZZ_SEED, FUZZ_FACTOR = "TICKMIND_FUZZ_SEED", "TICKMIND_FUZZ_FACTOR"


# Other work on the machine must not fail a property: it says nothing of how long one example takes.
# On CI hypothesis itself sees to that, and tries the same examples each time.
hypothesis.settings.register_profile(
    "unhurried",
    hypothesis.settings.get_profile(hypothesis.settings.get_current_profile_name()),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("unhurried")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Thousands of inputs take 20 s of a core, and so many times as long as there are more.
    timeout_s = 300 * int(os.environ.get(FUZZ_FACTOR, "1"))
    for item in items:
        if "fuzzing" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(timeout_s))


@pytest.fixture(autouse=True, scope="session")
def _no_settings_of_mine() -> None:
    """What the developer's shell says of a real deployment must not reach a test."""
    for name in [name for name in os.environ if name.startswith("TICKMIND_")]:
        if name not in ("TICKMIND_DATA", FUZZ_SEED, FUZZ_FACTOR):
            del os.environ[name]


@pytest.fixture(autouse=True, scope="session")
def _forks_ended() -> Iterator[None]:
    yield
    end_forks()


@pytest.fixture(autouse=True, scope="session")
def _certificates_read_once() -> Iterator[None]:
    """Each client of an API reads all that the system trusts, a tenth of a second: the tests make
    hundreds, one process few."""
    with pytest.MonkeyPatch.context() as patched:
        once = functools.cache(httpcore2.default_ssl_context)
        patched.setattr(httpcore2, "default_ssl_context", once)
        yield


@pytest.fixture(scope="session")
def data() -> Path:
    """The traces of real towns; without them a test is skipped, on CI it fails."""
    if not _DATA.is_dir():
        reason = f"no data in {_DATA}: set TICKMIND_DATA to the folder of the traces"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return _DATA


@pytest.fixture(scope="session")
def fuzzing() -> Fuzzing:
    """The same inputs every time, unless other or more of them are asked for."""
    return Fuzzing(
        seed=os.environ.get(FUZZ_SEED, "1"), factor=int(os.environ.get(FUZZ_FACTOR, "1"))
    )


@pytest.fixture(scope="session")
def state_dir() -> Iterator[Path]:
    """A directory that the servers' system users can reach."""
    path = Path(tempfile.mkdtemp(prefix="tickmind-test-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
async def postgres(state_dir: Path) -> AsyncIterator[LocalPostgres]:
    """A server with the database `template`, migrated."""
    async with running_postgres(state_dir / "postgres", durable=False) as server:
        await server.create_database("template")
        settings = DatabaseSettings(database_url=SecretStr(server.database_url("template")))
        await upgrade(settings, lambda _: None)
        yield server


@pytest.fixture(scope="session")
async def installed_rabbitmq() -> None:
    """RabbitMQ itself, where this machine has none."""
    await install_rabbitmq()


@pytest.fixture(scope="session")
async def rabbitmq(installed_rabbitmq: None, state_dir: Path) -> AsyncIterator[LocalRabbitmq]:
    """A broker of our own."""
    async with running_rabbitmq(state_dir / "rabbitmq") as broker:
        yield broker


@pytest.fixture(scope="session")
async def superuser(
    postgres: LocalPostgres,
) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A connection that stays: opening one costs as much as a database."""
    connection = await asyncpg.connect(postgres.database_url("postgres"))
    yield connection
    await connection.close()


@pytest.fixture
async def database_settings(
    postgres: LocalPostgres, superuser: asyncpg.Connection[asyncpg.Record]
) -> AsyncIterator[DatabaseSettings]:
    """A database of the test's own, migrated and empty."""
    name = f"test_{next(_numbers)}"
    # Its files copied, not each block logged as well: half the time, and most tests have one.
    await superuser.execute(f"CREATE DATABASE {name} TEMPLATE template STRATEGY file_copy")
    yield DatabaseSettings(database_url=SecretStr(postgres.database_url(name)))
    await superuser.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def database(database_settings: DatabaseSettings) -> AsyncIterator[Database]:
    """A pool on the test's own database."""
    pool = Database(database_settings, application="test")
    yield pool
    await pool.dispose()


@pytest.fixture(scope="session")
def virtual_hosts(rabbitmq: LocalRabbitmq) -> AsyncIterator[str]:
    """Fresh virtual hosts, made twenty at a time."""

    async def make() -> AsyncIterator[str]:
        while True:
            names = [f"test-{next(_numbers)}" for _ in range(20)]
            await add_virtual_hosts(rabbitmq, *names)
            for name in names:
                yield name

    return make()


@pytest.fixture
async def broker_settings(
    rabbitmq: LocalRabbitmq, virtual_hosts: AsyncIterator[str]
) -> BrokerSettings:
    """A virtual host of the test's own."""
    return BrokerSettings(amqp_url=SecretStr(f"{rabbitmq.url}/{await anext(virtual_hosts)}"))


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    """An embedding API of the test's own, whose model has vectors of 64; it does as it is told."""
    async with running_provider(ProviderOptions(native_width=64)) as running:
        yield running
