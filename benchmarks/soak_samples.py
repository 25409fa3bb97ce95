"""What `soak` looks at every few seconds: memory, connections, queues, what waits, what is told."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aio_pika
import asyncpg
import psutil
from aio_pika.abc import AbstractChannel
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.processes import resident_mb
from benchmarks.stack import Stack
from tickmind.local.ports import LOOPBACK
from tickmind.topology import EMBEDDER_QUEUE, RECALL_QUEUE, RECORDER_QUEUE

__all__ = ["Backlog", "Sample", "Sampler", "sampler"]

_QUEUES = (RECORDER_QUEUE, EMBEDDER_QUEUE, RECALL_QUEUE)
_SCRAPE_TIMEOUT_S = 10.0
#: Loopback is never reached through the proxy that the environment may name.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What is not done yet. `queues`: messages that wait, by queue; `recorded`: ticks stored."""

    at: float
    queues: Mapping[str, int]
    recorded: int
    pending: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look. By process: resident memory (the broker's too), open files, connections to the
    broker. `postgres`: the services' connections; `told`: their counters, as a scraper sees them.
    """

    at: float
    memory_mb: Mapping[str, float]
    files: Mapping[str, int]
    amqp: int
    postgres: int
    backlog: Backlog
    told: Mapping[str, float]


class Sampler:
    """Looks at services given by name with (pid, port of their metrics)."""

    def __init__(
        self,
        stack: Stack,
        services: Mapping[str, tuple[int, int]],
        database: asyncpg.Connection[asyncpg.Record],
        channel: AbstractChannel,
    ) -> None:
        self._stack = stack
        self._services = services
        self._database = database
        self._channel = channel

    async def look(self) -> Sample:
        """Raises RuntimeError where a service has ended."""
        told: dict[str, float] = {}
        for name, (_, port) in self._services.items():
            told |= await asyncio.to_thread(_scraped, name, port)
        pids = {name: pid for name, (pid, _) in self._services.items()}
        broker = ("rabbitmq", self._stack.rabbitmq.pid)
        try:
            memory = {name: resident_mb(pid) for name, pid in (*pids.items(), broker)}
            processes = {name: psutil.Process(pid) for name, pid in pids.items()}
            files = {name: process.num_fds() for name, process in processes.items()}
            amqp = sum(map(self._broker_connections, processes.values()))
        except psutil.NoSuchProcess as exc:
            msg = f"a process ended under load ({exc})"
            raise RuntimeError(msg) from exc
        postgres = await self._database.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'tickmind-%'"
        )
        return Sample(
            at=time.perf_counter(),
            memory_mb=memory,
            files=files,
            amqp=amqp,
            postgres=postgres,
            backlog=await self.backlog(),
            told=told,
        )

    def _broker_connections(self, process: psutil.Process) -> int:
        return sum(
            bool(connection.raddr) and connection.raddr.port == self._stack.rabbitmq.port
            for connection in process.net_connections(kind="tcp")
        )

    async def backlog(self) -> Backlog:
        """What is not done yet; costs the servers a few milliseconds."""
        queues = {}
        for queue in _QUEUES:
            declared = await self._channel.declare_queue(queue.name, passive=True)
            queues[queue.name] = declared.declaration_result.message_count or 0
        recorded, pending = await self._database.fetchrow(
            "SELECT (SELECT count(*) FROM tick_receipt), (SELECT count(*) FROM pending_embedding)"
        )
        return Backlog(at=time.perf_counter(), queues=queues, recorded=recorded, pending=pending)

    async def signed(self) -> bool:
        """Whether recalls rank by signatures: the one rebuild of a young space is over."""
        return bool(
            await self._database.fetchval(
                "SELECT EXISTS (SELECT FROM index_generation"
                " WHERE status = 'active' AND basis IS NOT NULL)"
            )
        )

    async def channels(self) -> int:
        """AMQP channels that are open, ours included; costs some 2 s of a processor."""
        told = await self._stack.rabbitmq.rabbitmqctl(
            "--no-table-headers", "list_connections", "channels"
        )
        return sum(map(int, told.split()))

    async def stored(self) -> dict[str, dict[int, int]]:
        """Memories by world and tick, ticks without any included."""
        found: dict[str, dict[int, int]] = {}
        rows = await self._database.fetch(
            """
            SELECT w.name, r.tick, coalesce(m.memories, 0) AS memories
            FROM tick_receipt r
            JOIN world w ON w.id = r.world_id
            LEFT JOIN (SELECT a.world_id, m.tick, count(*) AS memories
                       FROM memory m JOIN agent a ON a.id = m.agent_id GROUP BY 1, 2) m
                ON m.world_id = r.world_id AND m.tick = r.tick
            """
        )
        for world, tick, memories in rows:
            found.setdefault(world, {})[tick] = memories
        return found

    async def unindexed(self) -> int:
        """Memories that the active index lacks."""
        return int(
            await self._database.fetchval(
                """
                SELECT count(*) FROM memory m WHERE NOT EXISTS (
                    SELECT FROM recall_index r JOIN index_generation g ON g.id = r.generation_id
                    WHERE g.status = 'active' AND r.memory_id = m.id)
                """
            )
        )


def _scraped(service: str, port: int) -> dict[str, float]:
    """A service's counters, named as a query names them, with their labels."""
    try:
        with _OPENER.open(f"http://{LOOPBACK}:{port}/metrics", timeout=_SCRAPE_TIMEOUT_S) as reply:
            text = reply.read().decode()
    except OSError:  # a scrape that an overload makes too late: the next one tells the same
        return {}
    told = {}
    for family in text_string_to_metric_families(text):
        if family.type == "counter":
            for sample in family.samples:
                if sample.name.endswith("_total"):
                    labels = ",".join(f"{key}={value}" for key, value in sample.labels.items())
                    told[f"{service} {sample.name}{{{labels}}}"] = sample.value
    return told


@asynccontextmanager
async def sampler(stack: Stack, services: Mapping[str, tuple[int, int]]) -> AsyncIterator[Sampler]:
    """One on connections of its own."""
    database = await asyncpg.connect(stack.postgres.url)
    try:
        async with await aio_pika.connect(stack.rabbitmq.url) as broker:
            yield Sampler(stack, services, database, await broker.channel())
    finally:
        await database.close()
