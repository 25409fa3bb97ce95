"""What every compared system does, in a process of its own: commands in, one answer out for each.

Lines of JSON over standard input and output. The standard library alone, since it runs in the
environments of the peers.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

__all__ = ["Given", "System", "drive"]

#: Memories asked for.
RESULTS = 5


@dataclass(frozen=True)
class Given:
    """Where everything is. `state_dir`: for files of the system's own; `ranking`: tickmind's."""

    database_url: str
    embedding_url: str
    model: str
    dimensions: int
    amqp_url: str
    state_dir: Path
    ranking: str


class System(Protocol):
    """One memory for agents."""

    async def write(self, tick: int, memories: Sequence[tuple[str, str]]) -> None:
        """What happened in one tick, (agent, text) each; returns when it is stored."""

    async def settled(self) -> None:
        """Wait until all that was written can be recalled."""

    async def rested(self) -> None:
        """Wait until what goes on in the background after writing has come to its end."""

    async def plan(self, agent: str, observation: str) -> tuple[str, int] | None:
        """How a recall is ranked, and how many memories are scored exactly; None: it cannot say."""

    async def recall(self, agent: str, observation: str, *, patient: bool) -> list[str]:
        """The texts that come to mind, best first, at most five. `patient`: however long it takes;
        else a system that has a deadline keeps its default one."""


_Opened = Callable[[Given], contextlib.AbstractAsyncContextManager[System]]


def drive(opened: _Opened, *packages: str) -> None:
    """Serve commands until there are no more. `packages`: whose versions are told at first."""
    with _own_stdout() as told:
        given = json.loads(sys.argv[1])
        given["state_dir"] = Path(given["state_dir"])
        versions = {name: importlib.metadata.version(name) for name in packages}
        asyncio.run(_serve(opened, Given(**given), versions, told))
    # A thread that still waits for a server which hangs would keep us from ending.
    os._exit(0)


@contextlib.contextmanager
def _own_stdout() -> Iterator[TextIO]:
    """Standard output for answers alone: what libraries print goes to standard error."""
    with os.fdopen(os.dup(1), "w") as told:
        os.dup2(2, 1)
        yield told


async def _serve(opened: _Opened, given: Given, versions: dict[str, str], told: TextIO) -> None:
    def tell(answer: object) -> None:
        told.write(json.dumps(answer) + "\n")
        told.flush()

    commands: dict[str, Callable[..., Awaitable[Any]]]
    commands = {"write": _write, "rest": _rest, "plan": _plan, "recall": _recall, "try": _try}
    async with opened(given) as system:
        tell(versions)
        async for line in _lines():
            command = json.loads(line)
            tell(await commands[command.pop("do")](system, **command))
        told.flush()
        if any(task is not asyncio.current_task() for task in asyncio.all_tasks()):
            os._exit(0)  # what hangs is not waited for


async def _lines() -> AsyncIterator[bytes]:
    reader = asyncio.StreamReader(limit=1 << 26)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line


async def _write(system: System, path: str, at_once: int) -> dict[str, Any]:
    """Write ticks, so many under way at once; seconds until stored and until recallable."""
    ticks = iter(list(enumerate(json.loads(Path(path).read_text()))))

    async def some() -> None:
        for tick, memories in ticks:
            await system.write(tick, [(agent, text) for agent, text in memories])

    begun = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(at_once)))
    stored_s = time.perf_counter() - begun
    await system.settled()
    return {"stored_s": stored_s, "recallable_s": time.perf_counter() - begun}


async def _rest(system: System) -> dict[str, Any]:
    """Wait until nothing goes on in the background; how long that took."""
    begun = time.perf_counter()
    await system.rested()
    return {"seconds": time.perf_counter() - begun}


async def _plan(system: System, question: tuple[str, str]) -> dict[str, Any]:
    """How a question is ranked, as far as the system says."""
    return {"plan": await system.plan(*question)}


async def _recall(
    system: System, questions: Sequence[tuple[str, str]], at_once: int, limit_s: float
) -> dict[str, Any]:
    """Ask by so many callers that never pause, until all is asked or the time is over.

    `seconds` and `answers` by the place of the question; `failed`: how many raised.
    """
    waiting = iter(enumerate(questions))
    seconds: dict[int, float] = {}
    answers: dict[int, list[str]] = {}
    failed: list[int] = []
    start = time.perf_counter()

    async def ask() -> None:
        for place, (agent, observation) in waiting:
            begun = time.perf_counter()
            if begun - start > limit_s:
                return
            try:
                answers[place] = await system.recall(agent, observation, patient=True)
            except Exception:  # the boundary: a recall that fails is one that found nothing
                logging.exception("recall failed")
                answers[place] = []
                failed.append(place)
            seconds[place] = time.perf_counter() - begun

    await asyncio.gather(*(ask() for _ in range(at_once)))
    return {
        "seconds": seconds,
        "answers": answers,
        "failed": len(failed),
        "took_s": time.perf_counter() - start,
    }


async def _try(
    system: System, question: tuple[str, str] | None, limit_s: float
) -> dict[str, float | str | int]:
    """One recall, or one write where there is no question, and how it ended within the limit."""
    begun = time.perf_counter()
    if question is None:
        trying: asyncio.Future[Any] = asyncio.ensure_future(
            system.write(10**6, [("someone", "written while the provider hangs")])
        )
    else:
        trying = asyncio.ensure_future(system.recall(*question, patient=False))
    # Not wait_for, which waits for the cancelled: some take no cancellation.
    await asyncio.wait({trying}, timeout=limit_s)
    took = time.perf_counter() - begun
    if not trying.done():
        trying.cancel()
        return {"seconds": took, "outcome": "nothing in time", "found": 0}
    if trying.exception() is not None:
        return {"seconds": took, "outcome": type(trying.exception()).__name__, "found": 0}
    return {"seconds": took, "outcome": "answered", "found": len(trying.result() or ())}
