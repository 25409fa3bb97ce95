"""Alerts name metrics that exist, dashboards are JSON, and each alert has its runbook."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from tests.charts.helm import CHART, render
from tests.e2e.documents import README

_METRIC = re.compile(r"\btickmind_[a-z_]+")
#: What Prometheus makes of a histogram.
_PARTS = ("_bucket", "_sum", "_count")


def _rules(values: str = "external") -> list[dict[str, Any]]:
    [rule] = render(values).of("PrometheusRule")
    return [rule for group in rule["spec"]["groups"] for rule in group["rules"]]


def _metrics(text: str) -> set[str]:
    found = set()
    for name in _METRIC.findall(text):
        for part in _PARTS:
            name = name.removesuffix(part)
        found.add(name)
    return found


def test_alerts_ask_for_metrics_that_the_readme_lists() -> None:
    asked = {name for rule in _rules() for name in _metrics(rule["expr"])}
    assert asked
    assert asked <= _metrics(README)


def test_alerts_are_of_this_release_alone() -> None:
    for rule in _rules():
        selectors = re.findall(r"\w+\{([^}]*)\}", rule["expr"])
        assert selectors
        for selector in selectors:
            assert 'namespace="ns"' in selector
            assert re.search(r'service=~?"t-tickmind-', selector)
        assert "$NAMESPACE" not in str(rule)
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    names = {rule["alert"] for rule in _rules()}
    assert names == {path.stem for path in CHART.glob("runbooks/*.md")}
    for rule in _rules():
        assert rule["annotations"]["runbook_url"].endswith(f"/runbooks/{rule['alert']}.md")
        text = (CHART / "runbooks" / f"{rule['alert']}.md").read_text(encoding="utf-8")
        assert text.startswith(f"# {rule['alert']}\n")


def test_alert_files_are_whole_before_the_chart_fills_them_in() -> None:
    for path in CHART.glob("files/alerts/*.yaml"):
        assert yaml.safe_load(path.read_text(encoding="utf-8")).keys() == {"groups"}


def test_dashboards_are_json_each_in_a_config_map() -> None:
    files = {path.name for path in CHART.glob("files/dashboards/*.json")}
    maps = [
        o
        for o in render("external").of("ConfigMap")
        if "grafana_dashboard" in o["metadata"]["labels"]
    ]
    assert {name for o in maps for name in o["data"]} == files
    for o in maps:
        for text in o["data"].values():
            assert _metrics(text) <= _metrics(README)
            json.loads(text)


def test_each_service_is_scraped_once() -> None:
    rendered = render("external")
    for component in ("recorder", "embedder", "retriever"):
        monitor = rendered.one("ServiceMonitor", f"-{component}")["spec"]
        services = [
            s["metadata"]["name"]
            for s in rendered.of("Service")
            if monitor["selector"]["matchLabels"].items() <= s["metadata"]["labels"].items()
        ]
        assert services == [f"t-tickmind-{component}"]
        [endpoint] = monitor["endpoints"]
        assert (endpoint["port"], endpoint["path"]) == ("http", "/metrics")


@pytest.mark.parametrize("values", ["default", "gitops"])
def test_without_the_operator_there_is_nothing_of_it(values: str) -> None:
    assert render(values).of("ServiceMonitor", "PrometheusRule", "ScaledObject", "Cluster") == []
