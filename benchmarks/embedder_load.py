"""What the embedder is measured with: pending texts, a provider, replicas."""

from __future__ import annotations

import asyncio
import json
import random
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import asyncpg
from pydantic import SecretStr

from benchmarks.stack import Stack
from tickmind.database import Database
from tickmind.identity import content_hash
from tickmind.local.ports import LOOPBACK
from tickmind.local.provider.options import ProviderOptions, options_to_json
from tickmind.local.provider.remote import RemoteProvider
from tickmind.serving import served_by, space_of
from tickmind.settings import DatabaseSettings, EmbeddingSettings
from tickmind.store import recording
from tickmind.store.spaces import ensure_space

__all__ = [
    "embedder_settings",
    "made_texts",
    "pending_texts",
    "provider",
    "replicas",
    "scratch_database",
    "warmed",
]

#: Most words of a text; at least half as many. With their numbers texts have 60 to 120
#: characters, as a town's talks do.
_WORDS = 20
_VOCABULARY = (
    "the market sells fresh fish this morning and my sister wants bread from old baker while"
    " nobody saw who took our boat across river before winter came with heavy snow so we stay"
)
_AGENTS = 100
_COLUMNS = ["agent_id", "tick", "recorded_at", "importance", "kind", "content", "content_hash"]
_COLUMNS += ["event_key"]


def embedder_settings(
    database_url: str,
    api: RemoteProvider,
    *,
    dimensions: int | None = None,
    max_inputs: int | None = None,
    limits: str = "",
    sweep_s: float | None = None,
) -> dict[str, str]:
    """What embedders are told, as environment variables; None: the default.

    They listen to no hints, since nothing is recorded meanwhile.
    """
    told = {
        "TICKMIND_DATABASE_URL": database_url,
        "TICKMIND_EMBEDDING_PROFILE": "openai-compatible",
        "TICKMIND_EMBEDDING_BASE_URL": api.base_url,
        "TICKMIND_EMBEDDING_LIMITS": limits,
        "TICKMIND_EMBEDDER_LISTEN": "false",
    }
    if dimensions is not None:
        told["TICKMIND_EMBEDDING_DIMENSIONS"] = str(dimensions)
    if max_inputs is not None:
        told["TICKMIND_EMBEDDING_MAX_INPUTS"] = str(max_inputs)
    if sweep_s is not None:
        told["TICKMIND_EMBEDDER_SWEEP_S"] = str(sweep_s)
    return told


@asynccontextmanager
async def provider(
    stack: Stack, options: ProviderOptions, *, instance: str
) -> AsyncIterator[RemoteProvider]:
    """The test provider as a process of its own, answering."""
    async with stack.server(
        "tickmind.local.provider",
        ["--port", "{port}", "--options", options_to_json(options).decode()],
        settings={},
        path="/v1/models",
        instance=instance,
    ) as (_, port):
        yield RemoteProvider(f"http://{LOOPBACK}:{port}")


async def warmed(api: RemoteProvider, texts: Sequence[str]) -> None:
    """Let the provider embed these once, which costs it more than ever after, and forget it."""

    def call() -> None:
        body = json.dumps({"model": "warm", "input": list(texts)}).encode()
        request = urllib.request.Request(f"{api.base_url}/embeddings", data=body)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as reply:
            reply.read()

    await asyncio.to_thread(call)
    await api.reset()


@asynccontextmanager
async def replicas(
    stack: Stack, settings: Mapping[str, str], count: int, *, instance: str
) -> AsyncIterator[list[int]]:
    """So many embedder processes, started together; their pids once all are ready."""
    async with AsyncExitStack() as services:
        starting = [
            asyncio.create_task(
                services.enter_async_context(
                    stack.service("embedder", settings, instance=f"{instance}-{number}")
                )
            )
            for number in range(count)
        ]
        try:
            yield list(await asyncio.gather(*starting))
        finally:
            await asyncio.gather(*starting, return_exceptions=True)


@asynccontextmanager
async def scratch_database(stack: Stack, name: str, *, template: str) -> AsyncIterator[str]:
    """A copy of a database that nobody is connected to, dropped afterwards; its URL."""
    await stack.postgres.create_database(name, template=template)
    try:
        yield stack.postgres.database_url(name)
    finally:
        await stack.postgres.drop_database(name)


def made_texts(count: int) -> list[str]:
    """So many distinct texts, the same ones every time."""
    source = random.Random(5)
    words = _VOCABULARY.split()
    return [
        f"{' '.join(source.choices(words, k=source.randint(_WORDS // 2, _WORDS)))} {number}"
        for number in range(count)
    ]


async def pending_texts(url: str, settings: Mapping[str, str], count: int) -> None:
    """Record so many memories, each with a text of its own, and leave them pending in the space
    that embedders with these settings fill."""
    database = Database(
        DatabaseSettings(database_url=SecretStr(url)), application="bench", vectors=False
    )
    try:
        async with database.writing() as session:
            world_id = (await recording.ensure_worlds(session, ["bench"]))["bench"]
        async with database.writing() as session:
            names = [(world_id, f"agent-{number:03}") for number in range(_AGENTS)]
            agents = list((await recording.ensure_agents(session, names)).values())
        await _insert_memories(url, agents, count)
        given: dict[str, Any] = {
            name.removeprefix("TICKMIND_").lower(): value
            for name, value in settings.items()
            if name.startswith("TICKMIND_EMBEDDING_")
        }
        space = EmbeddingSettings(**given)
        async with database.writing() as session:  # a new space takes all there is as pending
            await ensure_space(session, space_of(space), served_by(space))
    finally:
        await database.dispose()


async def _insert_memories(url: str, agents: list[int], count: int) -> None:
    source = random.Random(6)
    now = datetime.now(UTC)
    rows = []
    for number, content in enumerate(made_texts(count)):
        hash_ = content_hash(content)
        row = (agents[number % len(agents)], number, now, source.randint(1, 9), "talk", content)
        rows.append((*row, hash_, hash_))
    connection = await asyncpg.connect(url)
    try:
        await connection.copy_records_to_table(
            "memory",
            records=rows,
            columns=_COLUMNS,
        )
        await connection.execute("ANALYZE memory")
    finally:
        await connection.close()
