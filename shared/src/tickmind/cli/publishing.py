"""Publishing a trace: checked line by line, many in flight, each confirmed."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tickmind.cli.output import Bar, progress
from tickmind.cli.servers import open_client
from tickmind.cli.trace import Line, check, opened, read, seekable
from tickmind.errors import InvalidMessage

if TYPE_CHECKING:
    from tickmind.client import MemoryClient
    from tickmind.settings import BrokerSettings

__all__ = ["Published", "publish_trace"]

#: Ticks sent and not yet confirmed. Measured, ticks of 1 kB a second: 1,260 with one in flight,
#: 3,400 with 64, 4,900 with 256; yet a tick may be 1 MiB, and this many of them are in memory.
IN_FLIGHT = 64

#: Longest wait for the confirmation of one tick.
CONFIRM_S = 30.0


@dataclass(slots=True, kw_only=True)
class Published:
    """What became of a trace. `rejected`: decisions sent that the recorder will reject."""

    lines: int = 0
    published: int = 0
    bad: int = 0
    rejected: int = 0
    unconfirmed: int = 0
    messages: int = 0
    seconds: float = 0.0

    @property
    def ticks_per_s(self) -> float:
        return self.published / self.seconds if self.seconds else 0.0


async def publish_trace(
    settings: BrokerSettings,
    path: Path,
    *,
    rate: float | None,
    strict: bool,
    warn: Callable[[str], None],
) -> Published:
    """Publish a file, `-`: stdin. `rate`: ticks per second; `warn` is told of each bad line.

    Raises ConfigurationError for a file that cannot be read, BrokerUnavailable.
    """
    done = Published()
    with opened(path) as descriptor:
        if not strict:
            await _publish(settings, descriptor, done, rate=rate, warn=warn)
            return done
        with seekable(descriptor) as twice:
            async for line in _lines(twice):
                done.lines += 1
                done.bad += _told(line, warn) > 0
            if done.bad:
                warn("nothing was sent, since --strict wants every line to be sound")
                return done
            os.lseek(twice, 0, os.SEEK_SET)
            done = Published()
            await _publish(settings, twice, done, rate=rate, warn=warn)
    return done


def _told(line: Line, warn: Callable[[str], None]) -> int:
    """Say what is wrong with a line; how many faults that are."""
    if line.fault is not None:
        warn(f"line {line.number}: {line.fault}")
        return 1
    for refused in line.refused:
        warn(f"line {line.number}: {refused}")
    return len(line.refused)


async def _lines(descriptor: int) -> AsyncIterator[Line]:
    number = 0
    async for raw in read(descriptor):
        number += 1
        if raw.strip():
            yield check(number, raw)


async def _publish(
    settings: BrokerSettings,
    descriptor: int,
    done: Published,
    *,
    rate: float | None,
    warn: Callable[[str], None],
) -> None:
    loop = asyncio.get_running_loop()
    size = os.fstat(descriptor).st_size if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    async with open_client(settings) as client:
        sending = _Sending(client, done, warn)
        begun = loop.time()
        try:
            with progress("Publishing", total=size) as bar:
                await _send_all(sending, descriptor, bar, begun=begun, rate=rate)
        except asyncio.CancelledError:
            warn(f"interrupted: {done.published} ticks were confirmed; publishing again is safe")
            raise
        finally:
            done.seconds = round(loop.time() - begun, 3)


async def _send_all(
    sending: _Sending, descriptor: int, bar: Bar, *, begun: float, rate: float | None
) -> None:
    loop = asyncio.get_running_loop()
    done, seen_bytes, sent = sending.done, 0, 0
    async with asyncio.TaskGroup() as tasks:
        number = 0
        async for raw in read(descriptor):
            number += 1
            seen_bytes += len(raw) + 1
            if not raw.strip():
                continue
            line = check(number, raw)
            done.lines += 1
            faults = _told(line, sending.warn)
            if line.message is None:
                done.bad += 1
                continue
            done.rejected += faults
            if rate is not None:
                await asyncio.sleep(begun + sent / rate - loop.time())
            await sending.room.acquire()
            if sending.lost:
                return
            sent += 1
            tasks.create_task(sending.send(line))
            bar.to(seen_bytes, about=f"{done.published} ticks")


class _Sending:
    """Ticks under way. `lost`: one was not confirmed, so that no further one is begun."""

    def __init__(self, client: MemoryClient, done: Published, warn: Callable[[str], None]) -> None:
        self.client = client
        self.done = done
        self.warn = warn
        self.room = asyncio.Semaphore(IN_FLIGHT)
        self.lost = False

    async def send(self, line: Line) -> None:
        assert line.message is not None
        try:
            receipt = await self.client.publish_tick(
                line.message["world"],
                line.message["tick"],
                line.message["decisions"],
                time=line.message.get("time"),
                timeout_s=CONFIRM_S,
            )
        except InvalidMessage as exc:
            self.done.bad += 1
            self.warn(f"line {line.number}: {exc}")
            return
        finally:
            self.room.release()
        self.done.messages += receipt.messages
        if receipt.confirmed:
            self.done.published += 1
            return
        self.done.unconfirmed += 1
        if not self.lost:
            self.lost = True
            self.warn(
                f"line {line.number}: the broker did not confirm it ({receipt.reason}); stopped"
                " here: publish the file again once the broker is well, which is safe"
            )
