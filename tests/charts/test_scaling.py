"""Scaling: by what is waiting, by HPA or KEDA and never both, and without a fight over replicas."""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import text

from tests.charts.helm import CI_VALUES, Rendered, render
from tickmind import topology
from tickmind.database import Database
from tickmind.messages import RecallRequest
from tickmind_embedder.settings import EmbedderSettings

_SERVICES = ("recorder", "embedder", "retriever")

all_values = pytest.mark.parametrize("values", CI_VALUES)


def _scalers(rendered: Rendered) -> list[tuple[str, dict[str, Any]]]:
    scalers = rendered.of("HorizontalPodAutoscaler", "ScaledObject")
    return [(o["spec"]["scaleTargetRef"]["name"], o) for o in scalers]


@all_values
def test_a_scaled_deployment_has_one_scaler_and_no_replicas(values: str) -> None:
    """case 45: `replicas` would undo the scaler's work with each upgrade."""
    rendered = render(values)
    targets = [name for name, _ in _scalers(rendered)]
    assert len(targets) == len(set(targets))
    deployments = {o["metadata"]["name"]: o["spec"] for o in rendered.of("Deployment")}
    assert set(targets) <= deployments.keys()
    for name, spec in deployments.items():
        assert ("replicas" in spec) != (name in targets), name


@pytest.mark.parametrize(
    ("kind", "values"), [("HorizontalPodAutoscaler", "operators"), ("ScaledObject", "external")]
)
def test_every_service_is_scaled_by_the_one_that_was_asked_for(kind: str, values: str) -> None:
    kinds = [(name, o["kind"]) for name, o in _scalers(render(values))]
    assert sorted(kinds) == [(f"t-tickmind-{s}", kind) for s in sorted(_SERVICES)]


def _trigger(rendered: Rendered, component: str) -> dict[str, Any]:
    [trigger] = rendered.one("ScaledObject", f"-{component}")["spec"]["triggers"]
    return dict(trigger)


@pytest.mark.parametrize(("values", "vhost"), [("scaled", "/"), ("external", "town/one")])
def test_queues_are_counted_with_what_is_unacknowledged(values: str, vhost: str) -> None:
    """case 45: the virtual host is given as it is, for KEDA encodes it (`/` becomes %2F)."""
    rendered = render(values)
    for component, queue, mode in (
        ("recorder", topology.RECORDER_QUEUE, "QueueLength"),
        ("retriever", topology.RECALL_QUEUE, "MessageRate"),
    ):
        trigger = _trigger(rendered, component)
        assert trigger["type"] == "rabbitmq"
        metadata = trigger["metadata"]
        assert metadata["queueName"] == queue.name
        assert metadata["mode"] == mode
        assert metadata["vhostName"] == vhost
        # Only the management API counts them.
        assert (metadata["protocol"], metadata["excludeUnacknowledged"]) == ("http", "false")
        assert re.fullmatch(r"https?://[^@/]+:156\d\d", metadata["host"])
        assert all(isinstance(value, str) for value in metadata.values())


@pytest.mark.parametrize("values", ["scaled", "external"])
def test_scalers_take_names_and_passwords_from_secrets(values: str) -> None:
    """case 44: a password that a URL would have to encode stands in none."""
    rendered = render(values)
    for component, server in (
        ("recorder", "rabbitmq"),
        ("embedder", "postgresql"),
        ("retriever", "rabbitmq"),
    ):
        trigger = _trigger(rendered, component)
        name = trigger["authenticationRef"]["name"]
        assert name == f"t-tickmind-{server}"
        authentication = rendered.one("TriggerAuthentication", name)
        targets = {t["parameter"] for t in authentication["spec"]["secretTargetRef"]}
        assert "password" in targets
        assert not {"password", "connection"} & trigger["metadata"].keys()


def test_the_scaler_asks_the_server_itself_by_a_name_that_is_known_everywhere() -> None:
    metadata = _trigger(render("scaled"), "embedder")["metadata"]
    assert metadata["host"] == "t-tickmind-postgresql.ns.svc"
    assert _trigger(render("external"), "embedder")["metadata"]["host"] == "postgres.example.com"


async def test_pending_texts_are_counted_by_the_scalers_query(database: Database) -> None:
    """On a real database; counted only as far as the most replicas need."""
    query = _trigger(render("scaled"), "embedder")["metadata"]["query"]
    async with database.writing() as session:
        assert (await session.execute(text(query))).scalar_one() == 0
        for statement in (
            "INSERT INTO world (name) VALUES ('w')",
            "INSERT INTO agent (world_id, name) SELECT id, 'a' FROM world",
            "INSERT INTO embedding_space (model, dimensions) VALUES ('m', 8)",
            "INSERT INTO memory (agent_id, tick, importance, kind, content, content_hash,"
            " event_key) SELECT id, n, 5, 'observation', 'x', '', int8send(n)"
            " FROM agent, generate_series(1, 4500) AS n",
            "INSERT INTO pending_embedding (memory_id, world_id, tick, space_id, importance,"
            " content_hash, parked) SELECT m.id, w.id, m.tick, s.id, 5, '', m.tick > 4400"
            " FROM memory m, world w, embedding_space s",
        ):
            await session.execute(text(statement))
        assert (await session.execute(text(query))).scalar_one() == 4000
        await session.execute(text("DELETE FROM pending_embedding WHERE tick > 100"))
        assert (await session.execute(text(query))).scalar_one() == 100


@all_values
def test_pods_leave_after_what_they_have_in_hand(values: str) -> None:
    rendered = render(values)

    def grace(component: str) -> int:
        pod = rendered.one("Deployment", f"-{component}")["spec"]["template"]["spec"]
        return int(pod["terminationGracePeriodSeconds"])

    assert grace("embedder") > EmbedderSettings.model_fields["embedding_timeout_s"].default
    [bound] = [
        limit.le
        for limit in RecallRequest.model_fields["deadline_ms"].metadata
        if hasattr(limit, "le")
    ]
    assert grace("retriever") * 1000 > bound


def test_services_survive_a_node_and_are_spread() -> None:
    rendered = render("external")
    for component in _SERVICES:
        budget = rendered.one("PodDisruptionBudget", f"-{component}")
        assert budget["spec"]["maxUnavailable"] == 1
        pod = rendered.one("Deployment", f"-{component}")["spec"]["template"]["spec"]
        keys = [c["topologyKey"] for c in pod["topologySpreadConstraints"]]
        assert keys == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
        for constraint in pod["topologySpreadConstraints"]:
            labels = constraint["labelSelector"]["matchLabels"]
            assert labels["app.kubernetes.io/component"] == component
