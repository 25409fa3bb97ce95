"""`town`: both real towns through the recorder and the embedder with the real model.

The traces (TICKMIND_DATA, default ../shared/data) are published as they are; recorder and embedder
run with their defaults on the local server of multilingual-e5-small, which counts what it is sent.

`sent_share`: texts sent to the model until every memory of both towns was embedded, over memories
stored. Held to `distinct_share`, the memories' distinct texts over memories: no text is sent
twice. `texts_per_s` and `seconds` count from the first publish until then.

`recall5_zh`: the Chinese town has 184 summaries of conversations, each with its utterances and who
took part. Each summary is asked, as the observation, of every agent who took part, at the town's
last tick: at or after every conversation, so that none is in the future and none is favoured by
having just happened. Relevant are the memories of that agent whose content holds the words of one
of the utterances (what the agent said, and what it heard). The figure of one question is the
number of relevant ones among the five memories that came back, over the most there could be,
min(5, number of relevant); the mean over all questions is reported. `recall5_zh` ranks as by
default (blended), `recall5_zh_fused` blended with no weight on recency and importance, so by
meaning and words, `recall5_zh_relevance` by the raw cosine (`ranking: "relevance"`).
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import aio_pika
import asyncpg

from benchmarks.publishing import publish
from benchmarks.report import Report, at_most, machine
from benchmarks.stack import Stack, running_stack
from tickmind import MemoryClient
from tickmind.connecting import declare
from tickmind.errors import ConfigurationError
from tickmind.local.embedding_server import DIMENSIONS, MODEL, PASSAGE_PREFIX, QUERY_PREFIX
from tickmind.local.ports import LOOPBACK
from tickmind.topology import RECORDER_QUEUE

__all__ = ["run"]

_TOWNS = ("smallville", "smallville-zh")
_ASKED = "smallville-zh"
_K = 5
_RANKINGS: dict[str, dict[str, Any]] = {
    "recall5_zh": {"ranking": "blended"},
    "recall5_zh_fused": {
        "ranking": "blended",
        "weights": {"relevance": 1.0, "recency": 0.0, "importance": 0.0},
    },
    "recall5_zh_relevance": {"ranking": "relevance"},
}
#: Questions under way at once; the model embeds some 50 a second.
_CALLERS = 8
_TIMEOUT_S = 60.0
_LOOK_S = 0.25
_TELL_S = 15.0


async def run(report: Callable[[str], None]) -> Report:
    """Measure; `report` is told in words how far it is.

    Raises ConfigurationError where the traces are missing, StartFailed, RuntimeError.
    """
    data = Path(os.environ.get("TICKMIND_DATA", "../shared/data"))
    traces = {town: _lines(data / town / "tick_ended.jsonl") for town in _TOWNS}
    labels = [json.loads(line) for line in _lines(data / _ASKED / "summary_qrels.jsonl")]
    found = Report(name="town", machine=machine())
    async with running_stack() as stack, AsyncExitStack() as parts:
        _, port = await parts.enter_async_context(
            stack.server(
                "benchmarks.counted_embedding",
                ["--port", "{port}"],
                settings={},
                path="/healthz",
            )
        )
        settings = {
            "TICKMIND_EMBEDDING_BASE_URL": f"http://{LOOPBACK}:{port}/v1",
            "TICKMIND_EMBEDDING_MODEL": MODEL,
            "TICKMIND_EMBEDDING_DIMENSIONS": str(DIMENSIONS),
            "TICKMIND_EMBEDDING_DOCUMENT_PREFIX": PASSAGE_PREFIX,
            "TICKMIND_EMBEDDING_QUERY_PREFIX": QUERY_PREFIX,
        }
        for service in ("recorder", "embedder", "retriever"):
            await parts.enter_async_context(stack.service(service, settings))
        database = await asyncpg.connect(stack.postgres.url)
        parts.push_async_callback(database.close)
        seconds = await _embed(stack, database, traces, report)
        sent = await asyncio.to_thread(_counted, port)
        memories, distinct = await database.fetchrow(
            "SELECT count(*), count(DISTINCT content_hash) FROM memory"
        )
        found.add(
            "sent_share", sent / memories, "texts sent / memory", at_most(distinct / memories)
        )
        found.add("distinct_share", distinct / memories, "distinct texts / memory")
        found.add("memories", memories, "")
        found.add("texts_per_s", sent / seconds, "1/s")
        found.add("seconds", seconds, "s")
        questions = await _questions(database, labels)
        async with MemoryClient(stack.rabbitmq.url) as client:
            for name, options in _RANKINGS.items():
                begun = time.perf_counter()
                value = await _recall5(client, questions, options)
                found.add(name, value, "share of the reachable five")
                report(f"{name} after {time.perf_counter() - begun:.0f} s")
        found.add("questions_zh", len(questions), "")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """One summary asked of one agent. `relevant`: ids of that agent's memories it is about."""

    agent: str
    observation: str
    tick: int
    relevant: frozenset[int]


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except OSError as exc:
        msg = f"cannot read {path} ({exc.strerror}): set TICKMIND_DATA to the folder of the traces"
        raise ConfigurationError(msg) from exc


def _counted(port: int) -> int:
    connection = HTTPConnection(LOOPBACK, port, timeout=10)
    try:
        connection.request("GET", "/counted")
        return int(connection.getresponse().read())
    finally:
        connection.close()


async def _embed(
    stack: Stack,
    database: asyncpg.Connection[asyncpg.Record],
    traces: Mapping[str, Sequence[bytes]],
    report: Callable[[str], None],
) -> float:
    """Publish the traces and wait until all they come to is embedded; seconds it took."""
    begun = told = time.perf_counter()
    async with await aio_pika.connect(stack.rabbitmq.url) as broker:
        channel = await broker.channel()
        await declare(channel, RECORDER_QUEUE)
        for town, lines in traces.items():
            await publish(channel, town, lines)
    ticks = sum(len(lines) for lines in traces.values())
    while True:
        recorded, pending = await database.fetchrow(
            "SELECT (SELECT count(*) FROM tick_receipt), (SELECT count(*) FROM pending_embedding)"
        )
        now = time.perf_counter()
        if recorded == ticks and not pending:
            return now - begun
        if now - told > _TELL_S:
            told = now
            report(f"{recorded} of {ticks} ticks recorded, {pending} memories not embedded yet")
        await asyncio.sleep(_LOOK_S)


async def _questions(
    database: asyncpg.Connection[asyncpg.Record], labels: Sequence[Mapping[str, Any]]
) -> list[_Question]:
    """Every summary for everyone who took part. Raises RuntimeError where someone remembers
    nothing of a conversation."""
    remembered: dict[str, list[tuple[int, str]]] = {}
    rows = await database.fetch(
        "SELECT a.name, m.id, m.content FROM memory m JOIN agent a ON a.id = m.agent_id"
        " JOIN world w ON w.id = a.world_id WHERE w.name = $1",
        _ASKED,
    )
    for name, id_, content in rows:
        remembered.setdefault(name, []).append((id_, content))
    last = await database.fetchval(
        "SELECT max(tick) FROM tick_receipt r JOIN world w ON w.id = r.world_id WHERE w.name = $1",
        _ASKED,
    )
    questions = []
    for label in labels:
        # An utterance is labelled "speaker：words".
        words = [utterance.partition("：")[2] for utterance in label["utterances"]]
        for agent in label["participants"]:
            relevant = frozenset(
                id_ for id_, content in remembered[agent] if any(w in content for w in words)
            )
            if not relevant:
                msg = f"nothing of a conversation of {agent} at {label['time']} is remembered"
                raise RuntimeError(msg)
            questions.append(
                _Question(agent=agent, observation=label["query"], tick=last, relevant=relevant)
            )
    return questions


async def _recall5(
    client: MemoryClient, questions: Sequence[_Question], options: Mapping[str, Any]
) -> float:
    """Mean recall@5. Raises RuntimeError for a question without a proper answer."""
    waiting = iter(questions)
    shares: list[float] = []

    async def ask() -> None:
        for question in waiting:
            answer = await client.recall(
                _ASKED,
                question.agent,
                question.observation,
                tick=question.tick,
                k=_K,
                timeout_s=_TIMEOUT_S,
                **options,
            )
            if answer.status != "ok":
                msg = f"a recall was answered {answer.status} ({answer.reason}: {answer.detail})"
                raise RuntimeError(msg)
            got = sum(memory["id"] in question.relevant for memory in answer.memories)
            shares.append(got / min(_K, len(question.relevant)))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_CALLERS):
            tasks.create_task(ask())
    return statistics.fmean(shares)
