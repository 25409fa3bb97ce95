"""The roles, users and rights that docker-compose.yml and the chart give, as they render them."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.charts.helm import Rendered, render
from tests.e2e.documents import ROOT

__all__ = ["SERVICES", "Deployed", "of_chart", "of_compose", "run_script", "written"]

SERVICES = ("recorder", "embedder", "retriever")
_FILES = ROOT / "charts" / "tickmind" / "files"
_VARIABLE = re.compile(r"\$\{(\w+)[^}]*\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """What is run to prepare the servers, and as whom the services come.

    `roles`, `users`: environments of the scripts that make them; `files`: those scripts, by path.
    `services`: each service's own environment, `migrate`'s too.
    """

    roles: Mapping[str, str]
    users: Mapping[str, str]
    services: Mapping[str, Mapping[str, str]]
    files: Mapping[str, str]


def of_compose() -> Deployed:
    """docker-compose.yml with a password of its own for each that it asks for."""
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    services = yaml.safe_load(text)["services"]

    def environment(name: str) -> dict[str, str]:
        given = services[name]["environment"]
        return {
            key: _VARIABLE.sub(lambda found: f"the {found[1]}", str(value))
            for key, value in given.items()
            if value is not None
        }

    mounted = {
        name: services[name]["volumes"][0].split(":")[0].removeprefix("./")
        for name in ("roles", "users")
    }
    return Deployed(
        roles=environment("roles"),
        users=environment("users"),
        services={name: environment(name) for name in (*SERVICES, "migrate")},
        files={
            path.relative_to(_FILES).as_posix(): path.read_text(encoding="utf-8")
            for folder in mounted.values()
            for path in (ROOT / folder).iterdir()
            if path.is_file()
        },
    )


def of_chart() -> Deployed:
    """The chart with its default values; skips the test where helm cannot be had."""
    rendered = render("default")
    job = next(o for o in rendered.of("Job") if "-migrate-" in o["metadata"]["name"])
    broker = rendered.one("StatefulSet", "-rabbitmq")["spec"]["template"]["spec"]
    files: dict[str, str] = {}
    for folder, suffix in (("postgresql", "-migrate"), ("rabbitmq", "-rabbitmq")):
        data = rendered.one("ConfigMap", suffix)["data"]
        files |= {f"{folder}/{name}": text for name, text in data.items()}
    pod = job["spec"]["template"]["spec"]
    services = {
        name: _environment(
            rendered,
            rendered.one("Deployment", f"-{name}")["spec"]["template"]["spec"]["containers"][0],
        )
        for name in SERVICES
    }
    services["migrate"] = _environment(rendered, pod["containers"][0])
    return Deployed(
        roles=_environment(rendered, pod["initContainers"][0]),
        users=_environment(rendered, broker["initContainers"][0]),
        services=services,
        files=files,
    )


def _environment(rendered: Rendered, container: Mapping[str, Any]) -> dict[str, str]:
    """The variables of a container, Secrets looked up."""
    secrets = {o["metadata"]["name"]: _content(o) for o in rendered.of("Secret")}
    found: dict[str, str] = {}
    for entry in container["env"]:
        if "value" in entry:
            found[entry["name"]] = str(entry["value"])
        elif "secretKeyRef" in entry.get("valueFrom", {}):
            reference = entry["valueFrom"]["secretKeyRef"]
            found[entry["name"]] = secrets[reference["name"]][reference["key"]]
    return found


def _content(secret: Mapping[str, Any]) -> dict[str, str]:
    encoded: dict[str, str] = secret.get("data", {})
    decoded = {key: base64.b64decode(value).decode() for key, value in encoded.items()}
    given: dict[str, str] = secret.get("stringData", {})
    return decoded | given


def written(deployed: Deployed, folder: Path) -> Path:
    """The scripts as files, laid out as the containers have them."""
    for name, text in deployed.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


async def run_script(script: Path, *arguments: str, **environment: str) -> str:
    """Run a script of the chart as its container does; what it prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(script), *arguments),
        env={"PATH": os.environ["PATH"], **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, complained = await process.communicate()
    assert process.returncode == 0, complained.decode()
    return printed.decode()
