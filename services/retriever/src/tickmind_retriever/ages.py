"""How long ago requests were sent, told by clocks that need not agree with ours."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from tickmind.topology import RECALL_QUEUE

__all__ = ["Ages"]

#: A clock that was put right is followed after one to two of these.
_WINDOW_S = 30.0
#: The queue keeps no request for longer: one that seems to have waited more was sent by a clock
#: that has been put back, and is followed at once.
_LONGEST_S = RECALL_QUEUE.arguments["x-message-ttl"] / 1000
#: Senders remembered: with direct reply-to, one a client.
_MOST_SENDERS = 1000


@dataclass(slots=True)
class _Sender:
    """The least that its requests took from its clock to ours, in this window and the last."""

    since: float
    least_s: float
    before_s: float = math.inf


class Ages:
    """Ages of requests beyond the quickest one of the same sender.

    The quickest took next to nothing, so what another took longer, it waited: in the queue, or on
    its way. By how much two clocks differ cancels out; the first request of a sender has age 0.
    """

    def __init__(self) -> None:
        self._senders: OrderedDict[str, _Sender] = OrderedDict()

    def age_s(self, sender: str, sent_at: object, now: float) -> float:
        """Seconds >= 0. `sent_at`: milliseconds since the epoch by the sender's clock, or whatever
        stands there instead; `now`: seconds by ours, since whenever: best a clock that nobody puts.
        """
        # No float: some clients send it in single precision, which knows no time below two minutes.
        if type(sent_at) is not int or abs(sent_at) >= 2**63:  # AMQP's largest integer
            return 0.0
        took_s = now - sent_at / 1000
        known = self._senders.get(sender)
        if known is None:
            known = self._senders[sender] = _Sender(since=now, least_s=took_s)
            if len(self._senders) > _MOST_SENDERS:
                self._senders.popitem(last=False)
        self._senders.move_to_end(sender)
        if not 0 <= now - known.since < _WINDOW_S:
            known.since, known.before_s, known.least_s = now, known.least_s, took_s
        known.least_s = min(known.least_s, took_s)
        age_s = took_s - min(known.least_s, known.before_s)
        if age_s > _LONGEST_S:
            known.since, known.least_s, known.before_s = now, took_s, math.inf
            return 0.0
        return age_s
