"""The private RabbitMQ, and what happens where none is installed."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TextIO

import aio_pika
import psutil
import pytest
from aio_pika.abc import (
    AbstractChannel,
    AbstractIncomingMessage,
    AbstractQueue,
)
from pamqp.common import FieldTable

from tickmind.errors import ConfigurationError
from tickmind.local import rabbitmq_install
from tickmind.local.process_tree import alive
from tickmind.local.rabbitmq import LocalRabbitmq, running_rabbitmq

pytestmark = pytest.mark.usefixtures("installed_rabbitmq")


@asynccontextmanager
async def queue_of(broker: LocalRabbitmq) -> AsyncIterator[tuple[AbstractChannel, AbstractQueue]]:
    connection = await aio_pika.connect(broker.url)
    async with connection:
        channel = await connection.channel()
        kind: FieldTable = {"x-queue-type": "quorum"}
        yield channel, await channel.declare_queue("kept", durable=True, arguments=kind)


async def publish(broker: LocalRabbitmq, body: bytes) -> None:
    async with queue_of(broker) as (channel, _):
        message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(message, routing_key="kept")


async def consume(broker: LocalRabbitmq) -> bytes:
    async with queue_of(broker) as (_, queue):
        arrived: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def take(message: AbstractIncomingMessage) -> None:
            await message.ack()
            if not arrived.done():
                arrived.set_result(message.body)

        await queue.consume(take)
        return await asyncio.wait_for(arrived, 30)


async def test_messages_and_port_are_kept_and_nothing_is_left_behind(tmp_path: Path) -> None:
    """Also over a killed broker: what was confirmed is there after the next start.

    The restart in between is for RabbitMQ 3.10, which forgets a quorum queue when it is killed in
    the first second of the queue's life.
    """
    before = set(psutil.Process().children(recursive=True))
    async with running_rabbitmq(tmp_path) as broker:
        port = broker.port
        async with queue_of(broker):
            pass
        await broker.restart()
        await publish(broker, b"confirmed")
        started = set(psutil.Process().children(recursive=True)) - before
        assert {"beam.smp", "epmd"} <= {process.name() for process in started}
        os.kill(broker.pid, signal.SIGKILL)
    async with running_rabbitmq(tmp_path) as broker:
        assert broker.port == port
        assert await consume(broker) == b"confirmed"
        started |= set(psutil.Process().children(recursive=True)) - before
    assert not any(alive(process) for process in started)


async def test_first_start_that_was_killed_is_begun_anew(tmp_path: Path) -> None:
    """Data that never belonged to a ready broker are removed; RabbitMQ would refuse them."""
    data = tmp_path / "data" / "tickmind@localhost"
    data.mkdir(parents=True)
    (data / "schema.DAT").write_text("half written")
    async with running_rabbitmq(tmp_path) as broker:
        listed = await broker.rabbitmqctl("list_vhosts")
        assert "/" in listed.split()


async def test_broker_listens_on_loopback_only(rabbitmq: LocalRabbitmq) -> None:
    listening = {
        connection.laddr
        for child in psutil.Process().children()
        if child.name() in {"beam.smp", "epmd"}
        for connection in child.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert rabbitmq.port in {port for _, port in listening}
    assert {address for address, _ in listening} <= {"127.0.0.1", "::1"}


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without RabbitMQ: an empty PATH but for `sh`, and no packaged server."""
    programs = tmp_path / "bin"
    programs.mkdir()
    program(programs / "sh", 'exec /bin/sh "$@"')
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(rabbitmq_install, "PACKAGED_SERVER", tmp_path / "absent")
    monkeypatch.setattr(rabbitmq_install, "HOMEBREW_SERVERS", ())
    return programs


@pytest.fixture
def terminal() -> Iterator[TextIO]:
    """What a program reads from where a person sits."""
    ours, theirs = os.openpty()
    with os.fdopen(ours), os.fdopen(theirs) as stream:
        yield stream


async def test_absence_is_one_sentence_when_nobody_can_be_asked(bare: Path) -> None:
    program(bare / "dnf", "exit 1")
    with pytest.raises(ConfigurationError, match=r"type `.*dnf install rabbitmq-server`") as raised:
        await rabbitmq_install.ensure_rabbitmq(assume_yes=False)
    assert "\n" not in str(raised.value)


async def test_absence_is_one_sentence_when_no_package_manager_is_known(bare: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"install it \(version 3\.10 or newer\)"):
        await rabbitmq_install.ensure_rabbitmq(assume_yes=True)


@pytest.mark.parametrize("answer", [True, False])
async def test_question_decides_when_a_person_is_there(
    bare: Path, terminal: TextIO, monkeypatch: pytest.MonkeyPatch, answer: bool
) -> None:
    installed = bare / "rabbitmq-server"
    program(bare / "brew", f"printf '#!/bin/sh' >{installed}; /bin/chmod +x {installed}")
    monkeypatch.setattr("sys.stdin", terminal)
    asked: list[str] = []

    def ask(question: str) -> bool:
        asked.append(question)
        return answer

    if answer:
        assert await rabbitmq_install.ensure_rabbitmq(False, ask) == installed
    else:
        with pytest.raises(ConfigurationError, match="type `brew install rabbitmq`"):
            await rabbitmq_install.ensure_rabbitmq(False, ask)
    assert asked == ["RabbitMQ is not installed. Install it now with `brew install rabbitmq`?"]


async def test_failed_installation_shows_how_it_ended(bare: Path) -> None:
    program(bare / "brew", "echo no space left; exit 3")
    with pytest.raises(ConfigurationError, match=r"(?s)exit code 3.*no space left"):
        await rabbitmq_install.ensure_rabbitmq(assume_yes=True)


def test_script_itself_is_chosen_over_the_wrapper_that_changes_the_user(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = program(bare / "rabbitmq-server", "")
    packaged = program(tmp_path / "packaged-server", "")
    monkeypatch.setattr(rabbitmq_install, "PACKAGED_SERVER", packaged)
    assert rabbitmq_install.find_rabbitmq() == wrapper
    monkeypatch.setattr(rabbitmq_install, "WRAPPER_DIRS", (bare,))
    assert rabbitmq_install.find_rabbitmq() == packaged
