"""Which reply-to can be published to without the broker closing the connection it came on."""

from __future__ import annotations

import base64
import binascii

from tickmind.topology import valid_reply_to

__all__ = ["answerable"]

# RabbitMQ's direct reply-to: prefix, the address of the requester's channel, a key. The address is
# a process id in Erlang's external term format (erlang.org, "External Term Format"): version 131,
# NEW_PID_EXT or PID_EXT, the node's name as an atom, then id, serial and creation. The broker
# decodes it unchecked: anything else that is base64 of a term, or of none, ends the connection,
# and with it the replies of others (measured: RabbitMQ 3.10, "AAAA.BBBB").
_PREFIX = "amq.rabbitmq.reply-to."
_VERSION = 131
_TAIL_BYTES = {88: 12, 103: 9}  # NEW_PID_EXT, PID_EXT: after the node's name
_ATOM_LENGTH_BYTES = {100: 2, 118: 2, 115: 1, 119: 1}  # ATOM_EXT, ATOM_UTF8, SMALL_ATOM(_UTF8)


def answerable(reply_to: str | None) -> bool:
    """Whether a reply can be published to this queue name without harm to other replies."""
    if not reply_to or not valid_reply_to(reply_to):
        return False
    if not reply_to.startswith(_PREFIX):
        return True
    address, dot, key = reply_to.removeprefix(_PREFIX).partition(".")
    return bool(dot and key) and _is_process(address)


def _is_process(address: str) -> bool:
    try:
        term = base64.b64decode(address, validate=True)
    except (binascii.Error, ValueError):
        return False
    if len(term) < 3 or term[0] != _VERSION:
        return False
    tail, width = _TAIL_BYTES.get(term[1]), _ATOM_LENGTH_BYTES.get(term[2])
    if tail is None or width is None:
        return False
    name = int.from_bytes(term[3 : 3 + width], "big")
    return name > 0 and len(term) == 3 + width + name + tail
