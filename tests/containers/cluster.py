"""Rendered Kubernetes objects run as containers: enough of a kubelet to see a chart at work.

A pod is a network namespace with its Services' names, its init containers one after another and
then its containers, with the users, rights, files and limits that the manifests say. What is not
here: scheduling, scaling, network policies, proxies, probes that restart.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.containers.commands import Ended, missing
from tests.containers.engine import Engine
from tests.containers.manifests import Manifests, Object, Pod, Unsupported, expanded
from tests.containers.volumes import directory
from tests.running import eventually

__all__ = ["Cluster", "cluster"]

#: How long everything may take to be ready; on 2 cores it takes half a minute.
_READY_S = 240.0
#: A kubelet's pause before a failed container is tried again begins at 10 s; ours need not.
_RETRY_S = 1.0
_BYTES = {"Ki": "k", "Mi": "m", "Gi": "g"}


@asynccontextmanager
async def cluster(
    engine: Engine,
    objects: Iterable[Object],
    *,
    name: str,
    namespace: str,
    scratch: Path,
    idle: str,
) -> AsyncIterator[Cluster]:
    """Everything that the objects ask for, started at once; removed at the end.

    `name`: of the network and of the containers' label. `idle`: an image with `sleep` in it.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        missing(
            "volumes are given to the pods' groups and pods called by their addresses: Linux, root"
        )
    label = f"tickmind-test-cluster={name}"
    await engine.docker("network", "create", "--label", label, name)
    running = Cluster(
        engine, Manifests(objects, namespace=namespace), name, scratch, idle=idle, label=label
    )
    try:
        await running.start()
        yield running
    finally:
        left = await engine.docker("ps", "--all", "--quiet", "--filter", f"label={label}")
        if left.out.split():
            await engine.docker("rm", "--force", "--volumes", *left.out.split())
        await engine.docker("network", "rm", name)
        shutil.rmtree(scratch, ignore_errors=True)


class Cluster:
    """Running pods. A container is named by its pod and itself."""

    def __init__(
        self,
        engine: Engine,
        manifests: Manifests,
        name: str,
        scratch: Path,
        *,
        idle: str,
        label: str,
    ) -> None:
        self._engine = engine
        self._manifests = manifests
        self._name = name
        self._scratch = scratch
        self._idle = idle
        self._label = label

    async def start(self) -> None:
        """Start all pods at once, as a cluster does: each copes with what is not there yet."""
        async with asyncio.TaskGroup() as tasks:
            for pod in self._manifests.pods:
                tasks.create_task(self._run(pod))

    async def ready(self) -> None:
        """Wait until every pod that runs on is ready, by its own probes."""
        async with asyncio.TaskGroup() as tasks:
            for pod in self._manifests.pods:
                if pod.attempts is None:
                    tasks.create_task(self._ready(pod))

    async def complete(self, given: Object) -> Ended:
        """Run one more object, a pod or a Job, to its end; what its last container said."""
        [pod] = self._manifests.pods_of(given)
        ended = await self._run(pod)
        assert ended is not None, f"{pod.name} is not meant to end"
        return ended

    async def states(self) -> dict[str, dict[str, Any]]:
        """By container (`pod/container`): what the engine says of it."""
        found: dict[str, dict[str, Any]] = {}
        for pod in self._manifests.pods:
            for container in pod.spec["containers"]:
                name = self._container(pod, container)
                shown = await self._engine.docker("inspect", name)
                [found[f"{pod.name}/{container['name']}"]] = json.loads(shown.out)
        return found

    async def probe(self, pod: Pod, kind: str) -> bool:
        """Whether this probe of all the pod's containers succeeds; one without it does."""
        answers = [
            await self._answers(pod, container, container[kind])
            for container in pod.spec["containers"]
            if kind in container
        ]
        return all(answers)

    def pods(self, part: str) -> list[Pod]:
        """The pods with this in their names."""
        return [pod for pod in self._manifests.pods if part in pod.name]

    async def replace(self, pod: Pod) -> list[int]:
        """End a pod as a kubelet would, and start it anew with what outlives it; how the
        containers ended."""
        codes = []
        grace_s = pod.spec.get("terminationGracePeriodSeconds", 30)
        for container in pod.spec["containers"]:
            await self._engine.docker(
                *("stop", "--time", str(grace_s), self._container(pod, container)),
                timeout_s=grace_s + 30,
            )
            name = self._container(pod, container)
            ended = await self._engine.docker("inspect", "--format", "{{.State.ExitCode}}", name)
            codes.append(int(ended.out))
            await self._engine.docker("rm", "--volumes", name)
        await self._engine.docker("rm", "--force", self._sandbox(pod))
        shutil.rmtree(self._scratch / "pods" / pod.name, ignore_errors=True)
        await self._run(pod)
        return codes

    async def _run(self, pod: Pod) -> Ended | None:
        aliases = [f"--network-alias={name}" for name in self._manifests.aliases(pod)]
        await self._engine.docker(
            *("run", "--detach", "--label", self._label, "--network", self._name, *aliases),
            *("--hostname", pod.name, "--name", self._sandbox(pod)),
            *("--entrypoint", "sleep", self._idle, "infinity"),
        )
        for container in pod.spec.get("initContainers", []):
            if container.get("restartPolicy") == "Always":
                raise Unsupported(f"{pod.name}: sidecar {container['name']}")
            await self._to_its_end(pod, container, attempts=60)
        ended = None
        for container in pod.spec["containers"]:
            if pod.attempts is None:
                await self._engine.docker(
                    *("run", "--detach", "--restart=always"), *self._described(pod, container)
                )
            else:
                ended = await self._to_its_end(pod, container, attempts=pod.attempts)
        return ended

    async def _to_its_end(self, pod: Pod, container: Object, *, attempts: int) -> Ended:
        """Run until it exits 0, as often as it may; fails the test where it never does."""
        for attempt in range(attempts):
            if attempt:
                await asyncio.sleep(_RETRY_S)
                await self._engine.docker("rm", "--volumes", self._container(pod, container))
            ended = await self._engine.docker(
                *("run", *self._described(pod, container)), timeout_s=_READY_S, check=False
            )
            if ended.code == 0:
                return ended
        raise AssertionError(
            f"{pod.name}/{container['name']}: exit code {ended.code}\n{ended.out}{ended.err}"
        )

    def _described(self, pod: Pod, container: Object) -> list[str]:
        """The arguments of `docker run` for a container of a pod."""
        environment = self._manifests.environment(pod, container)
        options = ["--label", self._label, "--name", self._container(pod, container)]
        options += ["--network", f"container:{self._sandbox(pod)}"]
        options += [f"--env={name}={value}" for name, value in environment.items()]
        options += self._rights(pod, container)
        for resource, option in (("memory", "--memory"), ("cpu", "--cpus")):
            limit = container.get("resources", {}).get("limits", {}).get(resource)
            if limit is not None:
                options.append(f"{option}={_quantity(str(limit))}")
        for mount in container.get("volumeMounts", []):
            volume = directory(self._scratch, self._manifests, pod, mount["name"])
            source = volume / mount.get("subPath", "")
            readonly = ",readonly" if mount.get("readOnly") else ""
            options.append(
                f"--mount=type=bind,source={source},target={mount['mountPath']}{readonly}"
            )
        if "workingDir" in container:
            options += ["--workdir", container["workingDir"]]
        command = [expanded(part, environment) for part in container.get("command", [])]
        arguments = [expanded(str(part), environment) for part in container.get("args", [])]
        if command:
            options += ["--entrypoint", command[0]]
        return [*options, container["image"], *command[1:], *arguments]

    def _rights(self, pod: Pod, container: Object) -> list[str]:
        """User, groups, capabilities and the root file system."""
        user, group = (pod.context(container, key) for key in ("runAsUser", "runAsGroup"))
        if pod.context(container, "runAsNonRoot") and not user:
            raise Unsupported(f"{pod.name}/{container['name']}: runAsNonRoot without a user")
        options = [] if user is None else [f"--user={user}:{group or 0}"]
        own = container.get("securityContext", {})
        shared = pod.spec.get("securityContext", {})
        for extra in {shared.get("fsGroup"), *shared.get("supplementalGroups", [])} - {None}:
            options.append(f"--group-add={extra}")
        options += [f"--cap-drop={name}" for name in own.get("capabilities", {}).get("drop", [])]
        options += [f"--cap-add={name}" for name in own.get("capabilities", {}).get("add", [])]
        if own.get("allowPrivilegeEscalation") is False:
            options.append("--security-opt=no-new-privileges:true")
        if own.get("readOnlyRootFilesystem"):
            options.append("--read-only")
        return options

    async def _ready(self, pod: Pod) -> None:
        for kind in ("startupProbe", "readinessProbe"):
            try:
                await eventually(
                    lambda kind=kind: self.probe(pod, kind),  # type: ignore[misc]
                    bool,
                    what=f"{pod.name}: {kind}",
                    timeout_s=_READY_S,
                )
            except AssertionError as fault:
                for container in pod.spec["containers"]:
                    name = self._container(pod, container)
                    said = await self._engine.docker("logs", "--tail", "30", name, check=False)
                    fault.add_note(said.out + said.err)
                raise

    async def _answers(self, pod: Pod, container: Object, probe: Object) -> bool:
        timeout_s = float(probe.get("timeoutSeconds", 1))
        if "exec" in probe:
            name = self._container(pod, container)
            command = probe["exec"]["command"]
            return (await self._engine.docker("exec", name, *command, check=False)).code == 0
        address = await self.address(pod)
        if "httpGet" in probe:
            asked = probe["httpGet"]
            port = self._manifests.port(pod, asked["port"])
            url = f"http://{address}:{port}{asked.get('path', '/')}"
            return await asyncio.to_thread(_answers_ok, url, timeout_s)
        if "tcpSocket" in probe:
            port = self._manifests.port(pod, probe["tcpSocket"]["port"])
            try:
                async with asyncio.timeout(timeout_s):
                    _, writer = await asyncio.open_connection(address, port)
            except (OSError, TimeoutError):
                return False
            writer.close()
            return True
        raise Unsupported(f"{pod.name}: probe {sorted(probe)}")

    async def address(self, pod: Pod) -> str:
        """The pod's own address, which this machine reaches."""
        wanted = f'{{{{(index .NetworkSettings.Networks "{self._name}").IPAddress}}}}'
        return (
            await self._engine.docker("inspect", "--format", wanted, self._sandbox(pod))
        ).out.strip()

    def _sandbox(self, pod: Pod) -> str:
        return f"{self._name}-{pod.name}"

    def _container(self, pod: Pod, container: Object) -> str:
        return f"{self._sandbox(pod)}-{container['name']}"


def _quantity(text: str) -> str:
    """An amount as `docker run` writes it."""
    for suffix, letter in _BYTES.items():
        if text.endswith(suffix):
            return text.removesuffix(suffix) + letter
    return str(int(text.removesuffix("m")) / 1000) if text.endswith("m") else text


def _answers_ok(url: str, timeout_s: float) -> bool:
    # No proxy of the environment stands between this machine and its own containers.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout_s) as reply:
            return bool(200 <= reply.status < 400)
    except OSError:
        return False
