"""As much of a Kubernetes API as helm asks for when it renders against a cluster: discovery, and
the objects that are there. Nothing can be made in it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

__all__ = ["running_cluster"]

#: The resources that any of the values render, by group and version.
_KINDS = {
    "v1": {"Secret", "ConfigMap", "Service", "ServiceAccount", "Pod", "Namespace"},
    "apps/v1": {"Deployment", "StatefulSet"},
    "batch/v1": {"Job"},
    "policy/v1": {"PodDisruptionBudget"},
    "networking.k8s.io/v1": {"NetworkPolicy"},
    "autoscaling/v2": {"HorizontalPodAutoscaler"},
    "keda.sh/v1alpha1": {"ScaledObject", "TriggerAuthentication"},
    "postgresql.cnpg.io/v1": {"Cluster", "Database", "Pooler"},
    "rabbitmq.com/v1beta1": {"RabbitmqCluster", "Vhost", "User", "Permission"},
    "monitoring.coreos.com/v1": {"ServiceMonitor", "PrometheusRule"},
}


def _plural(kind: str) -> str:
    return f"{kind.lower()[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}s"


def _resources(version: str) -> dict[str, Any]:
    resources = [
        {"name": _plural(kind), "kind": kind, "namespaced": kind != "Namespace", "verbs": ["get"]}
        for kind in sorted(_KINDS[version])
    ]
    return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}


def _answers() -> dict[str, Any]:
    groups = [
        {
            "name": version.split("/")[0],
            "versions": [{"groupVersion": version, "version": version.split("/")[1]}],
        }
        for version in _KINDS
        if "/" in version
    ]
    answers: dict[str, Any] = {
        "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
        "/api/v1": _resources("v1"),
    }
    answers |= {f"/apis/{version}": _resources(version) for version in _KINDS if "/" in version}
    return answers


@contextmanager
def running_cluster(secrets: list[dict[str, Any]], directory: Path) -> Iterator[Path]:
    """A cluster that holds these Secrets and nothing else; gives the path of its kubeconfig."""
    answers = _answers()
    for secret in secrets:
        where = secret["metadata"]
        answers[f"/api/v1/namespaces/{where['namespace']}/secrets/{where['name']}"] = secret

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.split("?")[0])
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}
            body = json.dumps(found or missing | {"reason": "NotFound"}).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [
            {"name": "test", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
        ],
        "users": [{"name": "test", "user": {}}],
    }
    path = directory / "kubeconfig.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    try:
        yield path
    finally:
        server.shutdown()
        server.server_close()
