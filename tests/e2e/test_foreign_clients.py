"""The contracts over the wire, for clients that are not ours: bare aio-pika, and Node on amqplib.

Both are written from README.md alone. RabbitMQ's firehose copies every message that passes, and
each copy is held to the schemas of the published AsyncAPI document.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import ValidationError

from tests.e2e.bare_client import BareClient
from tests.e2e.services import serving
from tests.e2e.wire import Wire, tapped, validator
from tests.running import SOUND, eventually, metric, settled
from tickmind.database import Database
from tickmind.local.rabbitmq import LocalRabbitmq
from tickmind.service import App
from tickmind.settings import BrokerSettings, DatabaseSettings
from tickmind.store.inspection import rejects

EXAMPLES = Path(__file__).parents[2] / "examples"

#: npm fetches one package; minutes only where its registry is slow.
NPM_TIMEOUT_S = 120
NODE_TIMEOUT_S = 60


# --- What they meet ---------------------------------------------------------------------------


@pytest.fixture
async def recorder(
    database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> AsyncIterator[App]:
    """The three services, running; the recorder for what it counts."""
    async with serving(database_settings, broker_settings) as recorder:
        yield recorder


@pytest.fixture
def url(recorder: App, broker_settings: BrokerSettings) -> str:
    """The broker's URL, with the services behind it."""
    return broker_settings.broker_url()


async def recorded(recorder: App, *, decisions: int) -> None:
    """Wait until so many decisions came and were committed, repeated ones too."""

    async def count() -> float:
        return metric(recorder, "tickmind_decisions_total")

    await eventually(count, lambda now: now == decisions, what="decisions recorded")


@pytest.fixture
async def client(url: str) -> AsyncIterator[BareClient]:
    async with BareClient.connected(url) as client:
        yield client


@pytest.fixture
async def wire(rabbitmq: LocalRabbitmq, broker_settings: BrokerSettings) -> AsyncIterator[Wire]:
    async with tapped(rabbitmq, broker_settings.broker_url()) as wire:
        yield wire


TICK = {
    "world": "town-7",
    "tick": 42,
    "time": "2026-08-02T09:00:00Z",
    "decisions": [
        {
            "agent": "bob",
            "action": "talk",
            "speech": "The market sells fresh fish",
            "heard_by": ["alice"],
        },
        {"agent": 17, "action": "move", "target": [15, 8], "place": "market"},
        {"agent": "carol", "action": "stay"},
        {
            "agent": "dan",
            "action": "observe",
            "text": "The bakery is on fire",
            "importance": 9,
            "core": False,
            "event_id": "fire-1",
        },
    ],
}
QUESTION = {"agent": "alice", "observation": "Alice walks past the market"}
#: With more time than 800 ms, the contract's default: a busy machine may need it.
ASKED: dict[str, Any] = {"queries": [QUESTION], "deadline_ms": 5000}


# --- Bare aio-pika ----------------------------------------------------------------------------


async def test_bare_client_publishes_a_tick_and_recalls_it(
    wire: Wire, client: BareClient, database: Database
) -> None:
    """The README's own message and request; case 8's integer agent comes back as its digits."""
    await client.publish(TICK)
    assert await settled(database, "town-7", memories=4) == SOUND

    agents = ("alice", "bob", 17, "carol", "dan")
    reply = await client.recall(
        {
            "world": "town-7",
            "tick": 200,
            "queries": [{"agent": agent, "observation": "the market"} for agent in agents],
            "deadline_ms": 5000,
        }
    )

    answers = reply["replies"]
    assert [(answer["agent"], answer["status"], answer["reason"]) for answer in answers] == [
        ("alice", "ok", None),
        ("bob", "ok", None),
        ("17", "ok", None),
        ("carol", "empty", None),
        ("dan", "ok", None),
    ]
    memories = {
        answer["agent"]: [
            (memory["content"], memory["importance"]) for memory in answer["memories"]
        ]
        for answer in answers
    }
    assert memories == {
        "alice": [("bob told me: The market sells fresh fish", 8)],
        "bob": [("I said: The market sells fresh fish", 8)],
        "17": [("I moved to (15, 8), market", 4)],
        "carol": [],
        "dan": [("The bakery is on fire", 9)],
    }
    fragments = [answer["fragment"] for answer in answers]
    assert fragments[0] == "You remember:\n- bob told me: The market sells fresh fish"
    assert fragments[3] == ""
    assert reply["watermarks"] == {"recorded": 42, "embedded": 42}
    await wire.holds("tick.ended", "memory.recorded", "recall", "recall.reply")


async def test_identical_decisions_are_one_event_unless_they_carry_ids(
    client: BareClient, recorder: App, database: Database
) -> None:
    def tick(*decisions: dict[str, Any]) -> dict[str, Any]:
        return {"world": "echo", "tick": 5, "decisions": list(decisions)}

    hello = {"agent": "bob", "action": "talk", "speech": "Hello"}
    await client.publish(tick(hello))
    await client.publish(tick({**hello, "mood": "glad", "place": None}))  # nothing the contract has
    await recorded(recorder, decisions=2)
    assert await settled(database, "echo", memories=1) == SOUND

    await client.publish(tick(hello, hello))
    await recorded(recorder, decisions=4)
    assert await settled(database, "echo", memories=2) == SOUND

    await client.publish(tick({**hello, "event_id": "a"}))
    await client.publish(tick({**hello, "event_id": "b"}))
    await client.publish(tick({**hello, "event_id": "b", "speech": "Hello again"}))
    await recorded(recorder, decisions=7)
    assert await settled(database, "echo", memories=4) == SOUND


@pytest.mark.parametrize("world", ["a.b/c d~e", "町-7", 10**30, "x" * 200])
async def test_worlds_of_any_name_are_published_and_recalled(
    client: BareClient, database: Database, world: str | int
) -> None:
    await client.publish({**TICK, "world": world})
    assert await settled(database, str(world), memories=4) == SOUND

    reply = await client.recall({**ASKED, "world": world, "tick": 43})

    assert reply["world"] == str(world)
    assert [memory["tick"] for memory in reply["replies"][0]["memories"]] == [42]


async def test_bare_client_is_told_what_was_wrong_with_its_request(
    wire: Wire, client: BareClient
) -> None:
    for request, named in (
        (b"not JSON", "JSON"),
        ({"world": "town-7", "queries": [QUESTION]}, "tick"),
        ({"world": "town-7", "tick": 1, "queries": [QUESTION], "k": 0}, "k"),
    ):
        reply = await client.recall(request)
        assert (reply["replies"], reply["reason"]) == ([], "invalid")
        assert named in reply["detail"]

    reply = await client.recall(
        {**ASKED, "world": "town-7", "tick": 1, "future": True}
        | {"queries": [{"agent": "alice"}, QUESTION]}
    )
    statuses = [(answer["status"], answer["reason"]) for answer in reply["replies"]]
    assert statuses == [("empty", "invalid"), ("empty", None)]
    assert "observation" in reply["replies"][0]["detail"]
    await eventually(
        lambda: wire.count("recall.reply"), lambda count: count == 4, what="replies on the wire"
    )
    for message in wire.seen:
        if message.contract == "recall.reply":
            message.check()


async def test_bad_decision_of_a_bare_client_costs_only_itself(
    client: BareClient, database: Database
) -> None:
    """case 9: it is kept with its reason, the rest of its tick is stored."""
    bad = {"action": "talk", "speech": "Who am I?"}
    await client.publish({**TICK, "decisions": [bad, *TICK["decisions"]]})  # type: ignore[misc]
    assert await settled(database, "town-7", memories=4) == SOUND

    async with database.reading() as session:
        found = await rejects(session)
    assert [(reject.reason, reject.world) for reject in found] == [("invalid", "town-7")]
    assert "agent" in found[0].detail
    assert json.loads(found[0].body)["decisions"] == [bad]


async def test_published_schemas_refuse_what_breaks_the_contract() -> None:
    """The checks above can fail."""
    sound = {**ASKED, "world": "town-7", "tick": 1}
    validator("recall").validate(sound)
    for broken in ({**sound, "tick": -1}, {**sound, "queries": []}, {"world": "town-7"}):
        with pytest.raises(ValidationError):
            validator("recall").validate(broken)
    with pytest.raises(ValidationError):
        validator("tick.ended").validate({**TICK, "decisions": [{"agent": "bob"}]})
    with pytest.raises(ValidationError):
        validator("recall.reply").validate({"replies": [{"agent": "alice", "status": "fine"}]})
    with pytest.raises(ValidationError):
        validator("recall", part="headers").validate({"sent_at": "now"})


# --- Node on amqplib --------------------------------------------------------------------------


@pytest.fixture(scope="session")
async def node_example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example engine with amqplib beside it, in a directory of its own."""
    missing = [program for program in ("node", "npm") if shutil.which(program) is None]
    if missing:
        reason = f"{' and '.join(missing)} not on PATH: install Node 18 or newer"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("node")
    for name in ("engine.mjs", "package.json"):
        shutil.copy(EXAMPLES / name, folder / name)
    options = ("--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund")
    await _run("npm", "install", *options, cwd=folder, timeout_s=NPM_TIMEOUT_S)
    return folder


async def _run(*command: str, cwd: Path, timeout_s: float) -> str:
    """Standard output of a command that must succeed."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, f"{command}: {output.decode()}{errors.decode()}"
    return output.decode()


async def test_node_client_publishes_a_tick_and_recalls_it(
    node_example: Path, wire: Wire, url: str, recorder: App, database: Database
) -> None:
    """Replies over RabbitMQ's direct reply-to, in another language than ours."""
    script = str(node_example / "engine.mjs")

    output = await _run(
        "node", script, url, "node.js/町", cwd=node_example, timeout_s=NODE_TIMEOUT_S
    )

    assert output.splitlines() == [
        "alice: ok",
        "You remember:",
        "- bob told me: The market sells fresh fish",
        "- I moved to (15, 8), market",
        "carol: empty",
    ]
    assert await settled(database, "node.js/町", memories=3) == SOUND
    await wire.holds("tick.ended", "memory.recorded", "recall", "recall.reply")

    again = await _run(
        "node", script, url, "node.js/町", cwd=node_example, timeout_s=NODE_TIMEOUT_S
    )

    assert again == output  # the same tick again is the same events
    await recorded(recorder, decisions=6)
    assert await settled(database, "node.js/町", memories=3) == SOUND
