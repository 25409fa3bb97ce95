"""What the recorder counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from tickmind.metering import begin_at_zero

__all__ = ["Metrics"]

_REJECT_REASONS = ("invalid", "database", "internal", "permanent")


class Metrics:
    """What the recorder counts; a counter counts what was committed."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.decisions = Counter("tickmind_decisions", "Decisions received", registry=registry)
        self.kept = Counter(
            "tickmind_decisions_kept", "Decisions remembered", ["action"], registry=registry
        )
        self.dropped = Counter(
            "tickmind_decisions_dropped",
            "Decisions not remembered, by action and why",
            ["action", "reason"],
            registry=registry,
        )
        self.stored = Counter("tickmind_memories_stored", "New memories", registry=registry)
        self.repeated = Counter(
            "tickmind_memories_repeated",
            "Memories of events that were stored already",
            registry=registry,
        )
        self.rejected = Counter(
            "tickmind_rejects", "Messages and decisions refused", ["reason"], registry=registry
        )
        self.dead_letters = Counter(
            "tickmind_dead_letters",
            "Messages that could not even be rejected",
            registry=registry,
        )
        self.cleaned = Counter(
            "tickmind_characters_cleaned",
            "NUL removed and lone surrogates replaced",
            ["what"],
            registry=registry,
        )
        self.hearers_cut = Counter(
            "tickmind_hearers_cut", "Hearers beyond the policy's max_hearers", registry=registry
        )
        self.batches = Counter(
            "tickmind_recorder_batches", "Batches by outcome", ["outcome"], registry=registry
        )
        begin_at_zero(self.rejected, _REJECT_REASONS)
        begin_at_zero(self.cleaned, ("nul", "surrogate"))
        begin_at_zero(self.batches, ("stored", "refused"))
