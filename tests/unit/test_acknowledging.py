"""Acknowledgements of a channel: in order, many in one frame, none too early."""

from __future__ import annotations

import asyncio

import pytest
from aiormq.exceptions import ChannelInvalidStateError

from tickmind_recorder.acknowledging import Acknowledged, ChannelAcks
from tickmind_recorder.handler import Delivery


class FakeChannel:
    """Takes acknowledgements as RabbitMQ does: a tag it does not know closes the channel."""

    def __init__(self, delivered: int) -> None:
        self.unacked = set(range(1, delivered + 1))
        self.acked: set[int] = set()
        self.rejected: set[int] = set()
        self.frames = 0
        self.is_closed = False
        self.fault: BaseException | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        self.frames += 1
        tags = {tag for tag in self.unacked if multiple and tag <= delivery_tag} or {delivery_tag}
        assert tags <= self.unacked, f"PRECONDITION_FAILED - unknown delivery tag {delivery_tag}"
        self.acked |= tags
        self.unacked -= tags

    async def basic_reject(self, delivery_tag: int, *, requeue: bool = True) -> None:
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        assert not requeue
        assert delivery_tag in self.unacked
        self.rejected.add(delivery_tag)
        self.unacked.discard(delivery_tag)


async def test_acknowledges_in_one_frame_what_is_settled_in_order() -> None:
    channel = FakeChannel(5)
    acks = ChannelAcks(channel)

    for tag in (1, 2, 3, 4, 5):
        acks.settle(tag)
    await acks.flush()

    assert (channel.acked, channel.frames) == ({1, 2, 3, 4, 5}, 1)


async def test_waits_for_the_first_that_is_not_settled() -> None:
    """The later batch was committed first: its tags must not acknowledge the earlier one's."""
    channel = FakeChannel(6)
    acks = ChannelAcks(channel)

    for tag in (4, 5, 6, 2):
        acks.settle(tag)
    await acks.flush()
    assert channel.acked == set()

    acks.settle(1)
    await acks.flush()
    assert channel.acked == {1, 2}

    acks.settle(3)
    await acks.flush()
    assert (channel.acked, channel.frames) == ({1, 2, 3, 4, 5, 6}, 2)


async def test_says_nothing_twice() -> None:
    channel = FakeChannel(2)
    acks = ChannelAcks(channel)
    acks.settle(1)
    await acks.flush()

    await acks.flush()

    assert channel.frames == 1


async def test_two_batches_that_flush_at_once_keep_the_order_of_tags() -> None:
    channel = FakeChannel(4)
    acks = ChannelAcks(channel)
    channel.gate.clear()

    acks.settle(1)
    acks.settle(2)
    first = asyncio.create_task(acks.flush())
    await asyncio.sleep(0)
    acks.settle(3)
    acks.settle(4)
    second = asyncio.create_task(acks.flush())
    await asyncio.sleep(0)
    channel.gate.set()
    await asyncio.gather(second, first)

    assert channel.acked == {1, 2, 3, 4}


@pytest.mark.parametrize("given_up", [1, 2, 3])
async def test_what_is_given_up_is_rejected_and_never_acknowledged(given_up: int) -> None:
    channel = FakeChannel(3)
    acks = ChannelAcks(channel)

    for tag in (1, 2, 3):
        if tag == given_up:
            await acks.give_up(tag)
        else:
            acks.settle(tag)
    await acks.flush()

    assert channel.rejected == {given_up}
    assert channel.acked == {1, 2, 3} - {given_up}
    assert channel.unacked == set()


async def test_a_given_up_one_holds_back_nothing_before_it() -> None:
    channel = FakeChannel(2)
    acks = ChannelAcks(channel)

    await acks.give_up(2)
    await acks.flush()
    assert channel.acked == set()

    acks.settle(1)
    await acks.flush()
    assert channel.acked == {1}


@pytest.mark.parametrize(
    "fault",
    [
        ChannelInvalidStateError("closed"),
        ConnectionResetError(),
        asyncio.CancelledError(),
        Exception(),
    ],
    ids=repr,
)
async def test_a_channel_that_is_gone_is_nothing_to_raise_for(fault: BaseException) -> None:
    """aiormq ends waiting calls by CancelledError when it closes a connection itself, and by a
    bare Exception when it does not know why."""
    channel = FakeChannel(2)
    channel.fault = fault
    acks = ChannelAcks(channel)
    acks.settle(1)

    await acks.flush()
    await acks.give_up(2)

    assert channel.unacked == {1, 2}


async def test_a_fault_of_our_own_is_told() -> None:
    channel = FakeChannel(1)
    channel.fault = KeyError("x")
    acks = ChannelAcks(channel)
    acks.settle(1)

    with pytest.raises(KeyError):
        await acks.flush()


async def test_being_cancelled_is_still_being_cancelled() -> None:
    channel = FakeChannel(1)
    channel.gate.clear()
    acks = ChannelAcks(channel)
    acks.settle(1)
    flushing = asyncio.create_task(acks.flush())
    await asyncio.sleep(0)

    flushing.cancel()

    with pytest.raises(asyncio.CancelledError):
        await flushing


def test_a_delivery_is_lost_with_its_channel() -> None:
    channel = FakeChannel(1)
    item = Acknowledged(Delivery(tick=None, graded=None), 1, ChannelAcks(channel))
    assert not item.lost

    channel.is_closed = True

    assert item.lost
