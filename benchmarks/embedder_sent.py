"""How many texts a real town costs, through recorder and embedder."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aio_pika
import asyncpg

from benchmarks.embedder_load import embedder_settings, provider, scratch_database
from benchmarks.publishing import publish
from benchmarks.stack import Stack
from tickmind.connecting import declare
from tickmind.errors import ConfigurationError
from tickmind.local.postgres import DATABASE
from tickmind.local.provider.options import ProviderOptions
from tickmind.topology import RECORDER_QUEUE

__all__ = ["Sent", "measure_sent"]

_TOWN = "smallville"
_LOOK_S, _TELL_S = 0.1, 15.0
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """`texts`: billed by the provider; `distinct`: different texts among the memories."""

    texts: int
    memories: int
    distinct: int
    seconds: float


async def measure_sent(stack: Stack, report: Callable[[str], None]) -> Sent:
    """Publish the trace and wait until all it comes to is embedded. Raises ConfigurationError
    where it is missing."""
    path = Path(os.environ.get("TICKMIND_DATA", "../shared/data")) / _TOWN / "tick_ended.jsonl"
    try:
        lines = path.read_bytes().splitlines()
    except OSError as exc:
        msg = f"cannot read {path} ({exc.strerror}): set TICKMIND_DATA to the folder of the traces"
        raise ConfigurationError(msg) from exc
    async with AsyncExitStack() as parts:
        api = await parts.enter_async_context(provider(stack, ProviderOptions(), instance="sent"))
        url = await parts.enter_async_context(
            scratch_database(stack, "sent_share", template=DATABASE)
        )
        settings = embedder_settings(url, api) | {"TICKMIND_EMBEDDER_LISTEN": "true"}
        for service in ("recorder", "embedder"):
            await parts.enter_async_context(stack.service(service, settings, instance="sent"))
        database = await asyncpg.connect(url)
        parts.push_async_callback(database.close)
        begun = time.perf_counter()
        async with await aio_pika.connect(stack.rabbitmq.url) as broker:
            channel = await broker.channel()
            await declare(channel, RECORDER_QUEUE)
            await publish(channel, _TOWN, lines)
        async with asyncio.timeout(_TIMEOUT_S):
            await _finished(database, len(lines), report)
        seconds = time.perf_counter() - begun
        memories, distinct = await database.fetchrow(
            "SELECT count(*), count(DISTINCT content_hash) FROM memory"
        )
        billed = (await api.totals()).texts_billed
    return Sent(texts=billed, memories=memories, distinct=distinct, seconds=seconds)


async def _finished(
    database: asyncpg.Connection[asyncpg.Record], ticks: int, report: Callable[[str], None]
) -> None:
    told = time.perf_counter()
    while True:
        recorded, pending = await database.fetchrow(
            "SELECT (SELECT count(*) FROM tick_receipt), (SELECT count(*) FROM pending_embedding)"
        )
        if recorded == ticks and not pending:
            return
        if time.perf_counter() - told > _TELL_S:
            told = time.perf_counter()
            report(f"{recorded} of {ticks} ticks recorded, {pending} memories not embedded yet")
        await asyncio.sleep(_LOOK_S)
