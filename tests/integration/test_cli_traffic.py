"""`publish` and `recall` against running services."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.commands import Cli, servers_of
from tests.running import running, settings_for, settled
from tickmind.database import Database
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind_embedder.app import create_app as create_embedder
from tickmind_embedder.settings import EmbedderSettings
from tickmind_recorder.app import create_app as create_recorder
from tickmind_recorder.settings import RecorderSettings
from tickmind_retriever.app import create_app as create_retriever
from tickmind_retriever.settings import RetrieverSettings


def _tick(tick: int, *decisions: Any, world: str = "w") -> dict[str, Any]:
    told = {
        "agent": "bob",
        "action": "talk",
        "speech": f"Fish number {tick}",
        "heard_by": ["alice"],
    }
    return {"world": world, "tick": tick, "decisions": list(decisions) or [told]}


def _lines(*lines: Any) -> bytes:
    return b"".join(
        (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines
    )


#: A trace with a fault of every sort: (line, what is said of it), "" for sound ones.
FAULTY: Sequence[tuple[Any, str]] = [
    (_tick(1), ""),
    (b"not json", "line 2: not JSON"),
    (b"", ""),
    (b"[1, 2]", "line 4: not a JSON object"),
    ({"tick": 2, "decisions": []}, "line 5: world: Field required"),
    ({"world": "w", "decisions": []}, "line 6: tick: Field required"),
    ({"world": "w", "tick": -1, "decisions": []}, "line 7: tick: Input should be greater"),
    ({"world": "w", "tick": 2, "decisions": {}}, "line 8: decisions: Input should be a valid list"),
    ({"world": "w", "tick": 2, "decisions": ["x"]}, "line 9: decision 1: not a JSON object"),
    (b'{"world": "\xff"}', "line 10: not UTF-8"),
    ({"world": "w", "tick": 2, "time": "noon", "decisions": []}, "line 11: time: "),
    (_tick(3, {"agent": "a", "action": "stay"}, {"action": "stay"}), "line 12: decision 2: agent:"),
    (b'{"world":"w","tick":4,"decisions":[{"agent":"a","action":"move","target":[NaN,1]}]}',
     "line 13: decision 1: holds NaN or Infinity"),
    (_tick(5, {"agent": "a", "action": "observe", "text": "x\ud800\x00y"}), ""),
    (b'{"world":"w","tick":6,"decisions":[{"agent":"a","action":"stay","x":%s%s}]}'
     % (b"[" * 5000, b"]" * 5000), "line 15: nested too deeply"),
    (b'{"world":"w","tick":%s,"decisions":[]}' % (b"9" * 5000), "line 16: holds an integer"),
]  # fmt: skip


@pytest.fixture
def cli(
    tmp_path: Path, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> Cli:
    return Cli(tmp_path, servers_of(database_settings, broker_settings))


async def test_publish_stores_a_trace_once_however_often_it_is_sent(
    cli: Cli,
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
) -> None:
    trace = cli.where / "trace.jsonl"
    trace.write_bytes(_lines(*(_tick(tick) for tick in range(300))))
    settings = settings_for(RecorderSettings, database_settings, broker_settings)
    embedder = settings_for(EmbedderSettings, database_settings, broker_settings)
    async with running(create_recorder(settings), create_embedder(embedder)):
        first = await cli("publish", "trace.jsonl")
        assert first.code == 0, first.err
        assert first.out.startswith("300 of 300 ticks published, 0 bad lines; ")
        assert first.err == ""
        await settled(database, "w", memories=600)

        again = await cli("publish", "-", "--json", stdin=trace.read_bytes())
        assert (again.code, again.err) == (0, "")
        summary = again.json
        assert summary.pop("seconds") > 0
        assert summary.pop("ticks_per_s") > 0
        assert summary == {
            "lines": 300,
            "published": 300,
            "bad": 0,
            "rejected": 0,
            "unconfirmed": 0,
            "messages": 300,
        }
        await settled(database, "w", memories=600)


async def test_publish_names_each_bad_line_and_sends_the_others(
    cli: Cli,
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
) -> None:
    (cli.where / "trace.jsonl").write_bytes(_lines(*(line for line, _ in FAULTY)))
    settings = settings_for(RecorderSettings, database_settings, broker_settings)
    embedder = settings_for(EmbedderSettings, database_settings, broker_settings)
    async with running(create_recorder(settings), create_embedder(embedder)):
        done = await cli("publish", "trace.jsonl", "--json")
        assert done.code == 1
        told = done.err.splitlines()
        expected = [says for _, says in FAULTY if says]
        assert len(told) == len(expected)
        for line, says in zip(told, expected, strict=True):
            assert line.startswith(says)
        summary = done.json
        assert (summary["lines"], summary["published"], summary["bad"]) == (15, 4, 11)
        assert summary["rejected"] == 2
        await settled(database, "w", memories=3)  # of tick 1 told and heard, of tick 5 seen


async def test_publish_strict_sends_nothing_where_a_line_is_bad(
    cli: Cli, broker_settings: BrokerSettings
) -> None:
    from tickmind.cli.queues import depths

    trace = _lines(_tick(1), _tick(2), b"{")
    (cli.where / "trace.jsonl").write_bytes(trace)
    for done in (
        await cli("publish", "trace.jsonl", "--strict"),
        await cli("publish", "-", "--strict", stdin=trace),
    ):
        assert done.code == 1
        assert "line 3: not JSON" in done.err
        assert "nothing was sent" in done.err
        assert done.out.startswith("0 of 3 ticks published, 1 bad lines")
    assert [depth.ready for depth in await depths(broker_settings)] == [None] * 4

    sound = await cli("publish", "-", "--strict", "--json", stdin=_lines(_tick(1), _tick(2)))
    assert (sound.code, sound.json["published"]) == (0, 2)
    recorder = (await depths(broker_settings))[0]
    assert recorder.ready == 2


async def test_publish_keeps_the_rate(cli: Cli) -> None:
    done = await cli(
        "publish", "-", "--rate", "10", "--json", stdin=_lines(*(_tick(tick) for tick in range(11)))
    )
    assert done.code == 0, done.err
    # The eleventh is due one second after the first.
    assert 1.0 <= done.json["seconds"] < 6.0


async def test_publish_sends_what_a_pipe_gives_before_its_end_and_stops_at_ctrl_c(
    cli: Cli, broker_settings: BrokerSettings
) -> None:
    from tests.running import eventually
    from tickmind.cli.queues import depths
    from tickmind.topology import RECORDER_QUEUE

    process = await cli.start("publish", "-", stdin=asyncio.subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(_lines(_tick(1)))
    await process.stdin.drain()

    async def ready() -> int | None:
        (queue,) = await depths(broker_settings, [RECORDER_QUEUE])
        return queue.ready

    await eventually(ready, lambda count: count == 1, what="messages")
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(30):  # the pipe is still open
        assert await process.wait() == 130
    assert process.stderr is not None
    said = (await process.stderr.read()).decode()
    assert said == "interrupted: 1 ticks were confirmed; publishing again is safe\n"


async def test_publish_splits_what_is_larger_than_a_message(cli: Cli) -> None:
    decisions = [
        {"agent": f"a{number}", "action": "talk", "speech": "x" * 1000} for number in range(1500)
    ]
    done = await cli("publish", "-", "--json", stdin=_lines(_tick(1, *decisions)))
    assert (done.code, done.json["lines"], done.json["published"]) == (0, 1, 1)
    assert done.json["messages"] == 2


async def test_publish_of_a_broker_that_refuses_stops_at_the_line(
    cli: Cli, broker_settings: BrokerSettings
) -> None:
    """A queue that takes nothing more: the first refused line is named, the rest is not tried."""
    from dataclasses import replace

    from tickmind.connecting import connect, declare
    from tickmind.topology import RECORDER_QUEUE

    refusing = {"x-queue-type": "classic", "x-overflow": "reject-publish", "x-max-length": 0}
    full = replace(RECORDER_QUEUE, arguments=refusing)
    async with await connect(broker_settings, name="test") as connection:
        await declare(await connection.channel(), full)
    done = await cli("publish", "-", "--json", stdin=_lines(*(_tick(tick) for tick in range(500))))
    assert done.code == 1
    assert "the broker did not confirm it" in done.err
    assert done.json["published"] == 0
    assert 1 <= done.json["unconfirmed"] <= 64


async def test_recall_shows_memories_with_scores_and_the_fragment(
    cli: Cli,
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
) -> None:
    apps = [
        create_recorder(settings_for(RecorderSettings, database_settings, broker_settings)),
        create_embedder(settings_for(EmbedderSettings, database_settings, broker_settings)),
        create_retriever(settings_for(RetrieverSettings, database_settings, broker_settings)),
    ]
    hostile = "Fish \x1b[31m\u202eand chips"
    told = {"agent": "bob", "action": "talk", "speech": hostile, "heard_by": ["alice"]}
    moved = {"agent": "alice", "action": "move", "target": [1, 2]}
    async with running(*apps):
        published = await cli("publish", "-", stdin=_lines(_tick(42, told), _tick(43, moved)))
        assert published.code == 0, published.err
        await settled(database, "w", memories=3)

        shown = await cli("recall", "w", "alice", "Alice smells fish")
        assert (shown.code, shown.err) == (0, "")
        heading, fragment = shown.out.split("You remember:")
        for name in ("score", "relevance", "recency", "importance", "tick", "kind", "content"):
            assert name in heading
        assert "bob told me: Fish" in heading
        assert "- bob told me: Fish" in fragment
        assert "- I moved to (1, 2)" in fragment
        assert "\x1b" not in shown.out
        assert "\u202e" not in shown.out

        answer = (await cli("recall", "w", "alice", "Alice smells fish", "--json")).json
        assert answer["tick"] == 44  # the tick after the last one recorded
        assert (answer["status"], answer["reason"], answer["recorded_tick"]) == ("ok", None, 43)
        assert {memory["tick"] for memory in answer["memories"]} == {42, 43}
        assert all(0 < memory["recency"] <= 1 for memory in answer["memories"])

        options = ["--k", "1", "--kinds", "observation,conversation", "--min-importance", "8"]
        best = (await cli("recall", "w", "alice", "fish", "--json", "--tick", "99", *options)).json
        assert best["tick"] == 99
        assert [memory["tick"] for memory in best["memories"]] == [42]

        early = ["--as-of-tick", "42", "--language", "zh", "--ranking", "relevance"]
        then = (await cli("recall", "w", "alice", "fish", "--json", *early)).json
        assert [memory["tick"] for memory in then["memories"]] == [42]
        assert then["fragment"].startswith("你记得：")

        bounds = ["--from-tick", "43", "--to-tick", "50", "--weights", "0,1,0"]
        walk = (await cli("recall", "w", "alice", "fish", "--json", *bounds)).json
        assert [memory["tick"] for memory in walk["memories"]] == [43]
        assert walk["memories"][0]["score"] == walk["memories"][0]["recency"]
        waited = ["--exclude-last-ticks", "2", "--wait-for-tick", "44", "--wait-ms", "1"]
        waited += ["--distinct", "numbers", "--max-core", "0", "--fallback", "text"]
        talk = (await cli("recall", "w", "alice", "fish", "--json", *waited)).json
        assert [memory["tick"] for memory in talk["memories"]] == [42]
        wrong = await cli("recall", "w", "alice", "fish", "--weights", "1,2")
        assert wrong.code == 2
        assert "three numbers" in wrong.err
        explained = await cli("recall", "w", "alice", "fish", "--explain")
        assert "Plan: 2 memories, all exactly; agent found " in explained.out
        told_how = (await cli("recall", "w", "alice", "fish", "--explain", "--json")).json[
            "explain"
        ]
        assert (told_how["plan"], told_how["rows"], told_how["scored"]) == ("exact", 2, 2)
        assert set(told_how["ms"]) == {"find", "embed", "rank"}
        assert answer["explain"] is None

        stranger = await cli("recall", "w", "zoe", "anything")
        assert (stranger.code, stranger.err) == (0, "")
        assert "zoe remembers nothing of this at tick 44" in stranger.out

        nowhere = await cli("recall", "nowhere", "zoe", "anything")
        assert (nowhere.code, nowhere.err) == (0, "")
        assert "no tick of a world named nowhere has been recorded" in nowhere.out

        blank = await cli("recall", "w", "alice", " ", "--json")
        assert blank.code == 1
        assert blank.json["reason"] == "invalid"
        assert "the observation is blank" in blank.err


async def test_recall_without_a_retriever_says_so_in_time(
    cli: Cli, broker_settings: BrokerSettings
) -> None:
    begun = time.monotonic()
    done = await cli("recall", "w", "alice", "fish", "--timeout", "0.5", "--json")
    # A start is a second of a core, of which a busy machine gives a tenth.
    assert time.monotonic() - begun < 60
    assert done.code == 1
    assert (done.json["status"], done.json["reason"]) == ("empty", "timeout")
    assert done.json["memories"] == []
    assert "no retriever is running" in done.err
    assert done.err.count("\n") == 1


async def test_progress_is_shown_on_a_terminal_alone(cli: Cli) -> None:
    import pty

    ours, theirs = pty.openpty()
    try:
        process = await cli.start(
            "publish",
            "-",
            "--rate",
            "20",
            stdin=asyncio.subprocess.PIPE,
            stderr=theirs,
        )
        os.close(theirs)
        out, _ = await process.communicate(_lines(*(_tick(tick) for tick in range(20))))
        shown = os.read(ours, 1_000_000)
    finally:
        os.close(ours)
    assert process.returncode == 0
    assert b"Publishing" in shown
    assert b"\x1b" in shown
    assert out.startswith(b"20 of 20 ticks published")
    assert b"\x1b" not in out
