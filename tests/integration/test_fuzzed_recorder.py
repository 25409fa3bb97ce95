"""The recorder on its real queue, fed with anything, between messages that are sound.

`TICKMIND_FUZZ_FACTOR=20 ./dev test FILE` sends twenty times as many.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Iterable
from pathlib import Path

import aio_pika
import pytest

from tests.commands import Cli, servers_of
from tests.corpus import TICKS, recorded_ticks
from tests.foreign import ForeignMessage, Key, any_properties
from tests.ledger import Ledger
from tests.mutating import Fuzzing, Mutated, bend
from tests.nasty import dumps, parsed
from tests.recording import (
    Wire,
    count,
    kept_rejects,
    left_in,
    reads_of,
    recorder,
    remembered,
    wire,
)
from tests.running import eventually, metric, running
from tickmind.database import Database
from tickmind.messages import MAX_BODY_BYTES
from tickmind.service import App
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind.topology import DEAD_LETTER_QUEUE, RECORDER_QUEUE, TICK_ENDED_PREFIX, tick_ended_key

#: Messages on their way to the broker at once.
_AT_ONCE = 64
#: A replay of a thousand messages takes 2 s on two busy cores.
_PATIENCE_S = 120.0

_KEYS = (
    tick_ended_key("town-7"),
    tick_ended_key("界" * 100),
    *(
        TICK_ENDED_PREFIX + rest
        for rest in ("", "%00", "%FF%FE", "%zz", ".a.b", "a b", "%ED%A0%80")
    ),
    "tick.ended.v1",
    Key(b"tick.ended.v1.\xff\xfe"),
    Key(b"tick.ended.v1." + b"\xff" * 230),
    Key("tick.ended.v1.镇".encode("gbk")),
)


def _neighbour(number: int) -> bytes:
    """A sound message, known by its number."""
    return json.dumps(
        {
            "world": "neighbours",
            "tick": number,
            "decisions": [
                {
                    "agent": "bob",
                    "action": "talk",
                    "speech": f"told {number}",
                    "heard_by": ["ann"],
                },
                {"agent": "cat", "action": "move", "target": [number, 8]},
                {"agent": "dan", "action": "stay"},
            ],
        }
    ).encode()


async def _neighbours_are_whole(database: Database, number: int) -> None:
    """By hand, by the policy's table in the README."""
    found = sorted(
        (row.tick, row.agent, row.kind, row.content, row.importance, row.speaker)
        for row in await remembered(database, "neighbours")
    )
    expected: list[tuple[int, str, str, str, int, str | None]] = []
    for n in range(number):
        expected += [
            (n, "ann", "conversation", f"bob told me: told {n}", 8, "bob"),
            (n, "bob", "conversation", f"I said: told {n}", 8, None),
            (n, "cat", "observation", f"I moved to ({n}, 8)", 4, None),
        ]
    assert found == sorted(expected, key=lambda row: row[:2])


async def _send(own: Wire, messages: Iterable[tuple[aio_pika.Message, str]]) -> None:
    """In any order, each confirmed."""
    waiting = iter(messages)

    async def publish() -> None:
        for message, key in waiting:
            await own.events.publish(message, routing_key=key)

    await asyncio.gather(*(publish() for _ in range(_AT_ONCE)))


def _message(body: bytes) -> aio_pika.Message:
    return aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)


async def _done(app: App, *, decisions: int, rejects: int) -> None:
    """Wait until so many are through."""

    async def through() -> tuple[float, float]:
        refused = metric(app, "tickmind_rejects_total", reason="invalid")
        return metric(app, "tickmind_decisions_total"), refused

    await eventually(
        through,
        lambda now: now == (decisions, rejects),
        what=f"of {decisions} decisions and {rejects} rejects",
        timeout_s=_PATIENCE_S,
    )


def _nobody_failed(app: App, caplog: pytest.LogCaptureFixture) -> None:
    for reason in ("internal", "permanent", "database"):
        assert metric(app, "tickmind_rejects_total", reason=reason) == 0, reason
    assert metric(app, "tickmind_dead_letters_total") == 0
    assert metric(app, "tickmind_recorder_batches_total", outcome="refused") == 0
    assert [record.getMessage() for record in caplog.records if record.levelno > 30] == []


async def test_bent_messages_are_each_accounted_for(
    data: Path,
    fuzzing: Fuzzing,
    tmp_path: Path,
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """cases 7 and 9: thousands of them between sound ones. Each is stored, dropped or rejected as
    its contract says and delivered once; no neighbour is lost; rejects are listed and can be
    published again."""
    caplog.set_level(logging.WARNING, logger="tickmind")
    bent = list(fuzzing.inputs([*TICKS, *recorded_ticks(data, 150)], 1500))
    ledger = Ledger()
    messages: list[tuple[aio_pika.Message, str]] = []
    for number, mutated in enumerate(bent):
        for body, key in (
            (mutated.body, _KEYS[number % len(_KEYS)]),
            (_neighbour(number), tick_ended_key("neighbours")),
        ):
            ledger.add(body, key)
            messages.append((_message(body), key))
    reads = reads_of(monkeypatch)
    app = recorder(database_settings, broker_settings)

    async with running(app), wire(broker_settings) as own:
        await _send(own, messages)
        await _done(app, decisions=ledger.decisions, rejects=ledger.rejects.total())
        assert await app.checks["broker"]() is None
        assert len(reads) == ledger.messages  # none came twice: nothing ended under way

        _told_of(bent, ledger)
        await ledger.compare(database)
        await _neighbours_are_whole(database, len(bent))
        _nobody_failed(app, caplog)

        await _rejects_are_listed_and_retried(
            Cli(tmp_path, servers_of(database_settings, broker_settings)), database, ledger
        )
        _nobody_failed(app, caplog)
    assert await left_in(broker_settings, RECORDER_QUEUE, DEAD_LETTER_QUEUE) == [0, 0]


def _told_of(bent: list[Mutated], ledger: Ledger) -> None:
    """Not all are of one kind, or the test would say little."""
    assert ledger.rejects.total() > len(bent) / 3
    assert len(ledger.memories) > len(bent) * 3


async def _rejects_are_listed_and_retried(cli: Cli, database: Database, ledger: Ledger) -> None:
    listed = await cli("rejects", "list", "--json", "--most", "1000000")
    assert (listed.code, listed.err) == (0, "")
    assert len(listed.json) == len(ledger.rejects)
    assert all(row["detail"] and row["reason"] == "invalid" for row in listed.json)
    shown = await cli("rejects", "list", "--most", "1000")
    assert shown.code == 0
    assert "\x1b" not in shown.out

    # Of each kind of routing key some: published again, refused again, and not lost.
    before = {bytes(row.body) for row in await kept_rejects(database)}
    # What is no number is JSON by now, which will do in a field of which nothing is known.
    some = listed.json[:: max(1, len(listed.json) // 100)]
    chosen = [str(row["id"]) for row in some if "NaN" not in row["detail"]]
    done = await cli("rejects", "retry", *chosen, "--json")
    assert (done.code, done.err, done.json) == (0, "", {"retried": len(chosen)})

    async def all_back() -> bool:
        return {bytes(row.body) for row in await kept_rejects(database)} == before

    await eventually(all_back, bool, what="rejects are there again")


async def test_a_bent_decision_costs_only_itself(
    fuzzing: Fuzzing,
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """cases 7 and 9: in each message one decision is sound and known by its text, the others are
    bent. All sound ones are stored, and as many decisions are kept, dropped or rejected as were
    sent."""
    caplog.set_level(logging.WARNING, logger="tickmind")
    others = [parsed(body) for body in TICKS]
    decisions = [one for body in TICKS if (tick := parsed(body)) for one in dict(tick)["decisions"]]
    rng = random.Random(f"decisions:{fuzzing.seed}")
    sent = 0
    messages = []
    for number in range(1000 * fuzzing.factor):
        bent = [dumps(bend(rng, rng.choice(decisions), others)[0]) for _ in range(3)]
        bent = [one for one in bent if _is_json(one)]
        told = {"agent": "ann", "action": "observe", "text": f"seen {number}"}
        among = [*bent, json.dumps(told).encode()]
        rng.shuffle(among)
        head = b'{"world": "mixed", "tick": %d, "decisions": [' % number
        body = head + b",".join(among) + b"]}"
        if len(body) > MAX_BODY_BYTES:
            continue
        sent += len(among)
        messages.append((_message(body), tick_ended_key("mixed")))
    app = recorder(database_settings, broker_settings)

    async with running(app), wire(broker_settings) as own:
        await _send(own, messages)

        async def settled() -> float:
            # A decision that lacks words is received, and then rejected.
            return (
                sum(_all(app, "tickmind_decisions_kept_total"))
                + sum(_all(app, "tickmind_decisions_dropped_total"))
                + metric(app, "tickmind_rejects_total", reason="invalid")
            )

        await eventually(settled, lambda now: now >= sent, what=f"of {sent}", timeout_s=_PATIENCE_S)
        assert await settled() == sent
        _nobody_failed(app, caplog)
    found = {row.content for row in await remembered(database, "mixed") if row.agent == "ann"}
    assert found >= {f"seen {_tick_of(message.body)}" for message, _ in messages}
    assert len(await kept_rejects(database)) > 100
    assert await count(database, "tick_receipt") == len(messages)


def _is_json(body: bytes) -> bool:
    """Whether it can stand in a message; else nobody can tell where the next decision begins."""
    try:
        json.loads(body, strict=False)
    except (ValueError, RecursionError):
        return False
    return True


def _tick_of(body: bytes) -> int:
    return int(body.split(b'"tick": ', 1)[1].split(b",", 1)[0])


def _all(app: App, name: str) -> Iterable[float]:
    for family in app.registry.collect():
        for sample in family.samples:
            if sample.name == name:
                yield sample.value


async def test_properties_of_any_kind_stop_nobody(
    fuzzing: Fuzzing,
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever stands beside a sound message, it is stored, and it is delivered once."""
    caplog.set_level(logging.WARNING, logger="tickmind")
    rng = random.Random(f"properties:{fuzzing.seed}")
    number = 600 * fuzzing.factor
    messages = [
        (ForeignMessage(_neighbour(n), any_properties(rng)), _KEYS[n % len(_KEYS)])
        for n in range(number)
    ]
    reads = reads_of(monkeypatch)
    app = recorder(database_settings, broker_settings)

    async with running(app), wire(broker_settings) as own:
        await _send(own, messages)
        await _done(app, decisions=3 * number, rejects=0)
        assert len(reads) == number
        _nobody_failed(app, caplog)
    await _neighbours_are_whole(database, number)
