"""How long ago requests were sent, told by clocks that need not agree with ours."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from tickmind.topology import RECALL_QUEUE

__all__ = ["LONGEST_S", "Ages"]

#: A clock that was put right is followed after one to two of these.
_WINDOW_S = 30.0
#: The queue keeps no request for longer: one that seems to have waited more was sent by a clock
#: that has been put back, and is followed at once.
LONGEST_S = RECALL_QUEUE.arguments["x-message-ttl"] / 1000
#: What was handed over is looked at within this. Two requests, sent so long after each other and
#: both as much older than their expiration, were sent by a clock that has been put back: of what a
#: frozen process finds when it goes on, the later is the younger.
_LATE_S = 1.0
#: As much, give or take.
_SAME_S = 0.25
#: Senders remembered: with direct reply-to, one a client.
_MOST_SENDERS = 1000


@dataclass(slots=True)
class _Sender:
    """The least that its requests took from its clock to ours, in this window and the last."""

    since: float
    least_s: float
    before_s: float = math.inf
    #: When a request was sent that cannot be as old as it seems, and what it took.
    doubted: tuple[float, float] | None = None

    def put_back(self, sent_s: float, took_s: float) -> bool:
        """Whether such a request and one before tell of the sender's clock."""
        if self.doubted is not None:
            before_s, took_before_s = self.doubted
            if sent_s >= before_s and abs(took_s - took_before_s) <= _SAME_S:
                return sent_s - before_s >= _LATE_S
        self.doubted = sent_s, took_s
        return False


class Ages:
    """Ages of requests beyond the quickest one of the same sender.

    The quickest took next to nothing, so what another took longer, it waited: in the queue, or on
    its way. By how much two clocks differ cancels out; the first request of a sender has age 0.
    """

    def __init__(self) -> None:
        self._senders: OrderedDict[str, _Sender] = OrderedDict()

    def age_s(
        self, sender: str, sent_at: object, now: float, *, kept_s: float = LONGEST_S
    ) -> float:
        """Seconds >= 0. `sent_at`: milliseconds since the epoch by the sender's clock, or whatever
        stands there instead; `now`: seconds by ours, since whenever: best a clock that nobody puts.
        `kept_s`: how long the broker kept it for us at most, its expiration.
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
        if age_s <= kept_s + _LATE_S:
            known.doubted = None
        elif age_s > LONGEST_S or known.put_back(sent_at / 1000, took_s):
            self._senders[sender] = _Sender(since=now, least_s=took_s)
            return 0.0
        return age_s
