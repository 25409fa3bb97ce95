"""The rendered objects against Kubernetes' schemas, KEDA's types and checkov's rules.

These tools have many dependencies pinned their own way: each runs in an environment of its own.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts.helm import CHART, CI_VALUES, isolated, render

_VALIDATE = "kubernetes-validate==1.37.0"
_KEDA = "cloudcoil-models-keda==2.16.1.0"
_CHECKOV = "checkov==3.3.30"

#: Kinds of operators, which Kubernetes itself knows nothing of.
_CUSTOM = {
    *("ScaledObject", "TriggerAuthentication", "ServiceMonitor", "PrometheusRule"),
    *("Cluster", "Database", "Pooler", "RabbitmqCluster", "Vhost", "User", "Permission"),
}


def _objects() -> list[dict[str, Any]]:
    """Every object of every set of values, equal ones once."""
    found = {json.dumps(o): o for values in CI_VALUES for o in render(values)}
    return list(found.values())


# Its schemas are read once a kind rather than once an object.
_VALIDATOR = """
import functools, json, sys
import kubernetes_validate
from kubernetes_validate import utils
utils.schema_contents = functools.cache(utils.schema_contents)
version, objects = json.load(sys.stdin)
if version == "newest":
    version = kubernetes_validate.latest_version()
faults = []
for o in objects:
    try:
        used = kubernetes_validate.validate(o, version, strict=True)
        assert version.startswith(used), (version, used)
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as exc:
        name = o["metadata"]["name"]
        faults.append(f"{o['kind']} {name}: {getattr(exc, 'message', exc)}")
print(json.dumps({"version": version, "objects": len(objects), "faults": faults}))
"""


def _oldest() -> str:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    found = re.match(r">=(\d+\.\d+)", chart["kubeVersion"])
    assert found is not None
    return found[1]


@pytest.mark.parametrize("version", ["oldest", "newest"])
def test_objects_are_what_kubernetes_takes_and_nothing_more(version: str) -> None:
    objects = [o for o in _objects() if o["kind"] not in _CUSTOM]
    wanted = _oldest() if version == "oldest" else version
    said = isolated(_VALIDATE, "python", "-c", _VALIDATOR, stdin=json.dumps([wanted, objects]))
    answer = json.loads(said)
    assert answer["objects"] > 100
    assert answer["faults"] == []


def test_validation_sees_an_unknown_field() -> None:
    """That the strict schemas are asked at all."""
    wrong = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "x"},
        "spec": {"selectors": {}},
    }
    said = isolated(_VALIDATE, "python", "-c", _VALIDATOR, stdin=json.dumps(["newest", [wrong]]))
    assert "selectors" in str(json.loads(said)["faults"])


# The types take unknown fields; what they do not give back they did not know.
_TYPES = """
import json, sys
import cloudcoil.models.keda.v1alpha1 as keda

def lost(given, kept, path):
    if isinstance(given, dict):
        for key, value in given.items():
            if not isinstance(kept, dict) or key not in kept:
                yield f"{path}.{key}"
            else:
                yield from lost(value, kept[key], f"{path}.{key}")
    elif isinstance(given, list):
        for number, value in enumerate(given):
            yield from lost(value, kept[number], f"{path}[{number}]")
    elif given != kept:
        yield f"{path}: {given!r} became {kept!r}"

faults = []
for o in json.load(sys.stdin):
    read = getattr(keda, o["kind"]).model_validate(o)
    kept = json.loads(read.model_dump_json(by_alias=True, exclude_unset=True))
    faults += lost(o["spec"], kept["spec"], o["metadata"]["name"])
print(json.dumps(faults))
"""


def test_keda_knows_every_field() -> None:
    objects = [o for o in _objects() if o["apiVersion"] == "keda.sh/v1alpha1"]
    assert {o["kind"] for o in objects} == {"ScaledObject", "TriggerAuthentication"}
    wrong = json.loads(json.dumps(objects[0]))
    wrong["spec"]["minReplicas"] = 1  # that an unknown field is seen at all
    said = isolated(_KEDA, "python", "-c", _TYPES, stdin=json.dumps([*objects, wrong]))
    assert json.loads(said) == [f"{wrong['metadata']['name']}.minReplicas"]


#: What a trigger's metadata may hold: keda.sh, scalers "RabbitMQ Queue" and "PostgreSQL", 2.16.
_TRIGGERS = {
    "rabbitmq": {
        *("host", "protocol", "vhostName", "queueName", "mode", "value", "activationValue"),
        *("excludeUnacknowledged", "useRegex", "operation", "timeout", "unsafeSsl", "pageSize"),
    },
    "postgresql": {
        *("host", "port", "dbName", "userName", "sslmode", "query", "connectionFromEnv"),
        *("targetQueryValue", "activationTargetQueryValue", "passwordFromEnv"),
    },
}


def test_triggers_hold_only_what_their_scalers_read() -> None:
    for o in _objects():
        for trigger in o["spec"]["triggers"] if o["kind"] == "ScaledObject" else []:
            assert trigger["metadata"].keys() <= _TRIGGERS[trigger["type"]]
            assert all(isinstance(value, str) for value in trigger["metadata"].values())


#: The fields we use of the operators' own kinds, as their custom resource definitions have them:
#: CloudNativePG 1.26, RabbitMQ cluster operator 2.x and messaging topology operator 1.x.
_FIELDS = {
    "Cluster": {"instances", "imageName", "bootstrap", "managed", "storage", "resources", "backup"},
    "Database": {"cluster", "name", "owner", "schemas", "extensions"},
    "Pooler": {"cluster", "instances", "type", "pgbouncer"},
    "RabbitmqCluster": {"replicas", "image", "resources", "persistence", "tls"},
    "Vhost": {"name", "rabbitmqClusterReference"},
    "User": {"tags", "importCredentialsSecret", "rabbitmqClusterReference"},
    "Permission": {"vhost", "userReference", "permissions", "rabbitmqClusterReference"},
    "ServiceMonitor": {"selector", "endpoints"},
    "PrometheusRule": {"groups"},
}


def test_operators_get_only_fields_they_have() -> None:
    objects = {o["kind"]: o for o in _objects() if o["kind"] in _FIELDS}
    assert objects.keys() == _FIELDS.keys()
    for kind, o in objects.items():
        assert o["spec"].keys() <= _FIELDS[kind], kind
    assert objects["Cluster"]["spec"]["bootstrap"]["initdb"]["postInitSQL"] == [
        'CREATE ROLE "tickmind_recorder" LOGIN',
        'CREATE ROLE "tickmind_embedder" LOGIN',
        'CREATE ROLE "tickmind_retriever" LOGIN',
    ]
    assert objects["Database"]["spec"]["extensions"] == [{"name": "vector", "schema": "extensions"}]
    assert objects["Cluster"]["spec"]["backup"] == {"retentionPolicy": "30d"}


#: Findings we leave, each with its reason, and where.
_ACCEPTED = {
    "CKV_K8S_11": (r".", "no CPU limit: it slows what could use an idle processor"),
    "CKV_K8S_15": (r".", "IfNotPresent: tags are versions; image.digest pins"),
    "CKV_K8S_43": (r".", "image.digest pins; a default cannot know your registry's"),
    "CKV_K8S_35": (r".", "secretKeyRef: the environment is as private as a mounted file here"),
    "CKV_K8S_40": (
        r"StatefulSet\.ns\..*-(postgresql|rabbitmq)$",
        "999 is the official images' user",
    ),
    "CKV_K8S_8": (r"Pod\.ns\..*-test$", "a test runs once"),
    "CKV_K8S_9": (r"Pod\.ns\..*-test$", "a test runs once"),
}


def test_checkov_finds_nothing_that_is_not_explained(tmp_path: Path) -> None:
    for values in ("default", "external", "operators", "scaled"):
        path = tmp_path / f"{values}.yaml"
        path.write_text(yaml.safe_dump_all(render(values)), encoding="utf-8")
    said = isolated(
        _CHECKOV,
        "checkov",
        *("--directory", str(tmp_path), "--framework", "kubernetes"),
        *("--quiet", "--compact", "--soft-fail", "--skip-download", "--output", "json"),
    )
    failed = json.loads(said)["results"]["failed_checks"]
    assert failed, "checkov looked at nothing"
    unexplained = {
        f"{f['check_id']} {f['check_name']}: {f['resource']}"
        for f in failed
        if not re.search(_ACCEPTED.get(f["check_id"], (r"$^",))[0], f["resource"])
    }
    assert unexplained == set()
    assert {f["check_id"] for f in failed} == _ACCEPTED.keys(), "an explanation nobody needs"
