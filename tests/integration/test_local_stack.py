"""The whole stack: ready in one call, gone without a trace however it ends, its data kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aio_pika
import asyncpg
import psutil
import pytest

from tickmind.errors import ConfigurationError
from tickmind.local.environment import answers_ok
from tickmind.local.process_tree import alive
from tickmind.local.processes import StartFailed
from tickmind.local.stack import EMBEDDING, LocalStack, local_stack

pytestmark = pytest.mark.usefixtures("installed_rabbitmq")

#: A process of its own that holds a stack without services, as `tickmind up` would.
HOLDER = """
import asyncio, json, sys
from pathlib import Path
from tickmind.local.stack import local_stack

async def main():
    async with local_stack(
        Path(sys.argv[1]), services=(), durable=False, commands=lambda process: ("true",)
    ) as stack:
        print(json.dumps({"database": stack.database_url, "amqp": stack.amqp_url}), flush=True)
        await stack.failed()

asyncio.run(main())
"""

#: A service's outside: ready on its port, or not to be started.
STAND_IN = """
import http.server, os, sys

if os.environ.get("TICKMIND_TEST_FAULT"):
    sys.exit(os.environ["TICKMIND_TEST_FAULT"])

class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/readyz" else 404)
        self.end_headers()

    def log_message(self, *arguments):
        pass

address = os.environ["TICKMIND_HEALTH_HOST"], int(os.environ["TICKMIND_HEALTH_PORT"])
http.server.HTTPServer(address, Ready).serve_forever()
"""


def stand_in(process: str) -> Sequence[str]:
    return ("true",) if process == "migrations" else (sys.executable, "-c", STAND_IN)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that the database's system user can reach, where the tests run as root."""
    path = Path(tempfile.mkdtemp(prefix="tickmind-test-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def belonging_to(directory: Path) -> list[psutil.Process]:
    """Every process of this machine that runs in, on or with something of `directory`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            logs = [file.path for file in process.open_files()]
            traces = (process.cwd(), *process.cmdline(), *process.environ().values(), *logs)
            if process.pid != os.getpid() and any(str(directory) in trace for trace in traces):
                found.append(process)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    process: asyncio.subprocess.Process
    database_url: str
    amqp_url: str


@asynccontextmanager
async def held(directory: Path) -> AsyncIterator[Holder]:
    """A stack held by another process, which is killed at the latest on leaving."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(directory), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        urls = json.loads(await asyncio.wait_for(process.stdout.readline(), 120))
        yield Holder(process=process, database_url=urls["database"], amqp_url=urls["amqp"])
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def gone(processes: list[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Those that are left after at most `timeout_s`."""
    await asyncio.to_thread(psutil.wait_procs, processes, timeout=timeout_s)
    return [process for process in processes if alive(process)]


async def test_killed_and_interrupted_holders_leave_no_process_and_all_data(
    directory: Path,
) -> None:
    async with held(directory) as holder:
        connection = await asyncpg.connect(holder.database_url)
        await connection.execute("CREATE TABLE kept AS SELECT 7 AS answer")
        await connection.close()
        processes = belonging_to(directory)
        assert {"postgres", "beam.smp", "epmd"} <= {process.name() for process in processes}
        assert any("embedding_server" in " ".join(process.cmdline()) for process in processes)
        with pytest.raises(ConfigurationError, match=f"started by process {holder.process.pid}"):
            async with local_stack(directory, services=(), commands=stand_in):
                pass
        holder.process.kill()
        assert await gone(processes, 30) == []

    async with held(directory) as holder:
        connection = await asyncpg.connect(holder.database_url)
        assert await connection.fetchval("SELECT answer FROM kept") == 7
        await connection.close()
        processes = belonging_to(directory)
        holder.process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(holder.process.wait(), 30) != 0
        # Nothing to wait for: an orderly end comes after the ends of all the others.
        assert [process for process in processes if alive(process)] == []
    assert belonging_to(directory) == []


async def test_termination_while_starting_leaves_no_process(directory: Path) -> None:
    """SIGTERM as soon as the broker's process exists, long before it is ready."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLDER, str(directory))
    pid_path = directory / "rabbitmq" / "child-rabbitmq.pid"
    async with asyncio.timeout(60):
        while not pid_path.exists():  # noqa: ASYNC110  # the other process sets no event of ours
            await asyncio.sleep(0.05)
    process.terminate()
    assert await asyncio.wait_for(process.wait(), 30) == 128 + signal.SIGTERM
    assert belonging_to(directory) == []


@pytest.fixture(scope="module")
async def stack() -> AsyncIterator[LocalStack]:
    """A stack with two stand-ins, in this process."""
    path = Path(tempfile.mkdtemp(prefix="tickmind-test-", dir="/var/tmp"))
    path.chmod(0o755)
    lines: list[str] = []
    async with local_stack(
        path,
        services=("recorder", "embedder"),
        durable=False,
        report=lines.append,
        commands=stand_in,
        settings={"TICKMIND_LOG_LEVEL": "warning"},
    ) as running:
        assert [line.split(" ready")[0] for line in lines][-3] == "Tables"
        assert len(lines) == 6
        yield running
    shutil.rmtree(path)


def port_of(stack: LocalStack, process: str) -> int:
    return int(stack.health_urls[process].rsplit(":", 1)[1])


async def test_service_is_told_where_everything_is(stack: LocalStack) -> None:
    told = psutil.Process(stack.pid("recorder")).environ()
    assert {key: told[key] for key in stack.settings} == stack.settings
    assert told["TICKMIND_HEALTH_PORT"] == str(port_of(stack, "recorder"))
    assert told["TICKMIND_LOG_LEVEL"] == "warning"
    assert "127.0.0.1" in told["no_proxy"]


async def test_replica_is_started_killed_and_started_again(stack: LocalStack) -> None:
    await stack.start_service("embedder", 1)
    port = port_of(stack, "embedder-1")
    assert stack.pid("embedder", 1) != stack.pid("embedder")
    stack.kill("embedder", replica=1)
    assert await stack.ended("embedder", 1) == -signal.SIGKILL
    assert not await answers_ok(port, "/readyz")
    await stack.start_service("embedder", 1)
    assert await answers_ok(port, "/readyz")
    await stack.stop_service("embedder", 1)
    assert not await answers_ok(port, "/readyz")


async def test_service_that_cannot_start_shows_why(stack: LocalStack) -> None:
    fault = {"TICKMIND_TEST_FAULT": "TICKMIND_AMQP_URL must begin with amqp://"}
    with pytest.raises(StartFailed, match=r"(?s)retriever ended with exit code 1 .*must begin"):
        await stack.start_service("retriever", settings=fault)
    await stack.stop_service("retriever")


async def test_process_that_ends_by_itself_is_noticed(stack: LocalStack) -> None:
    watching = asyncio.create_task(stack.failed())
    os.kill(stack.pid("recorder"), signal.SIGKILL)
    with pytest.raises(StartFailed, match="recorder ended unexpectedly"):
        await asyncio.wait_for(watching, 30)
    await stack.start_service("recorder")


async def test_broker_and_database_come_back_where_they_were(stack: LocalStack) -> None:
    urls = stack.amqp_url, stack.database_url, stack.embedding_base_url
    await stack.restart_rabbitmq()
    await stack.stop_service("postgres")
    await stack.start_service("postgres")
    stack.kill(EMBEDDING)
    await stack.ended(EMBEDDING)
    await stack.start_service(EMBEDDING)
    assert (stack.amqp_url, stack.database_url, stack.embedding_base_url) == urls
    await (await aio_pika.connect(stack.amqp_url)).close()
    await (await asyncpg.connect(stack.database_url)).close()
