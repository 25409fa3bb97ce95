"""skaffold.yaml is what skaffold's schema takes, and installs what the chart has.

The schema below is ours: the parts of v4beta13 that the file uses, as its JSON schema (in
skaffold's repository, docs-v2/content/en/schemas) has them. skaffold itself is not run.
"""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest
import yaml

from tests.charts.helm import CHART, ROOT, render

_STRINGS = {"type": "array", "items": {"type": "string"}}


def _closed(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required or [],
        "properties": properties,
    }


_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}
_TEXTS = ("name", "chartPath", "remoteChart", "namespace", "version", "repo")
_FLAGS = ("createNamespace", "wait", "skipBuildDependencies", "skipTests", "upgradeOnChange")
_RELEASE = _closed(
    ["name"],
    **dict.fromkeys(_TEXTS, _TEXT),
    **dict.fromkeys(_FLAGS, _FLAG),
    valuesFiles=_STRINGS,
    dependsOn=_STRINGS,
    setValues={"type": "object"},
    setValueTemplates={"type": "object"},
    setFiles={"type": "object"},
    overrides={"type": "object"},
)
_SCHEMA = _closed(
    ["apiVersion", "kind"],
    apiVersion={"const": "skaffold/v4beta13"},
    kind={"const": "Config"},
    metadata=_closed(name=_TEXT, labels={"type": "object"}, annotations={"type": "object"}),
    build=_closed(
        local=_closed(
            push=_FLAG,
            useBuildkit=_FLAG,
            useDockerCLI=_FLAG,
            tryImportMissing=_FLAG,
            concurrency={"type": "integer"},
        ),
        artifacts={
            "type": "array",
            "items": _closed(
                ["image"],
                image=_TEXT,
                context=_TEXT,
                requires={"type": "array"},
                platforms=_STRINGS,
                docker=_closed(
                    dockerfile=_TEXT,
                    target=_TEXT,
                    buildArgs={"type": "object"},
                    network=_TEXT,
                    cacheFrom=_STRINGS,
                    cacheTo=_STRINGS,
                    cliFlags=_STRINGS,
                ),
            ),
        },
    ),
    deploy=_closed(
        statusCheck=_FLAG,
        statusCheckDeadlineSeconds={"type": "integer"},
        tolerateFailuresUntilDeadline=_FLAG,
        kubeContext=_TEXT,
        helm=_closed(
            ["releases"],
            releases={"type": "array", "items": _RELEASE},
            flags=_closed(install=_STRINGS, upgrade=_STRINGS),
        ),
    ),
    portForward={
        "type": "array",
        "items": _closed(
            resourceType=_TEXT,
            resourceName=_TEXT,
            namespace=_TEXT,
            port={"type": ["string", "integer"]},
            localPort={"type": "integer"},
            address=_TEXT,
        ),
    },
)


def _config() -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((ROOT / "skaffold.yaml").read_text(encoding="utf-8"))
    return config


def test_configuration_is_what_the_schema_takes() -> None:
    jsonschema.validate(_config(), _SCHEMA)
    with pytest.raises(jsonschema.ValidationError, match="helmReleases"):
        jsonschema.validate(_config() | {"deploy": {"helmReleases": []}}, _SCHEMA)


def test_every_image_that_is_built_is_the_one_installed() -> None:
    config = _config()
    [release] = config["deploy"]["helm"]["releases"]
    assert (ROOT / release["chartPath"]).resolve() == CHART
    sets = []
    for key, template in release["setValueTemplates"].items():
        found = re.fullmatch(r"\{\{\.IMAGE_(REPO|TAG)_(\w+)\}\}", template)
        assert found is not None
        part, artifact = found.groups()
        built = [a["image"] for a in config["build"]["artifacts"]]
        assert artifact in [re.sub(r"[-/.]", "_", image) for image in built]
        # A tag of digits alone is a number to helm's --set.
        sets.append(f"{key}={'1234567' if part == 'TAG' else 'localhost/' + artifact}")
    [values] = release["valuesFiles"]
    rendered = render(values.split("/")[-1].removesuffix("-values.yaml"), *sets)
    images = {container["image"] for _, _, container in rendered.containers()}
    assert {"localhost/tickmind:1234567", "localhost/tickmind_embedding:1234567"} <= images
    for artifact in config["build"]["artifacts"]:
        assert artifact["docker"]["dockerfile"] == "services/Dockerfile"


def test_the_port_that_is_forwarded_is_a_services() -> None:
    [forward] = _config()["portForward"]
    rendered = render("development", "fullnameOverride=tickmind")
    service = rendered.one("Service", "-rabbitmq")
    # A release named like the chart gives names without a prefix of it.
    assert service["metadata"]["name"] == forward["resourceName"]
    assert forward["port"] in [port["port"] for port in service["spec"]["ports"]]
