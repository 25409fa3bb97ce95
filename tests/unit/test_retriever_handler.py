"""The retriever without its servers: ages, reply-tos, and answers when nothing can be reached."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from tests.retrieving import body
from tickmind.database import Database
from tickmind.decoding import decode_recall
from tickmind.memory import Scored
from tickmind.messages import AgentReply, RecalledMemory, RecallReply
from tickmind.settings import DatabaseSettings, EmbeddingSettings
from tickmind_retriever.ages import Ages
from tickmind_retriever.answers import MAX_REPLY_BYTES, Answers, encoded
from tickmind_retriever.handler import Handler
from tickmind_retriever.metrics import Metrics
from tickmind_retriever.ranking import Ranking
from tickmind_retriever.reply_to import answerable
from tickmind_retriever.spaces import Spaces

_NOW = 1_785_000_000.0


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


@pytest.mark.parametrize("skew_s", [-86_400.0, -3.0, 0.0, 0.4, 59.0, 86_400.0])
def test_age_is_what_a_request_waited_however_the_clocks_differ(skew_s: float) -> None:
    ages = Ages()
    assert ages.age_s("a", _ms(_NOW + skew_s), _NOW) == 0
    assert ages.age_s("a", _ms(_NOW + 1 + skew_s), _NOW + 1.002) == pytest.approx(0.002, abs=1e-3)
    assert ages.age_s("a", _ms(_NOW + 2 + skew_s), _NOW + 2.7) == pytest.approx(0.7, abs=1e-3)


def test_first_request_that_waited_is_made_up_for_by_a_quicker_one() -> None:
    ages = Ages()
    assert ages.age_s("a", _ms(_NOW), _NOW + 0.5) == 0
    assert ages.age_s("a", _ms(_NOW + 1), _NOW + 1) == 0
    assert ages.age_s("a", _ms(_NOW + 2), _NOW + 2.5) == pytest.approx(0.5)


def test_senders_have_clocks_of_their_own() -> None:
    ages = Ages()
    ages.age_s("a", _ms(_NOW), _NOW)
    assert ages.age_s("b", _ms(_NOW - 5), _NOW) == 0
    assert ages.age_s("a", _ms(_NOW - 5), _NOW) == pytest.approx(5)


def test_clock_that_was_put_back_is_followed_within_a_minute() -> None:
    ages = Ages()
    for second in range(10):
        assert ages.age_s("a", _ms(_NOW + second), _NOW + second) == 0
    found = [ages.age_s("a", _ms(_NOW + s - 5), _NOW + s) for s in range(10, 90)]
    assert found[0] == pytest.approx(5)
    assert found[-1] == 0


def test_clock_that_was_put_back_by_minutes_is_followed_at_once() -> None:
    """No request waits longer than its queue keeps it."""
    ages = Ages()
    for second in range(10):
        assert ages.age_s("a", _ms(_NOW + second), _NOW + second) == 0
    assert ages.age_s("a", _ms(_NOW + 10 - 59), _NOW + 10) == pytest.approx(59)
    assert ages.age_s("a", _ms(_NOW + 11 - 300), _NOW + 11) == 0
    assert ages.age_s("a", _ms(_NOW + 12 - 300), _NOW + 12.5) == pytest.approx(0.5)


@pytest.mark.parametrize("back_s", [2.0, 5.0, 50.0])
def test_clock_that_was_put_back_by_more_than_a_request_is_kept_is_followed_soon(
    back_s: float,
) -> None:
    """The broker hands out nothing that has expired: whoever asks for 0.8 s is not left without
    answers for a minute."""
    ages = Ages()
    for tenth in range(100):
        assert ages.age_s("a", _ms(_NOW + tenth / 10), _NOW + tenth / 10, kept_s=0.8) == 0
    moments = [_NOW + 10 + tenth / 10 for tenth in range(30)]
    found = [ages.age_s("a", _ms(now - back_s), now, kept_s=0.8) for now in moments]
    assert found[:10] == pytest.approx([back_s] * 10)
    assert found[12:] == [0.0] * 18
    now = moments[-1] + 1
    assert ages.age_s("a", _ms(now - back_s), now + 0.5, kept_s=0.8) == pytest.approx(0.5)


def test_what_a_frozen_retriever_finds_when_it_goes_on_is_old() -> None:
    """Everything comes at once, however long before it was sent; the sender's clock was right."""
    ages = Ages()
    assert ages.age_s("a", _ms(_NOW), _NOW, kept_s=0.8) == 0
    sent = [_NOW + 1 + tenth / 10 for tenth in range(200)]
    found = [ages.age_s("a", _ms(moment), _NOW + 21, kept_s=0.8) for moment in sent]
    assert found == pytest.approx([_NOW + 21 - moment for moment in sent], abs=1e-3)


def test_our_own_clock_may_be_put_back() -> None:
    ages = Ages()
    assert ages.age_s("a", _ms(_NOW), _NOW) == 0
    assert ages.age_s("a", _ms(_NOW + 1), _NOW - 3600) == 0
    assert ages.age_s("a", _ms(_NOW + 2), _NOW - 3599) == 0


@pytest.mark.parametrize("sent_at", [None, "now", True, 1.5e12, float("nan"), 10**400, [], b""])
def test_what_is_no_clock_is_no_age(sent_at: Any) -> None:
    ages = Ages()
    assert ages.age_s("a", _ms(_NOW), _NOW) == 0
    assert ages.age_s("a", sent_at, _NOW + 5) == 0


def test_senders_are_forgotten_before_they_fill_the_memory() -> None:
    ages = Ages()
    for number in range(3000):
        ages.age_s(f"sender {number}", _ms(_NOW), _NOW)
    assert len(ages._senders) <= 1000
    assert ages.age_s("sender 2999", _ms(_NOW), _NOW + 1) == pytest.approx(1)
    assert ages.age_s("sender 0", _ms(_NOW), _NOW + 1) == 0


_DIRECT = "amq.rabbitmq.reply-to"
#: As RabbitMQ 3.10 wrote it.
_REAL = f"{_DIRECT}.g1h2AA5yZXBseUAxMDgzMTgxMgAAArgAAAAAawyHpw==.q/x5OjIeCeg3uFSLilBvQQ=="


def _address(*parts: bytes) -> str:
    return f"{_DIRECT}.{base64.b64encode(b''.join(parts)).decode()}.a2V5"


@pytest.mark.parametrize(
    "reply_to",
    [
        _REAL,
        "tickmind-replies",
        "é" * 100,
        "x" * 255,
        _address(b"\x83Xd", b"\x00\x05", b"n@one", bytes(12)),
        _address(b"\x83Xw", b"\x05", b"n@one", bytes(12)),
        _address(b"\x83gs", b"\x05", b"n@one", bytes(9)),
    ],
)
def test_reply_to_that_can_be_published_to(reply_to: str) -> None:
    assert answerable(reply_to)


@pytest.mark.parametrize(
    "reply_to",
    [
        None,
        "",
        "x" * 256,
        "é" * 128,
        "a\x00b",
        _DIRECT,
        f"{_DIRECT}foo",
        f"{_DIRECT}.",
        f"{_DIRECT}..",
        f"{_DIRECT}.garbage",
        f"{_DIRECT}.AAAA.BBBB",
        f"{_DIRECT}.g2dk.AAAA",
        _REAL.rpartition(".")[0],
        _REAL.rpartition(".")[0] + ".",
        _REAL.replace(".g1", ".g2", 1),
        _REAL[: len(_DIRECT) + 20] + ".AAAA",
        _address(b"\x83Xd", b"\x00\x05", b"n@one", bytes(11)),
        _address(b"\x83Xd", b"\x00\x05", b"n@one", bytes(13)),
        _address(b"\x83Xd", b"\x00\x00", bytes(12)),
        _address(b"\x82Xd", b"\x00\x05", b"n@one", bytes(12)),
        _address(b"\x83gd", b"\x00\x05", b"n@one", bytes(12)),
        _address(b"\x83Xl", b"\x00\x05", b"n@one", bytes(12)),
        _address(b"\x83h\x02a\x01a\x02"),
        _address(b""),
    ],
)
def test_reply_to_that_would_close_the_connection_or_name_nobody(reply_to: str | None) -> None:
    assert not answerable(reply_to)


def _reply(agents: int, *, content: int, fragment: int) -> RecallReply:
    memory = RecalledMemory(
        id=1,
        tick=1,
        kind="observation",
        content="x" * content,
        importance=5,
        score=1,
        relevance=1,
        recency=1,
    )
    answer = AgentReply(
        agent="alice", status="ok", fragment="y" * fragment, memories=[memory] if content else []
    )
    return RecallReply(world="town", tick=1, replies=[answer] * agents)


def test_reply_is_sent_as_it_is_where_it_fits() -> None:
    reply = _reply(3, content=100, fragment=50)
    assert RecallReply.model_validate_json(encoded(reply)) == reply


def test_reply_too_long_for_the_broker_leaves_out_the_memories_first() -> None:
    body = encoded(_reply(20, content=1_000_000, fragment=2000))
    assert len(body) <= MAX_REPLY_BYTES
    for answer in RecallReply.model_validate_json(body).replies:
        assert (answer.status, len(answer.fragment), answer.memories) == ("ok", 2000, [])
        assert "left out" in (answer.detail or "")


@pytest.mark.parametrize("left_out", ["memories", "fragment"])
async def test_what_could_never_be_sent_is_not_kept_until_then(left_out: str) -> None:
    """A thousand agents, of whom each remembers long texts, would take gigabytes."""
    max_chars = 100 if left_out == "memories" else 1_000_000
    asked = body(*((f"agent {n}", "fish") for n in range(10)), max_chars=max_chars)
    answers = Answers(decode_recall(asked))
    answers.fill("embedding", "none", places=[9])
    for place in range(9):
        long = Scored(
            id=place,
            tick=1,
            kind="observation",
            content="x" * 1_000_000,
            importance=5,
            score=1.0,
            relevance=1.0,
            recency=1.0,
        )
        answers.remember(place, [long])
    *told, other = answers.reply().replies
    assert [answer.memories for answer in told] == [[]] * 9
    if left_out == "memories":
        assert all(answer.status == "ok" and answer.fragment for answer in told)
        assert all("left out" in (answer.detail or "") for answer in told)
    else:
        assert {(answer.reason, answer.fragment) for answer in told} == {("too_large", "")}
    assert other.reason == "embedding"


def test_reply_of_too_many_fragments_says_so_in_each_answer() -> None:
    body = encoded(_reply(20, content=1000, fragment=1_000_000))
    assert len(body) <= MAX_REPLY_BYTES
    reply = RecallReply.model_validate_json(body)
    assert [answer.reason for answer in reply.replies] == ["too_large"] * 20
    assert [answer.agent for answer in reply.replies] == ["alice"] * 20


async def test_unreachable_database_is_a_reason() -> None:
    settings = DatabaseSettings(database_url=SecretStr("postgresql://nobody@127.0.0.1:1/nowhere"))
    database = Database(settings, application="test")
    registry = CollectorRegistry()
    hashed = EmbeddingSettings(embedding_provider="hash", embedding_dimensions=8)
    spaces = Spaces(database, hashed, kept=10)
    handler = Handler(
        database, spaces, Metrics(registry), ranking=Ranking(), reserve_s=0, parallel=2
    )
    request = {
        "world": "town",
        "tick": 1,
        "queries": [{"agent": "alice", "observation": "fish"}, {"agent": "bob"}],
    }
    reply = await handler.recall(json.dumps(request).encode())
    await spaces.close()
    await database.dispose()
    assert reply is not None
    assert [answer.reason for answer in reply.replies] == ["database", "invalid"]
    labels = {"status": "empty", "reason": "database"}
    assert registry.get_sample_value("tickmind_recalls_total", labels) == 1
