"""What is in the image, and how it behaves by itself."""

from __future__ import annotations

import json
import time
from importlib.metadata import version
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.containers.commands import HADOLINT, run, tool
from tests.containers.engine import Engine
from tests.containers.images import EMBEDDING_IMAGE, IMAGE
from tests.e2e.documents import ROOT
from tests.running import eventually

_BASE = "python:3.13-slim"

#: What ours may add to the base, in bytes: measured 172 MB and, with the model, 271 MB.
_MOST = {IMAGE: 190_000_000, EMBEDDING_IMAGE: 290_000_000}

#: Kubernetes' default between SIGTERM and SIGKILL.
_GRACE_S = 30.0


async def _inspected(engine: Engine, image: str) -> dict[str, Any]:
    [found] = json.loads((await engine.docker("image", "inspect", image)).out)
    return dict(found)


async def test_dockerfile_is_clean_under_hadolint() -> None:
    await run([*await tool(HADOLINT), ROOT / "services" / "Dockerfile"])


@pytest.mark.usefixtures("images")
async def test_image_says_what_it_is_and_runs_as_nobody_in_particular(engine: Engine) -> None:
    config = (await _inspected(engine, IMAGE))["Config"]
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["tickmind"]
    assert config["StopSignal"] == "SIGTERM"
    labels = {
        name.removeprefix("org.opencontainers.image."): text
        for name, text in config["Labels"].items()
    }
    assert labels["title"] == "tickmind"
    assert labels["licenses"] == "Apache-2.0"
    assert labels["version"] == version("tickmind")
    assert {"description", "revision"} <= set(labels)


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("image", [IMAGE, EMBEDDING_IMAGE])
async def test_image_adds_no_more_than_it_needs(engine: Engine, image: str) -> None:
    base = (await _inspected(engine, _BASE))["Size"]
    assert (await _inspected(engine, image))["Size"] - base < _MOST[image]


@pytest.mark.usefixtures("images")
async def test_image_holds_no_compiler_no_pip_and_no_cache(engine: Engine) -> None:
    found = await engine.docker(
        *("run", "--rm", "--user", "0", "--entrypoint", "sh", IMAGE, "-c"),
        # Each line that is printed is one thing too many.
        "for tool in gcc cc c++ make ld pip pip3 uv; do command -v $tool; done;"
        " find / -xdev -type d -name pip -path '*-packages*';"
        " find /root/.cache /tmp /var/tmp /build /wheels /var/lib/apt/lists"
        " /var/cache/apt/archives -type f ! -name lock 2>/dev/null;"
        " find / -xdev -type f -perm /6000 -path '/opt/*'; true",
    )
    assert found.out == ""


@pytest.mark.usefixtures("images")
async def test_packages_of_the_image_are_the_pinned_ones_and_ours(engine: Engine) -> None:
    text = (ROOT / "services" / "requirements.txt").read_text(encoding="utf-8")
    pinned = {}
    for line in text.splitlines():
        if line and not line.startswith((" ", "#")):
            wanted = Requirement(line.rstrip("\\ "))
            here = {"python_full_version": "3.13.0", "python_version": "3.13"}
            if wanted.marker is None or wanted.marker.evaluate(here):
                pinned[wanted.name] = str(wanted.specifier).removeprefix("==")
    ours = ("tickmind", *(f"tickmind-{name}" for name in ("migrations", "recorder", "embedder")))
    pinned |= dict.fromkeys([*ours, "tickmind-retriever"], version("tickmind"))
    listed = await engine.docker(
        *("run", "--rm", "--entrypoint", "python", IMAGE, "-c"),
        "import importlib.metadata as m, json;"
        "print(json.dumps({d.name.lower().replace('_', '-'): d.version"
        " for d in m.distributions(path=['/opt/tickmind/lib/python3.13/site-packages'])}))",
    )
    assert json.loads(listed.out) == pinned


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("user", ["10001:10001", "12345:0"])
async def test_command_needs_no_user_no_network_and_nothing_to_write_to(
    engine: Engine, user: str
) -> None:
    said = await engine.docker(
        *("run", "--rm", "--read-only", "--cap-drop", "ALL", "--network", "none"),
        *("--user", user, IMAGE, "--version"),
    )
    assert said.out == f"tickmind {version('tickmind')}\n"


async def _started(engine: Engine, *arguments: str) -> str:
    started = await engine.docker("run", "--detach", "--network", "none", *arguments)
    return started.out.strip()


async def _ended(engine: Engine, container: str) -> int:
    """Ask it to end; its exit code. Fails where it had to be killed."""
    begun = time.monotonic()
    await engine.docker("stop", "--time", str(int(_GRACE_S)), container)
    took = time.monotonic() - begun
    code = await engine.docker("inspect", "--format", "{{.State.ExitCode}}", container)
    await engine.docker("rm", "--volumes", container)
    assert took < _GRACE_S
    return int(code.out)


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("service", ["recorder", "embedder", "retriever"])
async def test_service_that_waits_for_its_servers_ends_at_sigterm_with_0(
    engine: Engine, service: str
) -> None:
    """case 46: what Kubernetes injects for Services of these names is not ours, so it starts."""
    injected = [
        part
        for name in ("RABBITMQ", "POSTGRES", "DATABASE", "TICKMIND")
        for part in ("--env", f"{name}_PORT=tcp://10.96.0.7:5672")
    ]
    container = await _started(engine, "--read-only", *injected, IMAGE, service)

    async def says() -> str:
        return (await engine.docker("logs", container)).err

    await eventually(says, lambda log: '"event": "waiting"' in log, what=service)
    assert await _ended(engine, container) == 0


@pytest.mark.usefixtures("images")
async def test_command_ends_at_sigterm_before_it_has_begun(engine: Engine) -> None:
    """As process 1 it would not, by the kernel's default; 143 is what a shell says of SIGTERM."""
    container = await _started(
        engine,
        *("--entrypoint", "python", IMAGE, "-c"),
        # The command as installed, held up where it is about to import everything else.
        "import sys, time\n"
        "class Slow:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'tickmind.cli.errors':\n"
        "            print('importing', flush=True); time.sleep(120)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "sys.argv = ['tickmind', 'migrate']\n"
        "from tickmind.cli import main; sys.exit(main())",
    )

    async def says() -> str:
        return (await engine.docker("logs", container)).out

    await eventually(says, lambda log: "importing" in log, what="the command")
    assert await _ended(engine, container) == 143
