"""Names, keys and arguments of the broker's queues."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from tickmind.topology import (
    DEAD_LETTERS,
    MAX_KEY_BYTES,
    RECORDER_QUEUE,
    TICK_ENDED_PREFIX,
    tick_ended_key,
    valid_reply_to,
)


@pytest.mark.parametrize(
    "world", ["town-7", "a.b", "a*b", "a#b", "张三镇", "a b", "a/b%c", "~", "_-", "x.y.z", "%41"]
)
def test_a_worlds_key_is_one_word_that_names_it(world: str) -> None:
    """Dots part words, * and # are patterns: none may stand in a key as itself."""
    word = tick_ended_key(world).removeprefix(TICK_ENDED_PREFIX)

    assert unquote(word) == world
    assert not set(word) & set(".*#~")
    assert word.isascii()


def test_a_long_worlds_key_is_cut_to_what_amqp_takes() -> None:
    key = tick_ended_key("界" * 200)

    assert len(key.encode()) == MAX_KEY_BYTES


def test_the_recorders_queue_loses_nothing() -> None:
    arguments = RECORDER_QUEUE.arguments

    assert arguments["x-queue-type"] == "quorum"
    assert arguments["x-overflow"] == "reject-publish"  # at-least-once dead-lettering asks for it
    assert arguments["x-dead-letter-strategy"] == "at-least-once"
    assert arguments["x-dead-letter-exchange"] == DEAD_LETTERS.name
    assert arguments["x-delivery-limit"] >= 1_000_000


@pytest.mark.parametrize(
    "reply_to",
    ["replies", "amq.gen-abc", "amq.rabbitmq.reply-to.g1h2AAFv.abc==", "张三", "x" * 255],
)
def test_takes_a_reply_to_that_can_be_published_to(reply_to: str) -> None:
    assert valid_reply_to(reply_to)


@pytest.mark.parametrize(
    "reply_to",
    [
        None,
        "",
        "amq.rabbitmq.reply-to",
        "amq.rabbitmq.reply-to.",
        "amq.rabbitmq.reply-to.a b",
        "amq.rabbitmq.reply-to-x",
        "x" * 256,
        "界" * 86,
        "a\x00b",
        "\ud800" * 300,
    ],
)
def test_refuses_a_reply_to_that_would_close_the_connection(reply_to: str | None) -> None:
    assert not valid_reply_to(reply_to)
