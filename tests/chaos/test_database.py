"""PostgreSQL away, crashed, read-only, out of connections, locked, out of disk: a town goes on."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import make_url

from tests.chaos.broken_database import (
    connected,
    connections_used_up,
    database_crashed,
    database_read_only,
    database_stopped,
    table_locked,
)
from tests.chaos.failover import PairedStack, running_pair
from tests.chaos.load import Pace
from tests.chaos.readiness import (
    faults_of,
    until_all_ready,
    until_all_unready,
    until_unready,
)
from tests.chaos.small_disk import disk_full, small_disk, tablespace
from tests.chaos.stack import Stack
from tests.chaos.town import RECOVERY_MOST_S, Scenario, town
from tickmind.local.environment import answers_ok
from tickmind.settings import DatabaseSettings

#: Room for a town of some minutes (30 MB) and not much more.
_SMALL_MIB = 96


async def test_database_restarted_and_crashed(stack: Stack, scenario: Scenario) -> None:
    """Shut down in order, then at once with everything in flight."""
    async with town(stack, scenario) as running:
        await running.lived(3)
        async with running.fault("database restarted"), database_stopped(stack.postgres):
            await until_all_unready(running.fleet, "database", "store", "space")
        await running.recovered()
        await running.lived(running.random.uniform(1, 3))
        async with running.fault("database crashed"), database_crashed(stack.postgres):
            pass
        await running.recovered()


async def test_database_away_for_a_minute(stack: Stack, scenario: Scenario) -> None:
    """case 46: everybody is unready for the database, alive, and nobody ends; publishing goes on
    being confirmed, since the broker keeps the ticks."""
    # What a minute leaves behind is to be worked off within the time that recovery may take.
    async with town(stack, scenario, pace=Pace(ticks_per_s=2)) as running:
        await running.lived(3)
        async with running.fault("database away"), database_stopped(stack.postgres):
            confirmed = running.ledger.deliveries
            await running.lived(55)
            assert running.ledger.deliveries > confirmed
            await until_all_unready(running.fleet, "database", "store", "space")
            for replica in running.fleet.all:
                assert await answers_ok(replica.port, "/livez")
        await running.recovered()


async def test_database_read_only(stack: Stack, scenario: Scenario) -> None:
    """case 43: sessions are refused what writes; recorder and embedder say so and drop them, and
    writes resume. Recalls go on: they only read."""
    async with town(stack, scenario) as running:
        await running.lived(3)
        async with running.fault("database read-only"), database_read_only(stack.postgres):
            for service in ("recorder", "embedder"):
                for replica in running.fleet.replicas[service]:
                    await until_unready(replica, "store", saying="read-only")
            asked = len(running.ledger.recalls)
            await running.lived(10)
            recalls = running.ledger.recalls[asked:]
            assert all(answer.reason is None for recall in recalls for answer in recall.answers)
            for replica in running.fleet.replicas["retriever"]:
                assert await faults_of(replica) == {}
        await running.recovered()
        await until_all_ready(running.fleet)


async def test_database_failed_over(
    stack: Stack, scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """case 43: the primary dies, at its address there is a hot standby, which refuses writes until
    it is promoted. What was committed is there; writes resume, recalls hardly pause."""
    state_dir = stack.state_dir / "pair"
    state_dir.mkdir()
    async with running_pair(state_dir, monkeypatch) as pair:
        paired = PairedStack(
            postgres=pair.primary,
            rabbitmq=stack.rabbitmq,
            state_dir=stack.state_dir,
            address=pair.address,
            _numbers=stack._numbers,
        )
        async with town(paired, scenario) as running:
            await running.lived(3)
            async with running.fault("failed over"):
                await pair.lose_primary()
                for service in ("recorder", "embedder"):
                    for replica in running.fleet.replicas[service]:
                        await until_unready(replica, "store", saying="read-only")
                # The standby is read, as soon as there are connections to it.
                async with asyncio.timeout(RECOVERY_MOST_S):
                    await running.load.known_since(asyncio.get_running_loop().time())
                await pair.promote()
            await running.recovered()
            await until_all_ready(running.fleet)


async def test_database_connections_used_up(stack: Stack, scenario: Scenario) -> None:
    """Others hold every connection the server takes, those of our pools, too."""
    async with town(stack, scenario) as running:
        await running.lived(3)
        async with running.fault("connections used up"), connections_used_up(stack.postgres):
            await until_all_unready(running.fleet, "database", "store", "space")
            await running.lived(8)
        await running.recovered()
        await until_all_ready(running.fleet)


async def test_database_locked(stack: Stack, scenario: Scenario) -> None:
    """Every connection of every pool waits for a lock: recalls end in time all the same."""
    settings = {"TICKMIND_DATABASE_POOL_SIZE": "3", "TICKMIND_DATABASE_POOL_TIMEOUT_S": "1"}
    async with town(stack, scenario, settings=settings) as running:
        url = running.database_settings.database_url
        assert url is not None
        await running.lived(3)
        async with (
            running.fault("table locked"),
            table_locked(url.get_secret_value(), "memory, recall_index"),
        ):
            await running.lived(10)
        await running.recovered()
        await until_all_ready(running.fleet)


async def test_disk_full(stack: Stack, scenario: Scenario) -> None:
    """Nothing can be stored (SQLSTATE 53100) until there is room again."""
    owner = stack.postgres.user
    if owner is None:
        pytest.skip("a file system can be mounted by root alone")
    with small_disk(_SMALL_MIB, owner=(owner.uid, owner.gid)) as disk:
        async with tablespace(stack.postgres, "small", disk):
            small = SmallStack(
                postgres=stack.postgres,
                rabbitmq=stack.rabbitmq,
                state_dir=stack.state_dir,
                _numbers=stack._numbers,
            )
            async with town(small, scenario) as running:
                await running.lived(3)
                async with running.fault("disk full"), disk_full(disk):
                    for replica in running.fleet.replicas["recorder"]:
                        await until_unready(replica, "store", saying="No space left on device")
                    await running.lived(5)
                await running.recovered()
                await until_all_ready(running.fleet)


class SmallStack(Stack):
    """A stack whose databases lie in the tablespace `small`."""

    async def new_database(self, *, migrated: bool = True) -> DatabaseSettings:
        settings = await Stack.new_database(self, migrated=migrated)
        assert settings.database_url is not None
        name = make_url(settings.database_url.get_secret_value()).database
        async with connected(self.postgres.database_url("postgres")) as session:
            await session.execute(f'ALTER DATABASE "{name}" SET TABLESPACE small')
        return settings
