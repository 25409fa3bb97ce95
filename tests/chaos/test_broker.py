"""RabbitMQ away, killed, short of memory, without one of its queues: a town goes on afterwards."""

from __future__ import annotations

import asyncio

import pytest
from aiormq.exceptions import ChannelNotFoundEntity
from sqlalchemy import text

from tests.chaos.broken_broker import (
    broker_killed,
    broker_short_of_memory,
    broker_stopped,
    delete_queue,
)
from tests.chaos.readiness import until_all_ready, until_all_unready
from tests.chaos.replay import replay
from tests.chaos.stack import Stack
from tests.chaos.town import Scenario, Town, town
from tests.running import eventually
from tickmind import MemoryClient
from tickmind.connecting import connect
from tickmind.topology import DEAD_LETTER_QUEUE, EMBEDDER_QUEUE, RECALL_QUEUE, RECORDER_QUEUE, Queue

_TWO_OF_EACH = {"recorder": 2, "embedder": 2, "retriever": 2}
#: A tick confirmed so long ago and not stored yet, with a recorder at work, went with its queue.
_GONE_AFTER_S = 8.0
_RECEIVED = text(
    "SELECT r.tick FROM tick_receipt r JOIN world w ON w.id = r.world_id WHERE w.name = :world"
)


async def test_broker_restarted_and_killed(stack: Stack, scenario: Scenario) -> None:
    """case 36: in order, then by SIGKILL; consumers are back within 60 s, backlogs drain. /readyz
    of every service names the broker, and nothing else, while it is away."""
    async with town(stack, scenario, replicas=_TWO_OF_EACH) as running:
        await running.lived(3)
        async with running.fault("broker restarted"), broker_stopped(stack.rabbitmq):
            await until_all_unready(running.fleet, "broker")
        await running.recovered()
        await running.lived(running.random.uniform(1, 3))
        async with running.fault("broker killed"), broker_killed(stack.rabbitmq):
            pass
        await running.recovered()
        assert max(running.recoveries) < 60


async def test_broker_away_for_a_minute(stack: Stack, scenario: Scenario) -> None:
    """case 36: nobody ends, everybody says what is wrong, and all goes on within 60 s."""
    async with town(stack, scenario) as running:
        await running.lived(3)
        async with running.fault("broker away"), broker_stopped(stack.rabbitmq):
            await running.lived(55)
            await until_all_unready(running.fleet, "broker")
        await running.recovered()
        assert max(running.recoveries) < 60


async def test_broker_short_of_memory(stack: Stack, scenario: Scenario) -> None:
    """Publishers are blocked: nothing is confirmed that could be lost, recalls end in time, and
    what waits is stored meanwhile, since only that frees memory."""
    async with town(stack, scenario) as running:
        await running.lived(3)
        async with running.fault("memory alarm"), broker_short_of_memory(stack.rabbitmq):
            await running.lived(2)
            confirmed = running.ledger.deliveries
            asked = len(running.ledger.recalls)
            await running.lived(12)
            assert running.ledger.deliveries == confirmed
            reasons = {a.reason for r in running.ledger.recalls[asked:] for a in r.answers}
            assert reasons == {"timeout"}


@pytest.mark.parametrize("redeclared", [False, True], ids=["deleted", "redeclared"])
@pytest.mark.parametrize(
    "queue",
    [RECORDER_QUEUE, EMBEDDER_QUEUE, RECALL_QUEUE, DEAD_LETTER_QUEUE],
    ids=lambda queue: queue.name.rpartition(".")[2],
)
async def test_queue_lost(stack: Stack, scenario: Scenario, queue: Queue, redeclared: bool) -> None:
    """case 37: a queue is deleted under its consumers, and maybe made anew by somebody else before
    they see it; it is there and consumed again. Ticks that waited in it are published again, as
    the README says of missing ticks."""
    async with town(stack, scenario) as running:
        await running.lived(3)
        async with running.fault(f"{queue.name} deleted"):
            await delete_queue(running.broker_settings, queue, redeclare=redeclared)
            await running.lived(1)
            if queue is RECORDER_QUEUE:
                await _publish_missing(running)
        await running.recovered()
        await until_all_ready(running.fleet)
        await eventually(lambda: _there(running, queue), bool, what=f"{queue.name} there")


async def _there(running: Town, queue: Queue) -> bool:
    async with await connect(running.broker_settings, name="chaos") as connection:
        try:
            await (await connection.channel()).declare_queue(queue.name, passive=True)
        except ChannelNotFoundEntity:
            return False
    return True


async def _publish_missing(running: Town) -> None:
    """What an operator does about `tickmind gaps`: have missing ticks published again."""
    missing = await _missing(running)
    loop = asyncio.get_running_loop()
    gone_at = loop.time() + _GONE_AFTER_S
    while missing and loop.time() < gone_at:
        await running.lived(0.2)
        missing &= await _missing(running)
    async with MemoryClient(running.broker_settings.broker_url()) as engine:
        for world in {world for world, _ in missing}:
            wanted = {tick for of, tick in missing if of == world}
            for tick in replay(running.scenario.trace, world):
                if tick.tick in wanted:
                    receipt = await engine.publish_tick(world, tick.tick, tick.decisions)
                    assert receipt.confirmed
                if tick.tick >= max(wanted):
                    break


async def _missing(running: Town) -> set[tuple[str, int]]:
    """Ticks that the broker confirmed and no recorder has stored, by world."""
    missing = {(world, tick) for world, ticks in running.ledger.confirmed.items() for tick in ticks}
    async with running.database.reading() as session:
        for world in running.ledger.confirmed:
            rows = await session.execute(_RECEIVED, {"world": world})
            missing -= {(world, row.tick) for row in rows}
    return missing
