"""The files that Prometheus and Grafana are given, and the tools that read them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

__all__ = ["ALERTS", "CHART", "DASHBOARDS", "alerts", "expressions", "filled_in", "metrics", "tool"]

CHART = Path(__file__).parents[2] / "charts" / "tickmind"
ALERTS = sorted(CHART.glob("files/alerts/*.yaml"))
DASHBOARDS = sorted(CHART.glob("files/dashboards/*.json"))

#: What the chart fills in, as the tests do.
_NAMES = {"$NAMESPACE": "ns", "$FULLNAME": "t", "$RUNBOOKS": "https://books"}
#: What Prometheus makes of a histogram.
_PARTS = ("_bucket", "_sum", "_count")


def tool(name: str) -> str:
    """The path of one of Prometheus' programs; without it the test is skipped, on CI it fails."""
    path = shutil.which(name)
    if path is None:
        reason = f"{name} is not here: install Debian's package prometheus"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return path


def filled_in(path: Path) -> str:
    """An alert file as the chart renders it for the release `t` in the namespace `ns`."""
    text = path.read_text(encoding="utf-8")
    for name, value in _NAMES.items():
        text = text.replace(name, value)
    return text


def alerts() -> Iterator[dict[str, Any]]:
    """Every alert rule, filled in."""
    for path in ALERTS:
        for group in yaml.safe_load(filled_in(path))["groups"]:
            yield from group["rules"]


def expressions(path: Path) -> Iterator[tuple[str, str]]:
    """The panels' queries of a dashboard, each with its panel's title."""
    for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def metrics(expression: str) -> set[str]:
    """The metrics a query asks for."""
    found = set()
    for name in re.findall(r"\btickmind_[a-z_]+", expression):
        for part in _PARTS:
            name = name.removesuffix(part)
        found.add(name)
    return found
