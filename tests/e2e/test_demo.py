"""`tickmind demo` and `tickmind up`: the whole on this machine, and nothing left of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import stat
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import psutil
import pytest

from tests.brokers import install_rabbitmq
from tests.commands import Cli
from tickmind.decoding import decode_tick
from tickmind.grading import grade
from tickmind.local.town import load_questions, load_ticks, town_path
from tickmind.policy import default_policy

#: The longest a part may take on a machine that is busy with other tests.
WITHIN_S = 170.0

KEYS = (
    *("published", "stored", "dropped", "rejected", "pending", "parked", "recalls", "empty"),
    *("recall_p50_ms", "recall_p99_ms", "seconds", "answers"),
)


@pytest.fixture
async def here(state_dir: Path) -> Path:
    """An empty directory that the servers' system users can reach.

    Its name is short, since it ends up in the path of a socket, of which 107 bytes count.
    """
    await install_rabbitmq()
    path = Path(mkdtemp(prefix="e", dir=state_dir))
    path.chmod(0o755)
    return path


@pytest.fixture
def cli(here: Path) -> Iterator[Cli]:
    """Commands whose temporary files are in that directory too; none of them stays behind."""
    yield Cli(here, {"TMPDIR": str(here)})
    for process in _processes(here):
        process.kill()


def _processes(here: Path) -> list[psutil.Process]:
    """Every process whose arguments or environment speak of the directory."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = [*process.cmdline(), *process.environ().values()]
            if any(str(here) in word for word in words):
                found.append(process)
    return found


async def _says(stream: asyncio.StreamReader | None, part: str) -> str:
    """All up to the line that holds `part`."""
    assert stream is not None
    said = ""
    async with asyncio.timeout(WITHIN_S):
        while part not in said:
            line = await stream.readline()
            assert line, f"ended without {part!r}: {said}"
            said += line.decode()
    return said


@contextlib.asynccontextmanager
async def _started(cli: Cli, *args: str) -> AsyncIterator[Process]:
    """A command under way; killed if the block fails, and with it all it started."""
    process = await cli.start(*args)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.timeout(300)
async def test_demo_plays_the_town_and_its_people_remember(cli: Cli, here: Path) -> None:
    async with _started(cli, "demo", "--yes", "--json") as process, asyncio.timeout(WITHIN_S):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    summary: dict[str, Any] = json.loads(out)
    assert tuple(summary) == KEYS

    policy = default_policy()
    with town_path().open("rb") as lines:
        graded = [grade(decode_tick(line), policy) for line in lines]
    memories = [memory for tick in graded for memory in tick.memories]
    assert summary["published"] == sum(len(tick["decisions"]) for tick in load_ticks())
    assert summary["stored"] == len(memories)
    assert summary["dropped"] == sum(tick.dropped.total() for tick in graded)
    assert summary["rejected"] == summary["pending"] == summary["parked"] == 0
    own = sum(memory.speaker is None for memory in memories)
    assert own == summary["published"] - summary["dropped"]

    questions = load_questions()
    answers = summary["answers"]
    assert (summary["recalls"], summary["empty"]) == (len(questions), 0)
    assert [answer["observation"] for answer in answers] == [q.observation for q in questions]
    fish = answers[0]
    assert (fish["agent"], fish["tick"]) == ("alice", 200)
    assert "bob told me: The market sells fresh fish" in fish["recalled"]
    for answer, question in zip(answers, questions, strict=True):
        assert answer["found"] == any(question.expects in text for text in answer["recalled"])
    found = sum(answer["found"] for answer in answers)
    assert found >= len(questions) - 2
    assert f"{found} of {len(questions)} answers hold what they should" in err.decode()
    assert 0 < summary["recall_p50_ms"] <= summary["recall_p99_ms"]
    assert 0 < summary["seconds"] < 180

    assert _processes(here) == []
    assert list(here.iterdir()) == []


@pytest.mark.timeout(300)
async def test_demo_interrupted_in_the_play_leaves_nothing(cli: Cli, here: Path) -> None:
    async with _started(cli, "demo", "--yes") as process:
        told = await _says(process.stdout, "Starting all of it")
        assert "bob says to alice: “The market sells fresh fish”" in told
        assert "Alice walks past the market" in told
        await _says(process.stderr, "Playing the town")
        assert _processes(here)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(WITHIN_S):
            _, err = await process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert _processes(here) == []
    assert list(here.iterdir()) == []


@pytest.mark.timeout(300)
async def test_up_is_found_by_other_commands_and_ends_at_ctrl_c(cli: Cli, here: Path) -> None:
    note = here / ".tickmind" / "stack.json"
    async with _started(cli, "up", "--yes") as process:
        shown = await _says(process.stdout, "other commands find it")
        for part in ("TICKMIND_DATABASE_URL=", "TICKMIND_AMQP_URL=", "/readyz", str(note.parent)):
            assert part in shown
        assert stat.S_IMODE(note.stat().st_mode) == 0o600

        line = b'{"world": "w", "tick": 1, "decisions": [{"agent": "a", "action": "stay"}]}\n'
        published = await cli("publish", "-", stdin=line)
        assert published.code == 0, published.err
        assert "using the stack that runs in" in published.err
        status = await cli("status", "--json")
        assert status.json["queues"]["tickmind.recall"]["consumers"] == 1

        second = await cli("up", "--yes")
        assert (second.code, second.out) == (2, "")
        assert f"started by process {process.pid}" in second.err
        assert note.exists()

        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(WITHIN_S):
            _, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert b"Stopping; the data are kept." in err
    assert not note.exists()
    assert (note.parent / "postgres").is_dir()
    assert _processes(here) == []
