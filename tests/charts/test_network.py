"""NetworkPolicies, evaluated: who reaches whom, and who does not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.charts.helm import Rendered, render

Labels = dict[str, str]


def _pods(rendered: Rendered) -> dict[str, Labels]:
    """The labels of every pod, by component."""
    labels = [pod["metadata"]["labels"] for _, pod in rendered.pods()]
    return {label["app.kubernetes.io/component"]: label for label in labels}


def _chosen(selector: dict[str, Any], labels: Labels) -> bool:
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def _allows(
    rules: list[dict[str, Any]], side: str, peer: Labels | None, namespace: str, port: int
) -> bool:
    """Whether one of the rules lets this peer (None: outside the cluster) through on the port."""
    for rule in rules:
        if "ports" in rule and port not in [int(p["port"]) for p in rule["ports"]]:
            continue
        if side not in rule:
            return True
        for other in rule[side]:
            if "namespaceSelector" in other:
                if _chosen(
                    other["namespaceSelector"], {"kubernetes.io/metadata.name": namespace}
                ) and _chosen(other.get("podSelector", {}), peer or {}):
                    return True
            elif peer is not None and namespace == "ns" and _chosen(other["podSelector"], peer):
                return True
    return False


def _reaches(
    rendered: Rendered, source: str, target: str | None, port: int, *, namespace: str = "ns"
) -> bool:
    """As Kubernetes decides: both the egress of one and the ingress of the other must allow."""
    pods = _pods(rendered)
    from_labels = pods.get(source, {"app": source})
    to_labels = pods[target] if target else None
    policies = rendered.of("NetworkPolicy")
    leaving = [p for p in policies if _chosen(p["spec"]["podSelector"], from_labels)]
    if namespace == "ns" and leaving:
        rules = [rule for p in leaving for rule in p["spec"]["egress"]]
        if not _allows(rules, "to", to_labels, "ns" if target else "", port):
            return False
    entering = [p for p in policies if to_labels and _chosen(p["spec"]["podSelector"], to_labels)]
    rules = [rule for p in entering for rule in p["spec"]["ingress"]]
    return not entering or _allows(rules, "from", from_labels, namespace, port)


_SERVICES = ("recorder", "embedder", "retriever")


@pytest.mark.parametrize("values", ["default", "scaled", "gitops"])
def test_the_bundled_servers_are_reached_by_those_who_need_them(values: str) -> None:
    rendered = render(values)
    for service in _SERVICES:
        assert _reaches(rendered, service, "postgresql", 5432)
        assert _reaches(rendered, service, "rabbitmq", 5672)
        assert _reaches(rendered, service, None, 53)
    assert _reaches(rendered, "migrate", "postgresql", 5432)
    assert _reaches(rendered, "test", "rabbitmq", 5672)
    assert _reaches(rendered, "embedder", "embedding", 8090)
    assert _reaches(rendered, "retriever", "embedding", 8090)
    assert _reaches(rendered, "prometheus", "embedder", 8080, namespace="monitoring")


@pytest.mark.parametrize("values", ["default", "scaled"])
def test_nobody_else_reaches_the_database_and_the_recorder_no_api(values: str) -> None:
    rendered = render(values)
    assert not _reaches(rendered, "stranger", "postgresql", 5432)
    assert not _reaches(rendered, "stranger", "postgresql", 5432, namespace="other")
    assert not _reaches(rendered, "test", "postgresql", 5432)
    assert not _reaches(rendered, "recorder", "embedding", 8090)
    assert not _reaches(rendered, "recorder", None, 443)
    assert not _reaches(rendered, "migrate", "rabbitmq", 5672)
    assert not _reaches(rendered, "postgresql", None, 443)


def test_engines_reach_the_bundled_broker_from_where_they_may() -> None:
    assert _reaches(render("default"), "engine", "rabbitmq", 5672, namespace="anywhere")
    assert _reaches(render("scaled"), "engine", "rabbitmq", 5672, namespace="engines")
    assert not _reaches(render("scaled"), "engine", "rabbitmq", 5672, namespace="anywhere")


def test_keda_reads_the_bundled_servers_where_it_scales() -> None:
    for port, server in ((5432, "postgresql"), (15672, "rabbitmq")):
        assert _reaches(render("scaled"), "keda-operator", server, port, namespace="keda")
        assert not _reaches(render("default"), "keda-operator", server, port, namespace="keda")


def test_external_servers_are_reached_on_their_ports() -> None:
    rendered = render("external")
    for port in (5432, 6432, 5671, 8443, 4318, 53):
        assert _reaches(rendered, "embedder", None, port)
    assert not _reaches(rendered, "embedder", None, 443)
    assert _reaches(rendered, "prometheus", "embedder", 8080, namespace="monitoring")
    assert not _reaches(rendered, "prometheus", "embedder", 8080, namespace="other")


def test_without_policies_there_is_none() -> None:
    assert render("development").of("NetworkPolicy") == []
