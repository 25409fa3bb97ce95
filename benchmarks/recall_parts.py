"""The three that `recall` compares: the retriever, bare SQL, a bare echo over the broker."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.bare_sql import BareSql, ranking
from benchmarks.recall_load import DIMENSIONS, LAST_TICK, WORLD, World, observation
from benchmarks.rpc import QUEUE, Caller, served
from benchmarks.stack import Stack
from tickmind import Answer, MemoryClient
from tickmind.database import Database
from tickmind.messages import RecallQuery, RecallRequest
from tickmind.topology import RECALL_QUEUE
from tickmind_retriever.settings import RetrieverSettings

__all__ = ["HASH", "RESULTS", "Parts", "running_parts"]

#: Vectors without a provider to wait for.
HASH = {
    "TICKMIND_EMBEDDING_PROVIDER": "hash",
    "TICKMIND_EMBEDDING_DIMENSIONS": str(DIMENSIONS),
}
#: Memories asked for, as by default.
RESULTS = 5
#: Long enough that nothing is cut short: deadlines are not what is measured here.
_TIMEOUT_S = 30.0
#: Bare SQL goes round the parameters of so many questions, prepared beforehand.
_QUESTIONS = 400


class Parts:
    """Each method does one unit of work and checks that it was done. Raises RuntimeError."""

    def __init__(
        self,
        *,
        agents: Sequence[str],
        retriever_pid: int,
        client: MemoryClient,
        sql: BareSql,
        sql_in_parallel: int,
        parameters: Sequence[tuple[Any, ...]],
        echo: Caller,
        request: bytes,
    ) -> None:
        self.retriever_pid = retriever_pid
        self._agents = itertools.cycle(agents)
        self._source = random.Random(5)
        self._client = client
        self._sql = sql
        self._sql_in_parallel = sql_in_parallel
        self._parameters = itertools.cycle(parameters)
        self._echo = echo
        self._request = request

    def agent(self) -> str:
        """One after the other."""
        return next(self._agents)

    async def recall(self, agent: str | None = None) -> None:
        """One recall of one agent."""
        answer = await self._client.recall(
            WORLD,
            agent or next(self._agents),
            observation(self._source),
            tick=LAST_TICK,
            timeout_s=_TIMEOUT_S,
        )
        _check([answer])

    async def sql(self) -> None:
        """One ranking statement."""
        rows = await self._sql.fetch(next(self._parameters))
        if rows != RESULTS:
            msg = f"bare SQL found {rows} memories"
            raise RuntimeError(msg)

    async def echo(self) -> None:
        """One bare request and reply, with the bytes of a recall."""
        await self._echo.call(self._request, QUEUE)

    async def recall_batch(self, size: int) -> None:
        """One request for so many agents."""
        asked: list[tuple[str | int, str]] = [
            (next(self._agents), observation(self._source)) for _ in range(size)
        ]
        _check(await self._client.recall_many(WORLD, asked, tick=LAST_TICK, timeout_s=_TIMEOUT_S))

    async def sql_batch(self, size: int) -> None:
        """So many statements, as many at once as the retriever ranks with."""

        async def some(count: int) -> None:
            for _ in range(count):
                await self.sql()

        share, rest = divmod(size, self._sql_in_parallel)
        counts = [share + (place < rest) for place in range(self._sql_in_parallel)]
        await asyncio.gather(*(some(count) for count in counts))


def _check(answers: Sequence[Answer]) -> None:
    for answer in answers:
        if answer.status != "ok" or len(answer.memories) != RESULTS:
            msg = f"a recall was answered {answer.status} ({answer.reason}: {answer.detail})"
            raise RuntimeError(msg)


@asynccontextmanager
async def running_parts(stack: Stack, database: Database, world: World) -> AsyncIterator[Parts]:
    """The retriever and the echo server as processes, and everyone's connections."""
    settings = RetrieverSettings()
    agents = max(world.agents.values(), key=len)
    source = random.Random(4)
    asked = [(agents[place % len(agents)], observation(source)) for place in range(_QUESTIONS)]
    statement, parameters = await ranking(database, world, asked)
    sql = await BareSql.connect(
        stack.postgres.url, statement, connections=settings.database_pool_size
    )
    try:
        async with (
            stack.service("retriever", HASH) as retriever_pid,
            MemoryClient(stack.rabbitmq.url) as client,
            Caller(stack.rabbitmq.url) as echo,
        ):
            request = _request(*asked[0])
            reply_path = stack.state_dir / "reply"
            reply_path.write_bytes(await echo.call(request, RECALL_QUEUE.name))
            arguments = {
                "--amqp": stack.rabbitmq.url,
                "--reply": str(reply_path),
                "--prefetch": str(settings.retriever_concurrency),
            }
            words = [word for option in arguments.items() for word in option]
            async with stack.process("benchmarks.rpc", words, settings={}):
                await served(stack.rabbitmq.url)
                yield Parts(
                    agents=agents,
                    retriever_pid=retriever_pid,
                    client=client,
                    sql=sql,
                    # One of its connections is left to what is not ranking (see its `create_app`).
                    sql_in_parallel=settings.database_pool_size - 1,
                    parameters=parameters,
                    echo=echo,
                    request=request,
                )
    finally:
        await sql.close()


def _request(agent: str, observed: str) -> bytes:
    """One agent's request as the client would send it."""
    return (
        RecallRequest(
            world=WORLD,
            tick=LAST_TICK,
            queries=[RecallQuery(agent=agent, observation=observed)],
            deadline_ms=int(_TIMEOUT_S * 1000),
        )
        .model_dump_json()
        .encode()
    )
