"""Alerts and dashboard ask for what the services tell, and each alert says what to do."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.monitoring.files import ALERTS, CHART, DASHBOARDS, alerts, expressions, filled_in, tool
from tests.monitoring.files import metrics as metrics_of
from tickmind_embedder.app import create_app as create_embedder
from tickmind_embedder.settings import EmbedderSettings
from tickmind_recorder.app import create_app as create_recorder
from tickmind_recorder.settings import RecorderSettings
from tickmind_retriever.app import create_app as create_retriever
from tickmind_retriever.settings import RetrieverSettings

_UNIT_TESTS = Path(__file__).parents[1] / "monitoring" / "alerts_test.yaml"
_RUN_S = 60


def _names(registry: CollectorRegistry) -> set[str]:
    """Metrics as a query names them."""
    return {
        family.name + ("_total" if family.type == "counter" else "")
        for family in registry.collect()
    }


@pytest.fixture(scope="module")
def told() -> set[str]:
    """Everything the three services tell."""
    apps = (
        create_recorder(RecorderSettings()),
        create_embedder(EmbedderSettings(embedding_provider="hash")),
        create_retriever(RetrieverSettings(embedding_provider="hash")),
    )
    return set().union(*(_names(app.registry) for app in apps))


def test_alerts_ask_for_metrics_that_the_services_tell(told: set[str]) -> None:
    asked = {name for rule in alerts() for name in metrics_of(rule["expr"])}
    assert asked
    assert asked - told == set()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_dashboard_asks_for_metrics_that_the_services_tell(path: Path, told: set[str]) -> None:
    asked = {name for _, expression in expressions(path) for name in metrics_of(expression)}
    assert asked
    assert asked - told == set()


def test_dashboard_shows_every_metric_there_is(told: set[str]) -> None:
    asked = {
        name for path in DASHBOARDS for _, query in expressions(path) for name in metrics_of(query)
    }
    assert told - asked == set()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_dashboard_takes_its_datasource_from_its_variable(path: Path) -> None:
    board = json.loads(path.read_text(encoding="utf-8"))
    variables = {one["name"]: one for one in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    shown = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert shown
    for panel in shown:
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    used = {
        name for _, expression in expressions(path) for name in re.findall(r"\$(\w+)", expression)
    }
    assert used - {name for name in used if name.startswith("__")} <= variables.keys()


def test_every_alert_has_its_runbook_and_every_runbook_its_alert() -> None:
    rules = {rule["alert"]: rule for rule in alerts()}
    books = {path.stem: path.read_text(encoding="utf-8") for path in CHART.glob("runbooks/*.md")}
    assert books.keys() == rules.keys()
    for name, text in books.items():
        assert text.startswith(f"# {name}\n\n"), name
        assert "\n1. " in text or "\n- " in text, f"{name}: what to look at"
        assert rules[name]["annotations"]["runbook_url"] == f"https://books/{name}.md"


def test_alert_rules_are_sound() -> None:
    for path in ALERTS:
        _run(tool("promtool"), "check", "rules", str(path), cwd=CHART)


def test_alert_rules_fire_for_their_cause_and_for_nothing_else(tmp_path: Path) -> None:
    promtool = tool("promtool")
    folder = tmp_path / "alerts"
    folder.mkdir()
    for path in ALERTS:
        (folder / path.name).write_text(filled_in(path), encoding="utf-8")
    cases = tmp_path / _UNIT_TESTS.name
    cases.write_text(_UNIT_TESTS.read_text(encoding="utf-8"), encoding="utf-8")
    _run(promtool, "test", "rules", str(cases), cwd=tmp_path)


def _run(*command: str, cwd: Path) -> None:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=_RUN_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
