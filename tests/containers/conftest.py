"""One engine, one build of the images and one running compose project for all of these tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.containers.commands import COMPOSE, tool
from tests.containers.compose import PASSWORDS, Compose
from tests.containers.engine import Engine, running_engine
from tests.containers.images import build_images, provide_base_images
from tickmind.local.ports import free_port

_KEPT = os.environ.get("TICKMIND_ENGINE_DIR")

#: A fixture that builds images is part of the test that first asks for it.
_TIMEOUT_S = 900

#: Every character that URLs, shells, YAML or Compose might trip over (case 44).
_ODD = r"~,>?@:/#%&$x \"$${y}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.containers)
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """A directory for what is built from and mounted."""
    path = Path(tempfile.mkdtemp(prefix="tickmind-containers-", dir="/var/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
async def engine(scratch: Path) -> AsyncIterator[Engine]:
    """An engine with the base images. TICKMIND_ENGINE_DIR keeps its data for the next run."""
    async with running_engine(Path(_KEPT) if _KEPT else scratch / "engine") as running:
        await provide_base_images(running, scratch)
        yield running


@pytest.fixture(scope="session")
async def images(engine: Engine, scratch: Path) -> None:
    """Our two images, built from this checkout."""
    await build_images(engine, scratch)


@pytest.fixture(scope="session")
async def compose(engine: Engine, images: None, scratch: Path) -> AsyncIterator[Compose]:
    """The whole of docker-compose.yml, up and healthy; at the end nothing of it is left."""
    directory = scratch / "compose"
    directory.mkdir()
    project = Compose(
        engine,
        [*await tool(COMPOSE), "--project-name", "tickmind-test"],
        directory,
        {
            **{name: f"{number}{_ODD}" for number, name in enumerate(PASSWORDS)},
            "POSTGRES_HOST_PORT": str(free_port()),
            "RABBITMQ_HOST_PORT": str(free_port()),
            "RABBITMQ_MANAGEMENT_HOST_PORT": str(free_port()),
            # Settings of the services that .env hands on: a lease that a test can wait for, and
            # so few texts in a request that every replica has some.
            "TICKMIND_EMBEDDER_LEASE_S": "10",
            "TICKMIND_EMBEDDING_MAX_INPUTS": "10",
        },
    )
    try:
        await project.up()
        yield project
    finally:
        await project("down", "--volumes", "--timeout", "10")
    label = "label=com.docker.compose.project=tickmind-test"
    for kind in (("ps", "--all"), ("network", "ls"), ("volume", "ls")):
        left = await engine.docker(*kind, "--quiet", "--filter", label)
        assert left.out.split() == [], f"docker {' '.join(kind)}"
