"""Publishers that are not ours: what AMQP allows and Python does not expect."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any

import aio_pika
import pamqp.encode
import pytest

from tests.recording import recorder, tick_body, until_remembered, wire
from tests.running import running
from tickmind.database import Database
from tickmind.settings import BrokerSettings, DatabaseSettings

_TALK = {"agent": "bob", "action": "talk", "speech": "The market sells fresh fish"}


class _Bytes(str):
    """A text that is encoded as bytes of another encoding."""

    def encode(self, *_: Any) -> bytes:
        return super().encode("gbk")


def _nested(levels: int) -> bytes:
    """A table of tables, each the only value of the one around it."""
    table = struct.pack(">I", 0)
    for _ in range(levels):
        entry = b"\x01a" + b"F" + table
        table = struct.pack(">I", len(entry)) + entry
    return table


_UNREADABLE_KEY = b"\x02\xff\xfe" + b"S\x00\x00\x00\x01x"


@pytest.mark.parametrize(
    ("properties", "encoded"),
    [
        ({"timestamp": datetime.now(UTC)}, {"timestamp": struct.pack(">Q", 1_800_000_000 * 10**9)}),
        ({"timestamp": datetime.now(UTC)}, {"timestamp": b"\xff" * 8}),
        ({"headers": {"a": 1}}, {"table": struct.pack(">I", 9) + _UNREADABLE_KEY}),
        ({"headers": {"a": 1}}, {"table": _nested(3000)}),
        ({"content_type": _Bytes("文本")}, {}),
        ({"message_id": _Bytes("一")}, {}),
        ({"headers": {"traceparent": 5, "sent_at": "yesterday"}}, {}),
        ({"routing_key": _Bytes("tick.ended.v1.镇")}, {}),
    ],
    ids=["ns", "max", "key", "deep", "content_type", "message_id", "headers", "key_gbk"],
)
async def test_a_property_that_cannot_be_read_stops_nobody(
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    monkeypatch: pytest.MonkeyPatch,
    properties: dict[str, Any],
    encoded: dict[str, bytes],
) -> None:
    """The message is stored, and the next one: the connection used to end at the first, for it to
    be delivered again, for ever."""
    key = properties.pop("routing_key", "tick.ended.v1.town-7")

    async with running(recorder(database_settings, broker_settings)), wire(broker_settings) as own:
        with monkeypatch.context() as patched:
            for name, value in encoded.items():
                patched.setitem(pamqp.encode.METHODS, name, lambda _, value=value: value)
            message = aio_pika.Message(tick_body(_TALK, tick=1), **properties)
            await own.events.publish(message, routing_key=key)
        await own.send(tick_body(_TALK, tick=2))
        rows = await until_remembered(database, 2)

    assert [row.tick for row in rows] == [1, 2]
