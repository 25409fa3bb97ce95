"""The images of the tests: official ones, stand-ins where no registry is reached, and our own."""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import version
from pathlib import Path

from tests.containers.commands import missing, run
from tests.containers.engine import Engine
from tests.e2e.documents import ROOT

__all__ = ["EMBEDDING_IMAGE", "IMAGE", "build_images", "provide_base_images"]

IMAGE = f"tickmind:{version('tickmind')}"
EMBEDDING_IMAGE = f"tickmind-embedding:{version('tickmind')}"

#: By image, the folder below stand_ins/ that stands in for it.
_STAND_INS = {
    "python:3.13-slim": "python",
    "pgvector/pgvector:pg17": "postgres",
    "rabbitmq:4-management": "rabbitmq",
}
_FOUNDATION = "tickmind-stand-in:trixie"
_DEBIAN = ("trixie", "http://deb.debian.org/debian")
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

#: A layer of official images comes in seconds; a registry that is not there is told at once.
_PULL_S = 300.0
#: Measured on 2 cores: 26 s for all three stand-ins, 20 s for our image.
_BUILD_S = 600.0


async def provide_base_images(engine: Engine, scratch: Path) -> list[str]:
    """Have the official images, or stand-ins of the same names; which of them are stand-ins."""
    stand_ins = []
    for image, folder in _STAND_INS.items():
        if await _has(engine, image):
            continue
        pulled = await engine.docker("pull", image, timeout_s=_PULL_S, check=False)
        if pulled.code == 0:
            continue
        if not engine.own:  # its owner would take ours for the official one
            missing(f"{image} cannot be pulled: {pulled.err.strip()}")
        await _provide_foundation(engine, scratch)
        context = shutil.copytree(
            ROOT / "tests" / "containers" / "stand_ins" / folder, scratch / folder
        )
        if folder == "python":
            shutil.copy(_CERTIFICATES, context / _CERTIFICATES.name)
        await _build(engine, image, str(context))
        stand_ins.append(image)
    return stand_ins


async def _provide_foundation(engine: Engine, scratch: Path) -> None:
    """Debian itself, from its packages: what official images are built on."""
    if await _has(engine, _FOUNDATION):
        return
    if shutil.which("mmdebstrap") is None:
        missing("no image registry is reached, and stand-ins need mmdebstrap: install it")
    archive = scratch / "debian.tar"
    # Kept in it for what is installed on top: nothing of this has to survive a power cut.
    unsafe = "--dpkgopt=force-unsafe-io"
    await run(
        ["mmdebstrap", "--quiet", "--variant=minbase", unsafe, _DEBIAN[0], archive, _DEBIAN[1]],
        timeout_s=_BUILD_S,
    )
    await engine.docker("import", str(archive), _FOUNDATION)
    archive.unlink()


async def build_images(engine: Engine, scratch: Path) -> None:
    """Build our images as the Dockerfile's head says, with the index that this machine's pip
    uses."""
    configuration = scratch / "pip.conf"
    configuration.write_text(await _pip_configuration(), encoding="utf-8")
    for image, target in ((IMAGE, "tickmind"), (EMBEDDING_IMAGE, "embedding")):
        await _build(
            engine,
            image,
            *("--secret", f"id=pip.conf,src={configuration}"),
            *("--file", str(ROOT / "services" / "Dockerfile"), "--target", target),
            str(ROOT),
        )


async def _pip_configuration() -> str:
    """Where this machine's pip finds packages, as far as a container can reach it."""
    listed = await run([sys.executable, "-m", "pip", "config", "list"], check=False)
    lines = ["[global]"]
    for line in listed.out.splitlines():
        name, _, value = line.partition("=")
        option = name.rpartition(".")[2]
        places = [place for place in value.strip("'").split() if not place.startswith("file:")]
        if option in ("index-url", "extra-index-url", "trusted-host") and places:
            lines.append(f"{option} = {' '.join(places)}")
    return "\n".join([*lines, ""])


async def _build(engine: Engine, image: str, *arguments: str) -> None:
    network = ("--network", "host") if engine.own else ()
    await engine.docker(
        "build", "--quiet", *network, "--tag", image, *arguments, timeout_s=_BUILD_S
    )


async def _has(engine: Engine, image: str) -> bool:
    return (await engine.docker("image", "inspect", image, check=False)).code == 0
