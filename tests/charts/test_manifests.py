"""The rendered objects fit together, and behave well in a cluster they share."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from tests.charts.helm import CHART, CI_VALUES, Rendered, render
from tickmind.service import App, _health_app, _State
from tickmind.settings import HealthSettings
from tickmind.watching import Watching

#: Secrets that a set of values names as being there already, with the keys it says they have.
THERE = {
    "external": {
        "town-owner": {"password"},
        "town-recorder": {"user", "pass"},
        "town-embedder": {"password"},
        "town-retriever": {"password"},
        "postgres-ca": {"ca.crt"},
        "rabbit-ca": {"tls.crt"},
        "embedding-api": {"api-key", "next-api-key"},
        **{
            f"rabbit-{user}": {"username", "password"}
            for user in ("recorder", "embedder", "retriever", "engine", "monitor")
        },
    },
    "external-single": {"postgres": {"password"}, "rabbit": {"password"}},
    # CloudNativePG makes the CA of its cluster.
    "operators": {"rabbit-ca": {"ca.crt"}, "t-tickmind-postgresql-ca": {"ca.crt"}},
    "gitops": {
        f"memory-{server}-{user}": {"username", "password"}
        for server, users in {
            "postgresql": ("superuser", "owner", "recorder", "embedder", "retriever"),
            "rabbitmq": ("admin", "recorder", "embedder", "retriever", "engine", "monitor"),
        }.items()
        for user in users
    },
}

all_values = pytest.mark.parametrize("values", CI_VALUES)


def _matches(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


@all_values
def test_names_are_unique_short_and_in_the_release(values: str) -> None:
    names = [(o["kind"], o["metadata"]["name"]) for o in render(values)]
    assert len(names) == len(set(names))
    beginning = "memory" if values == "gitops" else "t-tickmind"
    for kind, name in names:
        assert name.startswith(beginning), (kind, name)
        assert len(name) <= 63
    assert {o["metadata"]["namespace"] for o in render(values)} == {"ns"}


@pytest.mark.parametrize("values", ["default", "operators", "scaled"])
def test_names_of_the_longest_release_fit(values: str) -> None:
    for o in render(values, f"fullnameOverride={'n' * 40}"):
        # A StatefulSet's pods carry its name with a hash of ten characters as a label's value.
        assert len(o["metadata"]["name"]) <= (52 if o["kind"] == "StatefulSet" else 63), o


@all_values
def test_selectors_choose_their_own_pods_and_no_others(values: str) -> None:
    rendered = render(values)
    for workload in rendered.of("Deployment", "StatefulSet"):
        selector = workload["spec"]["selector"]["matchLabels"]
        chosen = [n for n, pod in rendered.pods() if _matches(selector, pod["metadata"]["labels"])]
        assert chosen == [f"{workload['kind']} {workload['metadata']['name']}"]
    for service in rendered.of("Service"):
        chosen = [
            name
            for name, pod in rendered.pods()
            if _matches(service["spec"]["selector"], pod["metadata"]["labels"])
        ]
        assert len(chosen) == 1, service["metadata"]["name"]
    for other in rendered.of("PodDisruptionBudget", "NetworkPolicy"):
        selector = (other["spec"].get("selector") or other["spec"]["podSelector"])["matchLabels"]
        assert any(_matches(selector, pod["metadata"]["labels"]) for _, pod in rendered.pods())


@all_values
def test_services_lead_to_ports_that_are_open(values: str) -> None:
    rendered = render(values)
    for service in rendered.of("Service"):
        for port in service["spec"]["ports"]:
            [target] = [
                declared
                for _, pod in rendered.pods()
                if _matches(service["spec"]["selector"], pod["metadata"]["labels"])
                for container in pod["spec"]["containers"]
                for declared in container["ports"]
                if declared["name"] == port["targetPort"]
            ]
            assert target["containerPort"] == port["port"]


@all_values
def test_probes_ask_what_the_services_open_and_liveness_no_dependency(values: str) -> None:
    """case 46: with the database down a pod is unready and is not restarted."""
    app = App(name="any", needs={}, checks={}, work=lambda _: _never(), close=_never)
    paths = {
        getattr(route, "path", "") for route in _health_app(app, _State(), Watching(())).routes
    }
    rendered = render(values)
    for component in ("recorder", "embedder", "retriever"):
        [container] = rendered.one("Deployment", f"-{component}")["spec"]["template"]["spec"][
            "containers"
        ]
        assert container["ports"][0]["containerPort"] == HealthSettings().health_port
        assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "http"}
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
        assert {"/livez", "/readyz", "/metrics"} <= paths
        # The service answers within 3 s what it could not find out.
        assert container["readinessProbe"]["timeoutSeconds"] > 3
        assert "startupProbe" not in container


async def _never() -> None:
    raise AssertionError


def _references(rendered: Rendered) -> list[tuple[str, str, str, str | None]]:
    """(where, kind, name, key) of every Secret and ConfigMap that something reads."""
    found: list[tuple[str, str, str, str | None]] = []
    for where, spec, container in rendered.containers():
        for entry in container.get("env", []):
            for source, kind in (("secretKeyRef", "Secret"), ("configMapKeyRef", "ConfigMap")):
                if source in entry.get("valueFrom", {}):
                    reference = entry["valueFrom"][source]
                    found.append((where, kind, reference["name"], reference["key"]))
        for volume in spec.get("volumes", []):
            if "configMap" in volume:
                found.append((where, "ConfigMap", volume["configMap"]["name"], None))
            for item in volume.get("secret", {}).get("items", []):
                found.append((where, "Secret", volume["secret"]["secretName"], item["key"]))
    for o in rendered.of("TriggerAuthentication"):
        for target in o["spec"]["secretTargetRef"]:
            found.append((o["metadata"]["name"], "Secret", target["name"], target["key"]))
    for o in rendered.of("User"):
        name = o["spec"]["importCredentialsSecret"]["name"]
        found += [(o["metadata"]["name"], "Secret", name, key) for key in ("username", "password")]
    for o in rendered.of("Cluster"):
        names = [o["spec"]["bootstrap"]["initdb"]["secret"]["name"]]
        names += [role["passwordSecret"]["name"] for role in o["spec"]["managed"]["roles"]]
        found += [
            (o["metadata"]["name"], "Secret", name, key)
            for name, key in itertools.product(names, ("username", "password"))
        ]
    return found


@all_values
def test_every_secret_and_config_map_that_is_read_is_there(values: str) -> None:
    rendered = render(values)
    there = {("Secret", name): keys for name, keys in THERE.get(values, {}).items()}
    there |= {
        (o["kind"], o["metadata"]["name"]): set(o.get("stringData") or o["data"])
        for o in rendered.of("Secret", "ConfigMap")
    }
    references = _references(rendered)
    assert references
    for where, kind, name, key in references:
        assert (kind, name) in there, (where, kind, name)
        assert key is None or key in there[kind, name], (where, name, key)


@all_values
def test_every_mount_has_its_volume_and_every_volume_its_mount(values: str) -> None:
    rendered = render(values)
    for name, pod in rendered.pods():
        spec = pod["spec"]
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        for workload in rendered.of("StatefulSet"):
            if name == f"StatefulSet {workload['metadata']['name']}":
                claims = workload["spec"]["volumeClaimTemplates"]
                volumes |= {claim["metadata"]["name"] for claim in claims}
        containers = spec.get("initContainers", []) + spec["containers"]
        mounted = {mount["name"] for c in containers for mount in c["volumeMounts"]}
        assert mounted == volumes, name


@all_values
def test_every_pod_is_restricted(values: str) -> None:
    """Pod Security Standards, profile restricted; and a root file system nobody writes to."""
    for name, pod in render(values).pods():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        kinds = {kind for volume in spec.get("volumes", []) for kind in volume if kind != "name"}
        assert kinds <= {"emptyDir", "configMap", "secret"}
    for where, _, container in render(values).containers():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, where
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}, where
        assert "memory" in container["resources"]["limits"], where


@all_values
def test_no_pod_gets_the_variables_kubernetes_makes_of_services(values: str) -> None:
    """case 46: a Service named rabbitmq would set RABBITMQ_PORT=tcp://…"""
    for name, pod in render(values).pods():
        assert pod["spec"]["enableServiceLinks"] is False, name


@all_values
def test_images_are_official_and_never_latest(values: str) -> None:
    for where, _, container in render(values).containers():
        image = container["image"]
        assert re.fullmatch(r"[^:@]+(:[^@/]+|@sha256:[0-9a-f]{64})", image), (where, image)
        assert not image.endswith(":latest")
    text = "".join(p.read_text() for p in CHART.rglob("*") if p.is_file()).lower()
    assert "bitnami" not in text


def test_images_come_from_the_registry_that_global_names() -> None:
    images = {
        c["image"] for _, _, c in render("default", "global.imageRegistry=r.io/x").containers()
    }
    assert images == {
        "r.io/x/tickmind:0.1.0",
        "r.io/x/tickmind-embedding:0.1.0",
        "r.io/x/pgvector/pgvector:pg17",
        "r.io/x/rabbitmq:4-management",
    }


@all_values
def test_labels_are_the_recommended_ones(values: str) -> None:
    common = {"team": "agents"} if values == "external" else {}
    for o in render(values):
        labels: dict[str, Any] = o["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "t"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert common.items() <= labels.items()
    for _, pod in render(values).pods():
        assert common.items() <= pod["metadata"]["labels"].items()
