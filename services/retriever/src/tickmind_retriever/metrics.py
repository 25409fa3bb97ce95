"""What the retriever counts."""

from __future__ import annotations

from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram

from tickmind.messages import PlanName
from tickmind.metering import begin_at_zero

__all__ = ["Metrics"]

_EMPTY = ("", "deadline", "embedding", "database", "invalid", "internal")


class Metrics:
    """What the retriever counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.recalls = Counter(
            "tickmind_recalls",
            "Answers by status and reason",
            ["status", "reason"],
            registry=registry,
        )
        begin_at_zero(self.recalls, (("ok", ""), *(("empty", reason) for reason in _EMPTY)))
        self.shed = Counter(
            "tickmind_recalls_shed",
            "Answers refused at once, since they would have come too late",
            registry=registry,
        )
        self.seconds = Histogram(
            "tickmind_recall_seconds",
            "From the request's arrival here to its reply",
            buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2),
            registry=registry,
        )
        self.plans = Counter(
            "tickmind_recall_plans",
            "Agents' memories ranked, by how",
            ["plan"],
            registry=registry,
        )
        begin_at_zero(self.plans, ((plan,) for plan in get_args(PlanName)))
        self.audited = Counter(
            "tickmind_recall_audit",
            "Of sampled recalls' exact best memories: whether ranking by this plan found them",
            ["plan", "found"],
            registry=registry,
        )
