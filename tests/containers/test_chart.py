"""The chart as rendered by helm, its objects run as containers: no cluster, and the same story."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.containers.cluster import Cluster, cluster
from tests.containers.engine import Engine
from tests.containers.images import IMAGE
from tests.containers.manifests import is_hook
from tests.running import eventually
from tickmind import Answer, MemoryClient

helm = pytest.importorskip("tests.charts.helm", reason="this checkout has no chart")

_NAMESPACE = "ns"
_SERVICES = ("recorder", "embedder", "retriever")


@pytest.fixture(scope="module")
def rendered() -> Any:
    """The chart with its defaults: everything bundled."""
    return helm.render("default")


@pytest.fixture(scope="module")
async def running(
    engine: Engine, images: None, scratch: Path, rendered: Any
) -> AsyncIterator[Cluster]:
    """All of it at once, as `helm install --wait` would leave it."""
    # The pod of `helm test` waits for its occasion; what it mounts is there.
    objects = [given for given in rendered if not (is_hook(given) and given["kind"] == "Pod")]
    place = scratch / "chart"
    async with cluster(
        engine, objects, name="tickmind-chart", namespace=_NAMESPACE, scratch=place, idle=IMAGE
    ) as made:
        await made.ready()
        yield made


def _user(rendered: Any, name: str) -> tuple[str, str]:
    """Name and password out of a Secret."""
    secret = rendered.one("Secret", name)
    given: Mapping[str, str] = secret.get("stringData") or {
        key: base64.b64decode(value).decode() for key, value in secret["data"].items()
    }
    return given["username"], given["password"]


async def _client(running: Cluster, rendered: Any) -> MemoryClient:
    """A client as an engine of that cluster has it: its own user, over the pod network."""
    [broker] = running.pods("-rabbitmq-")
    user, password = (quote(part, safe="") for part in _user(rendered, "-rabbitmq-engine"))
    return MemoryClient(f"amqp://{user}:{password}@{await running.address(broker)}:5672")


async def _fish(running: Cluster, rendered: Any) -> str:
    """What alice remembers, much later, of what bob told her."""
    async with await _client(running, rendered) as client:

        async def ask() -> Answer:
            return await client.recall(
                "town", "alice", "Alice walks past the market", tick=200, timeout_s=5.0
            )

        found = await eventually(
            ask, lambda answer: bool(answer.fragment), what="alice's memory", timeout_s=60
        )
        return found.fragment


async def test_alice_remembers_that_the_market_sells_fish(running: Cluster, rendered: Any) -> None:
    said = {"agent": "bob", "action": "talk", "speech": "The market sells fish"}
    async with await _client(running, rendered) as client:
        receipt = await client.publish_tick("town", 42, [said | {"heard_by": ["alice"]}])
        assert receipt.confirmed, receipt.reason
    assert "bob told me: The market sells fish" in await _fish(running, rendered)


async def test_nothing_had_to_be_restarted_to_come_up(running: Cluster) -> None:
    """case 46: everything was started at once, with every Service's variables injected."""
    for name, state in (await running.states()).items():
        if state["State"]["Status"] != "exited":
            assert (name, state["RestartCount"], state["State"]["Running"]) == (name, 0, True)
    for service in _SERVICES:
        for pod in running.pods(service):
            assert await running.probe(pod, "livenessProbe")


async def test_helm_test_succeeds(running: Cluster, rendered: Any) -> None:
    [pod] = [given for given in rendered if is_hook(given) and given["kind"] == "Pod"]
    ended = await running.complete(pod)
    assert "We sell fish" in ended.out


async def test_containers_of_the_chart_are_unprivileged_and_write_nowhere(
    running: Cluster,
) -> None:
    for name, state in (await running.states()).items():
        host = state["HostConfig"]
        assert host["ReadonlyRootfs"], name
        assert host["CapDrop"] == ["ALL"], name
        assert host["SecurityOpt"] == ["no-new-privileges:true"], name
        assert state["Config"]["User"].split(":")[0] not in ("", "0"), name


async def test_pods_end_within_their_grace_and_their_data_outlive_them(
    running: Cluster, rendered: Any
) -> None:
    for part in (*_SERVICES, "-postgresql-", "-rabbitmq-"):
        [pod] = running.pods(part)
        assert await running.replace(pod) == [0], part
    await running.ready()
    assert "bob told me: The market sells fish" in await _fish(running, rendered)
