"""The same metrics over OTLP/HTTP, for those who scrape nothing. Without it no SDK is loaded."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.samples import Sample

from tickmind.telemetry import log, resource_of
from tickmind.watching import Watching

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import export as sdk

__all__ = ["metrics_of", "push", "pushing"]

_logger = logging.getLogger("tickmind.metrics")

#: OpenTelemetry's own default of OTEL_METRIC_EXPORT_INTERVAL.
_INTERVAL_MS = 60_000.0
#: Longest that a service which ends waits for a collector.
_LAST_S = 3.0


def pushing() -> bool:
    """Whether metrics go anywhere: to a collector that is named for them, or asked to take them.

    An endpoint for everything is not enough: many a collector takes traces alone.
    """
    environment = os.environ
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    asked = environment.get("OTEL_METRICS_EXPORTER", "")
    if environment.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"):
        return asked in ("", "otlp")
    return asked == "otlp"


async def push(service: str, registry: CollectorRegistry, watching: Watching) -> None:
    """Export every OTEL_METRIC_EXPORT_INTERVAL milliseconds until cancelled, then once more."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    exporter = OTLPMetricExporter()
    begun_ns = time.time_ns()

    async def export() -> None:
        told = metrics_of(registry, service, begun_ns=begun_ns)
        done = await asyncio.to_thread(exporter.export, told)
        if done.name != "SUCCESS":
            log(_logger, logging.WARNING, "metrics_not_exported")

    try:
        while True:
            await asyncio.sleep(_interval_s())
            await watching.look()
            await export()
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_S):
                await export()  # without another look: the connections are closed by now
        exporter.shutdown(timeout_millis=0)


def _interval_s() -> float:
    try:
        return float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", _INTERVAL_MS)) / 1000
    except ValueError:
        return _INTERVAL_MS / 1000


def metrics_of(registry: CollectorRegistry, service: str, *, begun_ns: int) -> sdk.MetricsData:
    """What a registry tells now, by the same names as Prometheus gets; `begun_ns`: since when it
    counts."""
    from opentelemetry.sdk.metrics import export as sdk
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    now_ns = time.time_ns()
    metrics = [
        sdk.Metric(
            name=family.name + ("_total" if family.type == "counter" else ""),
            description=family.documentation,
            unit=None,
            data=_data(family, begun_ns, now_ns),
        )
        for family in registry.collect()
    ]
    scope = sdk.ScopeMetrics(scope=InstrumentationScope("tickmind"), metrics=metrics, schema_url="")
    return sdk.MetricsData(
        [sdk.ResourceMetrics(resource=resource_of(service), scope_metrics=[scope], schema_url="")]
    )


def _data(family: Metric, begun_ns: int, now_ns: int) -> sdk.Sum | sdk.Gauge | sdk.Histogram:
    from opentelemetry.sdk.metrics import export as sdk

    cumulative = sdk.AggregationTemporality.CUMULATIVE
    if family.type == "histogram":
        points = [
            sdk.HistogramDataPoint(
                attributes=dict(labels),
                start_time_unix_nano=begun_ns,
                time_unix_nano=now_ns,
                **parts,
            )
            for labels, parts in _histograms(family.samples)
        ]
        return sdk.Histogram(data_points=points, aggregation_temporality=cumulative)
    numbers = [
        sdk.NumberDataPoint(
            attributes=dict(sample.labels),
            start_time_unix_nano=begun_ns,
            time_unix_nano=now_ns,
            value=sample.value,
        )
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    if family.type == "counter":
        return sdk.Sum(data_points=numbers, aggregation_temporality=cumulative, is_monotonic=True)
    return sdk.Gauge(data_points=numbers)


def _histograms(
    samples: Iterable[Sample],
) -> Iterator[tuple[tuple[tuple[str, str], ...], dict[str, Any]]]:
    """Labels and parts of each histogram; Prometheus' buckets hold those below them as well."""
    buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
        if sample.name.endswith("_bucket"):
            buckets.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    for labels, upto in buckets.items():
        upto.sort()
        counts = [int(value) for _, value in upto]
        below = [0, *counts[:-1]]
        yield (
            labels,
            {
                "count": counts[-1],
                "sum": sums[labels],
                "bucket_counts": [n - less for n, less in zip(counts, below, strict=True)],
                "explicit_bounds": [bound for bound, _ in upto[:-1]],
                "min": None,  # not known
                "max": None,
            },
        )
