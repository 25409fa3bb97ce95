"""`rejects` and `parked`: what a person sees of refused input, and decides about it."""

from __future__ import annotations

import json
from pathlib import Path

import aio_pika
import pytest

from tests.commands import Cli, servers_of
from tests.parking import park_all
from tests.running import SOUND, eventually, running, settings_for, settled
from tickmind.connecting import connect, declare
from tickmind.database import Database
from tickmind.messages import MAX_BODY_BYTES
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind.store.inspection import RejectedInput, rejects, world_statuses
from tickmind.topology import RECORDER_QUEUE
from tickmind_embedder.app import create_app as create_embedder
from tickmind_embedder.settings import EmbedderSettings
from tickmind_recorder.app import create_app as create_recorder
from tickmind_recorder.settings import RecorderSettings

#: The second decision has no words, the third no agent.
TICK = {
    "world": "w",
    "tick": 1,
    "decisions": [
        {"agent": "bob", "action": "talk", "speech": "Hello"},
        {"agent": "bob", "action": "talk"},
        {"action": "stay"},
    ],
}

#: A policy by which a talk needs no words.
LENIENT = """
version: 1
defaults:
  actions:
    talk:
      importance: 8
      wording: {en: ["I said: {speech}", "I moved my lips"], zh: 我动了动嘴, ja: 私は口を動かした}
  other: drop
"""


@pytest.fixture
def cli(
    tmp_path: Path, database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> Cli:
    return Cli(tmp_path, servers_of(database_settings, broker_settings))


@pytest.fixture
def recorder_settings(
    database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> RecorderSettings:
    return settings_for(RecorderSettings, database_settings, broker_settings)


async def _publish(broker: BrokerSettings, *messages: tuple[bytes, str]) -> None:
    """Put bodies into the recorder's queue by the default exchange, whatever they hold."""
    async with await connect(broker, name="test") as connection:
        channel = await connection.channel()
        await declare(channel, RECORDER_QUEUE)
        for body, key in messages:
            exchange = (
                channel.default_exchange
                if key == RECORDER_QUEUE.name
                else await channel.get_exchange("tickmind.events", ensure=False)
            )
            await exchange.publish(aio_pika.Message(body), routing_key=key)


async def _rejected(database: Database, count: int) -> list[RejectedInput]:
    """The rejects, once there are so many."""

    async def found() -> list[RejectedInput]:
        async with database.reading() as session:
            return await rejects(session)

    return await eventually(found, lambda rows: len(rows) == count, what="rejects")


async def test_rejects_are_listed_with_reason_and_body(
    cli: Cli,
    database: Database,
    broker_settings: BrokerSettings,
    recorder_settings: RecorderSettings,
) -> None:
    nothing = await cli("rejects", "list")
    assert (nothing.code, nothing.out) == (0, "nothing was rejected\n")
    bodies = [(json.dumps(TICK).encode(), "tick.ended.v1.w"), (b"\xff\x1b[31m", "tick.ended.v1.x")]
    async with running(create_recorder(recorder_settings)):
        await _publish(broker_settings, *bodies)
        await _rejected(database, 3)

    listed = await cli("rejects", "list", "--json")
    assert (listed.code, listed.err) == (0, "")
    by_world = {row["world"]: row for row in listed.json}
    assert by_world["x"]["body"] is None
    assert by_world["x"]["body_base64"] == "/xtbMzFt"
    assert "not UTF-8" in by_world["x"]["detail"]
    assert json.loads(by_world["w"]["body"])["tick"] == 1
    assert {row["times"] for row in listed.json} == {1}

    shown = await cli("rejects", "list")
    assert "needs speech to be remembered" in shown.out
    assert "\x1b" not in shown.out
    one = await cli("rejects", "list", "--world", "x", "--json")
    assert len(one.json) == 1
    fewer = await cli("rejects", "list", "--most", "1")
    assert "2 more" in fewer.out


async def test_rejects_retried_are_stored_where_the_reason_is_gone(
    cli: Cli,
    database: Database,
    broker_settings: BrokerSettings,
    recorder_settings: RecorderSettings,
    tmp_path: Path,
) -> None:
    """A mute talk is refused, the policy mended, the reject sent again: now it is a memory."""
    async with running(create_recorder(recorder_settings)):
        await _publish(broker_settings, (json.dumps(TICK).encode(), "tick.ended.v1.w"))
        await _rejected(database, 2)

    policy = tmp_path / "lenient.yaml"
    policy.write_text(LENIENT, encoding="utf-8")
    mended = recorder_settings.model_copy(update={"recorder_policy_file": policy})
    async with running(create_recorder(mended)):
        done = await cli("rejects", "retry", "--all", "--json")
        assert (done.code, done.err, done.json) == (0, "", {"retried": 2})

        async def memories() -> int:
            async with database.reading() as session:
                (status,) = await world_statuses(session, "w")
                return sum(status.kinds.values())

        await eventually(memories, lambda count: count == 2, what="memories")
        # Still without an agent, and so back in the list.
        (left,) = await _rejected(database, 1)
        assert left.detail.startswith("agent:")


async def test_rejects_retried_and_refused_again_are_not_lost(
    cli: Cli,
    database: Database,
    broker_settings: BrokerSettings,
    recorder_settings: RecorderSettings,
) -> None:
    bodies = [(b"not json %d" % number, RECORDER_QUEUE.name) for number in range(30)]
    async with running(create_recorder(recorder_settings)):
        await _publish(broker_settings, *bodies)
        before = await _rejected(database, 30)
        one = await cli("rejects", "retry", str(before[0].id))
        assert (one.code, one.out.split(";")[0]) == (0, "1 published again")
        done = await cli("rejects", "retry", "--all", "--json")
        assert done.json == {"retried": 30}
        after = await _rejected(database, 30)
    assert {row.body for row in after} == {body for body, _ in bodies}
    assert {row.routing_key for row in after} == {"tick.ended.v1.unknown"}


async def test_a_reject_that_is_kept_in_part_stays(
    cli: Cli,
    database: Database,
    broker_settings: BrokerSettings,
    recorder_settings: RecorderSettings,
) -> None:
    """What was cut off cannot be published again."""
    bodies = [(b"not json", "tick.ended.v1.w"), (b"x" * (MAX_BODY_BYTES + 1), "tick.ended.v1.w")]
    async with running(create_recorder(recorder_settings)):
        await _publish(broker_settings, *bodies)
        await _rejected(database, 2)
    done = await cli("rejects", "retry", "--all")
    assert (done.code, done.out.split(";")[0]) == (0, "1 published again")
    assert "stays: the body has 1048577 bytes" in done.err
    (left,) = await _rejected(database, 1)
    assert left.reason == "too_large"


async def test_a_reject_stays_where_the_broker_is_away(
    cli: Cli,
    database: Database,
    broker_settings: BrokerSettings,
    recorder_settings: RecorderSettings,
) -> None:
    async with running(create_recorder(recorder_settings)):
        await _publish(broker_settings, (b"not json", "tick.ended.v1.w"))
        await _rejected(database, 1)
    cli.env["TICKMIND_AMQP_URL"] = "amqp://127.0.0.1:1"
    done = await cli("rejects", "retry", "--all")
    assert (done.code, done.out) == (1, "")
    assert "RabbitMQ cannot be reached" in done.err
    await _rejected(database, 1)


async def test_rejects_are_dropped_after_a_question(
    cli: Cli,
    database: Database,
    broker_settings: BrokerSettings,
    recorder_settings: RecorderSettings,
) -> None:
    bodies = [(b"not json %d" % number, "tick.ended.v1.w") for number in range(3)]
    async with running(create_recorder(recorder_settings)):
        await _publish(broker_settings, *bodies)
        first, second, _ = await _rejected(database, 3)

    unasked = await cli("rejects", "drop", "--all")
    assert (unasked.code, unasked.out) == (2, "")
    assert "say --yes" in unasked.err
    no = await cli.answering("n", "rejects", "drop", "--all")
    assert (no.code, no.out) == (1, "")
    assert "Forget 3 rejects for good? [y/N]" in no.err
    await _rejected(database, 3)

    unknown = await cli("rejects", "drop", "999999", str(first.id), "--yes")
    assert unknown.code == 1
    assert "no such reject: 999999" in unknown.err
    await _rejected(database, 3)

    some = await cli("rejects", "drop", str(first.id), str(second.id), "--yes", "--json")
    assert (some.code, some.err, some.json) == (0, "", {"dropped": 2})
    yes = await cli.answering("y", "rejects", "drop", "--all")
    assert (yes.code, yes.out) == (0, "1 rejects dropped\n")
    await _rejected(database, 0)


async def _parked(
    cli: Cli, database: Database, recorder_settings: RecorderSettings, trace: bytes
) -> None:
    async with running(create_recorder(recorder_settings)):
        published = await cli("publish", "-", stdin=trace)
        assert published.code == 0, published.err

        async def recorded() -> int:
            async with database.reading() as session:
                found = await world_statuses(session, "w")
                return sum(sum(status.kinds.values()) for status in found)

        await eventually(recorded, lambda count: count == 4, what="memories")
    await park_all(database, "w", reason="too long for the model")


#: Two texts, each remembered twice.
TWICE = b"".join(
    json.dumps(
        {
            "world": "w",
            "tick": tick,
            "decisions": [{"agent": "a", "action": "observe", "text": text} for text in ("x", "y")],
        }
    ).encode()
    + b"\n"
    for tick in (1, 2)
)


async def test_parked_texts_are_listed_and_retried(
    cli: Cli,
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    recorder_settings: RecorderSettings,
) -> None:
    nothing = await cli("parked", "list")
    assert (nothing.code, nothing.out) == (0, "nothing is parked\n")
    await _parked(cli, database, recorder_settings, TWICE)

    listed = await cli("parked", "list", "--json")
    assert (listed.code, listed.err) == (0, "")
    rows = {row["content"]: row for row in listed.json}
    assert rows.keys() == {"x", "y"}
    assert {(row["memories"], row["reason"]) for row in listed.json} == {
        (2, "too long for the model")
    }
    shown = await cli("parked", "list")
    assert rows["x"]["hash"][:12] in shown.out
    assert "too long for the model" in shown.out

    strange = await cli("parked", "retry", "zz")
    assert strange.code == 1
    assert "no parked text begins with zz" in strange.err
    one = await cli("parked", "retry", rows["x"]["hash"][:12], "--json")
    assert (one.code, one.json) == (0, {"retried": 1})
    rest = await cli("parked", "retry", "--all")
    assert (rest.code, rest.out) == (0, "1 texts are to be embedded again\n")

    embedder = settings_for(EmbedderSettings, database_settings, broker_settings)
    async with running(create_embedder(embedder)):
        assert await settled(database, "w", memories=4) == SOUND


async def test_parked_texts_dropped_leave_their_memories_ranked_below_all(
    cli: Cli, database: Database, recorder_settings: RecorderSettings
) -> None:
    await _parked(cli, database, recorder_settings, TWICE)
    unasked = await cli("parked", "drop", "--all")
    assert (unasked.code, unasked.out) == (2, "")
    no = await cli.answering("", "parked", "drop", "--all")
    assert (no.code, no.out) == (1, "")
    assert len((await cli("parked", "list", "--json")).json) == 2

    done = await cli("parked", "drop", "--all", "--yes", "--json")
    assert (done.code, done.err, done.json) == (0, "", {"dropped": 2})
    assert (await cli("parked", "list", "--json")).json == []
    assert await settled(database, "w", memories=4) == SOUND
    async with database.reading() as session:
        (status,) = await world_statuses(session, "w")
    assert status.parked == 0
