"""Both helm versions take the chart with every set of values, and render the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts.cluster import running_cluster
from tests.charts.helm import CHART, CI_VALUES, HELMS, objects_of, refusal, render, run_helm


def _values(name: str) -> str:
    return str(CHART / "ci" / f"{name}-values.yaml")


@pytest.mark.parametrize("version", HELMS)
def test_helm_is_of_the_version_we_say(version: str) -> None:
    result = run_helm(version, "version", "--template", "{{.Version}}")
    assert result.stdout.startswith(f"v{version}.")


@pytest.mark.parametrize("version", HELMS)
@pytest.mark.parametrize("values", CI_VALUES)
def test_lint_is_clean(version: str, values: str) -> None:
    result = run_helm(version, "lint", "--strict", str(CHART), "--values", _values(values))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "[WARNING]" not in result.stdout
    assert "[ERROR]" not in result.stdout


def _without_passwords(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for document in documents:
        if document["kind"] == "Secret":
            document["stringData"] = sorted(document["stringData"])
    return sorted(documents, key=lambda d: (d["kind"], d["metadata"]["name"]))


@pytest.mark.parametrize("values", CI_VALUES)
def test_both_versions_render_the_same(values: str) -> None:
    old, new = (_without_passwords(render(values, version=version)) for version in HELMS)
    assert old == new


@pytest.mark.parametrize("version", HELMS)
def test_package_holds_all_that_the_templates_read(version: str, tmp_path: Path) -> None:
    result = run_helm(version, "package", str(CHART), "--destination", str(tmp_path))
    assert result.returncode == 0, result.stderr
    [package] = tmp_path.glob("tickmind-*.tgz")
    for values in CI_VALUES:
        arguments = ("template", "t", str(package), "--values", _values(values))
        result = run_helm(version, *arguments, "--namespace", "ns", "--kube-version", "1.34")
        assert result.returncode == 0, result.stderr
        expected = render(values, version=version)
        assert _without_passwords(objects_of(result.stdout)) == _without_passwords(expected)


@pytest.mark.parametrize("version", HELMS)
@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (['typo={"a": 1}'], "typo"),
        (['postgresql={"mod": "external"}'], "mod"),
        (['recorder={"autoscaling": {"enabled": true}}'], "enabled"),
        (['postgresql={"mode": "elsewhere"}'], "mode"),
        (['image={"digest": "sha256:short"}'], "digest"),
        (['config={"DATABASE_PASSWORD": "x"}'], "DATABASE_PASSWORD"),
        (['config={"lower": "x"}'], "lower"),
        (['rabbitmq={"vhost": "%2F"}'], "vhost"),
        (['rabbitmq={"external": {"managementUrl": "https://a:b@host"}}'], "managementUrl"),
        (['postgresql={"database": "a; DROP"}'], "database"),
        (['retriever={"autoscaling": {"type": "keda", "minReplicas": 0}}'], "minReplicas"),
        (['retriever={"terminationGracePeriodSeconds": 30}'], "terminationGracePeriodSeconds"),
        (['postgresql={"pgbouncer": {"enabled": true}}'], "enabled"),
    ],
)
def test_schema_refuses_what_is_wrong(version: str, sets: list[str], says: str) -> None:
    assert says in refusal(*sets, version=version)


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (['postgresql={"mode": "external"}'], "postgresql.external.host is needed"),
        (
            ['postgresql={"mode": "external", "external": {"host": "h"}}'],
            "needs postgresql.users.owner.existingSecret",
        ),
        (
            ['rabbitmq={"mode": "external", "external": {"host": "h"}}'],
            "needs rabbitmq.users.embedder.existingSecret",
        ),
        (
            ['postgresql={"users": {"recorder": {"name": "other"}}}'],
            "must be tickmind_recorder in this mode",
        ),
        (['rabbitmq={"tls": {"enabled": true}}'], "the bundled RabbitMQ has no TLS"),
        (
            ['recorder={"autoscaling": {"type": "hpa", "minReplicas": 0}}'],
            "minReplicas 0 needs autoscaling.type keda",
        ),
        (
            ['recorder={"autoscaling": {"type": "keda", "minReplicas": 5}}'],
            "minReplicas is above maxReplicas",
        ),
        (
            ['embedding={"timeoutSeconds": 90}'],
            "must be above embedding.timeoutSeconds",
        ),
    ],
)
def test_values_that_do_not_go_together_are_refused_in_a_sentence(
    sets: list[str], says: str
) -> None:
    assert says in refusal(*sets)


def test_global_values_of_a_parent_chart_are_taken() -> None:
    assert render("default", "global.domain=example.com", "global.storageClass=fast")


@pytest.mark.parametrize("version", HELMS)
@pytest.mark.parametrize("values", CI_VALUES)
def test_notes_say_what_to_type_next_and_no_password(
    version: str, values: str, tmp_path: Path
) -> None:
    arguments: tuple[str, ...] = (
        "install",
        "t",
        str(CHART),
        "--namespace",
        "ns",
        "--values",
        _values(values),
    )
    with running_cluster([], tmp_path) as kubeconfig:  # helm 3 wants one even for this
        arguments += ("--dry-run=client", "--disable-openapi-validation")
        result = run_helm(version, *arguments, kubeconfig=str(kubeconfig))
    assert result.returncode == 0, result.stderr
    _, _, notes = result.stdout.partition("NOTES:")
    assert "kubectl --namespace ns get pods" in notes
    tested = values != "external-single"
    assert ("helm test t --namespace ns" in notes) == tested
    bundled = values in ("default", "development", "gitops", "scaled")
    assert ("FOR TRIAL USE" in notes) == bundled
    given = yaml.safe_load(Path(_values("scaled")).read_text(encoding="utf-8"))
    assert given["postgresql"]["users"]["owner"]["password"] not in notes
