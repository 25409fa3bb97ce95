"""What the embedder counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from tickmind.errors import EmbeddingFailed, EmbeddingUnavailable, ProviderRefused, TextRefused
from tickmind.measured import CallMeters
from tickmind.metering import begin_at_zero

__all__ = ["Metrics"]

_FAILURES = (EmbeddingUnavailable, ProviderRefused, TextRefused, EmbeddingFailed)
_CALLS = ("ok", *(error.reason for error in _FAILURES))


class Metrics:
    """Counters of one embedder process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.linked = Counter(
            "tickmind_memories_indexed", "Memories that became recallable", registry=registry
        )
        self.texts = Counter(
            "tickmind_embedding_texts",
            "Distinct texts by outcome: embedded, blank, retried, parked",
            ["outcome"],
            registry=registry,
        )
        self.calls = Counter(
            "tickmind_embedding_calls",
            "API calls by outcome: ok, or why not",
            ["outcome"],
            registry=registry,
        )
        self.pending = Gauge(
            "tickmind_embedding_backlog",
            "Pending rows that the last full sweeps saw and could not link",
            registry=registry,
        )
        self.waited = Counter(
            "tickmind_embedding_budget_waited_seconds",
            "Time that callers waited for the budget",
            registry=registry,
        )
        self.api = CallMeters(registry)
        begin_at_zero(self.texts, ("embedded", "blank", "parked", "retried"))
        begin_at_zero(self.calls, _CALLS)
        self._backlogs: dict[int, int] = {}

    def backlog(self, space_id: int, waiting: int) -> None:
        """What waits in one space; the gauge shows the sum."""
        self._backlogs[space_id] = waiting
        self.pending.set(sum(self._backlogs.values()))
