"""From one version to the next and back: what may not change does not, and passwords are kept."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts.cluster import running_cluster
from tests.charts.helm import CHART, CI_VALUES, HELMS, Rendered, objects_of, render, run_helm

all_values = pytest.mark.parametrize("values", CI_VALUES)


def _of_version(version: str, app: str, tmp_path: Path) -> Rendered:
    """The default rendering of this chart under other version numbers."""
    copy = tmp_path / f"{version}-{app}"
    shutil.copytree(CHART, copy)
    chart = yaml.safe_load((copy / "Chart.yaml").read_text(encoding="utf-8"))
    chart |= {"version": version, "appVersion": app}
    (copy / "Chart.yaml").write_text(yaml.safe_dump(chart), encoding="utf-8")
    result = run_helm(
        "4", "template", "t", str(copy), "--namespace", "ns", "--kube-version", "1.34"
    )
    assert result.returncode == 0, result.stderr
    return objects_of(result.stdout)


def _immutable(rendered: Rendered) -> dict[tuple[str, str], Any]:
    """What Kubernetes refuses to change in an object that is there already."""
    found: dict[tuple[str, str], Any] = {}
    for o in rendered:
        spec = o.get("spec", {})
        key = (o["kind"], o["metadata"]["name"])
        if o["kind"] == "StatefulSet":
            mutable = {"replicas", "template", "updateStrategy", "minReadySeconds"}
            found[key] = {name: value for name, value in spec.items() if name not in mutable}
        elif o["kind"] == "Deployment":
            found[key] = spec["selector"]
        elif o["kind"] == "Job":
            found[key] = spec["template"]
        elif o["kind"] == "Secret":
            found[key] = o["type"]
    return found


def test_upgrade_changes_nothing_that_cannot_be_changed(tmp_path: Path) -> None:
    """case 45: of every object that both versions have, the immutable is the same."""
    old = _immutable(_of_version("0.1.0", "0.1.0", tmp_path))
    new = _immutable(_of_version("7.3.1", "9.0.0", tmp_path))
    for key in old.keys() & new.keys():
        assert old[key] == new[key], key
    # Only the migration is another one; the rest goes on under its name.
    assert {kind for kind, _ in old.keys() ^ new.keys()} == {"Job"}


@pytest.mark.parametrize(
    "sets",
    [
        ("postgresql.bundled.resources.limits.memory=2Gi", "commonLabels.team=agents"),
        ("rabbitmq.bundled.image.tag=4.2-management", "image.tag=next"),
        ("networkPolicy.enabled=false", "recorder.replicas=3", "postgresql.bundled.image.tag=x"),
    ],
)
def test_changed_values_change_nothing_that_cannot_be_changed(sets: tuple[str, ...]) -> None:
    old, new = _immutable(render("default")), _immutable(render("default", *sets))
    for key in old.keys() & new.keys():
        assert old[key] == new[key], key


def test_names_and_selectors_are_those_of_every_release() -> None:
    """They stand in clusters: to change one here is to break an upgrade there."""
    selectors = {
        o["metadata"]["name"]: o["spec"]["selector"]["matchLabels"]
        for o in render("default").of("Deployment", "StatefulSet")
    }
    assert selectors == {
        f"t-tickmind-{component}": {
            "app.kubernetes.io/name": "tickmind",
            "app.kubernetes.io/instance": "t",
            "app.kubernetes.io/component": component,
        }
        for component in (
            "recorder",
            "embedder",
            "retriever",
            "postgresql",
            "rabbitmq",
            "embedding",
        )
    }
    [claim] = render("default").one("StatefulSet", "-postgresql")["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "data"


def _job(rendered: Rendered) -> str:
    [job] = rendered.of("Job")
    return str(job["metadata"]["name"])


def test_migration_is_a_new_job_for_each_change_and_the_old_one_after_a_rollback() -> None:
    first = _job(render("default"))
    changes = (
        "image.tag=next",
        "postgresql.database=other",
        "postgresql.users.owner.password=new",
        "migrate.backoffLimit=3",
        "commonLabels.team=agents",
    )
    names = [first, *(_job(render("default", change)) for change in changes)]
    assert len(set(names)) == len(names)
    # What has nothing to do with it starts no migration.
    for same in (
        *("recorder.replicas=3", "embedder.config.EMBEDDER_CONCURRENCY=4"),
        "postgresql.bundled.resources.limits.memory=2Gi",
    ):
        assert _job(render("default", same)) == first
    again = run_helm(
        "4", "template", "t", str(CHART), "--namespace", "ns", "--kube-version", "1.34"
    )
    assert _job(objects_of(again.stdout)) == first


@all_values
def test_nothing_but_the_test_is_a_hook_so_nothing_waits_for_another(values: str) -> None:
    """A hook that needs the database would run before --wait lets the database start."""
    for o in render(values):
        annotations = o["metadata"].get("annotations", {})
        hook = annotations.get("helm.sh/hook")
        assert hook == ("test" if o["metadata"]["name"].endswith("-test") else None)
        assert not [name for name in annotations if name.startswith("argocd.argoproj.io/")]


def test_a_finished_job_stays_unless_one_says_otherwise() -> None:
    [job] = render("default").of("Job")
    assert "ttlSecondsAfterFinished" not in job["spec"]
    [job] = render("default", "migrate.ttlSecondsAfterFinished=600").of("Job")
    assert job["spec"]["ttlSecondsAfterFinished"] == 600


def test_pods_restart_with_their_settings_and_not_with_the_charts_version(tmp_path: Path) -> None:
    def templates(rendered: Rendered) -> dict[str, Any]:
        workloads = rendered.of("Deployment", "StatefulSet")
        return {o["metadata"]["name"]: o["spec"]["template"] for o in workloads}

    old = templates(_of_version("0.1.0", "0.1.0", tmp_path))
    assert templates(_of_version("0.1.1", "0.1.0", tmp_path)) == old
    for change, restarted in (
        ("rabbitmq.users.recorder.password=other", {"recorder", "rabbitmq"}),
        ("postgresql.users.embedder.password=other", {"embedder"}),
        ("recorder.policy=defaults: {}", {"recorder"}),
        ("config.LOG_LEVEL=debug", {"recorder", "embedder", "retriever"}),
        ("postgresql.bundled.resources.limits.memory=2Gi", {"postgresql"}),
        ("networkPolicy.enabled=false", set()),
    ):
        new = templates(render("default", change))
        assert {name for name in old if new[name] != old[name]} == {
            f"t-tickmind-{name}" for name in restarted
        }, change


@pytest.mark.parametrize("version", HELMS)
def test_passwords_that_were_made_are_kept_and_differ(version: str, tmp_path: Path) -> None:
    """An upgrade looks them up; an uninstall leaves them beside the volumes that know them."""
    secrets = render("default", version=version).of("Secret")
    passwords = {s["metadata"]["name"]: s["stringData"]["password"] for s in secrets}
    assert len(set(passwords.values())) == len(passwords) == 11
    assert all(len(password) >= 32 for password in passwords.values())
    for secret in secrets:
        assert secret["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    owned = {
        "meta.helm.sh/release-name": "t",
        "meta.helm.sh/release-namespace": "ns",
    }
    there = [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": secret["metadata"] | {"annotations": owned},
            "data": {
                key: base64.b64encode(value.encode()).decode()
                for key, value in secret["stringData"].items()
            },
        }
        for secret in secrets
    ]
    arguments = ("template", "t", str(CHART), "--namespace", "ns", "--dry-run=server")
    with running_cluster(there, tmp_path) as kubeconfig:
        result = run_helm(
            version, *arguments, "--disable-openapi-validation", kubeconfig=str(kubeconfig)
        )
    assert result.returncode == 0, result.stderr
    upgraded = objects_of(result.stdout)
    assert passwords == {
        s["metadata"]["name"]: s["stringData"]["password"] for s in upgraded.of("Secret")
    }
