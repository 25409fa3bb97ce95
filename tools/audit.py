"""Ask for known vulnerabilities of everything that may be installed here, and tell its licences:
`./dev audit`.

Looks at the exact versions of `constraint-dependencies` and `build-constraint-dependencies` in
pyproject.toml, by pip-audit in an environment of its own. Ends with 0 only where the service of
vulnerabilities has answered for every package and knows of none; 1: some are known; 2: it could not
be asked, which is no all-clear.

`--licences`: of what is installed here instead; ends with 1 where one is not among those that go
with Apache-2.0, or is not told. `--service NAME`: pypi (the default) or osv.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

#: The auditor; pinned, since it runs with our rights.
AUDITOR = "pip-audit==2.10.1"
#: Some 100 packages, each asked for by itself where the cache is cold.
AUDIT_S = 600

#: Licences that may be linked with, by their SPDX identifiers and by what classifiers call them.
#: Copyleft of files alone (MPL) and of libraries that stay replaceable (LGPL) is among them.
ALLOWED = re.compile(
    r"\b(?:MIT|BSD|0BSD|Apache|ISC|PSF|Python Software Foundation|MPL|Mozilla Public License|CNRI"
    r"|Unlicense|zlib|LGPL|Lesser General Public|PostgreSQL|HPND|CC0|Public Domain)\b",
    re.IGNORECASE,
)

#: Run as programs of their own, and part of nothing that is handed on.
PROGRAMS = frozenset(("codespell",))

CLEAN, FOUND, UNKNOWN = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One known vulnerability of a pinned version."""

    package: str
    version: str
    id: str
    fixed_in: tuple[str, ...]


class Unanswered(Exception):
    """The service of vulnerabilities has not answered for everything."""


def pins(project: str) -> list[str]:
    """Every `name==version` of pyproject.toml, without the environments it is for, each once."""
    table = tomllib.loads(project)["tool"]["uv"]
    listed = [*table["constraint-dependencies"], *table["build-constraint-dependencies"]]
    return sorted({pin.partition(";")[0].strip() for pin in listed})


def read_report(report: str, asked: Sequence[str]) -> list[Finding]:
    """pip-audit's JSON. Raises Unanswered where it does not tell of every pin."""
    try:
        dependencies: list[dict[str, Any]] = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError) as exc:
        msg = "the auditor's report cannot be read"
        raise Unanswered(msg) from exc
    told = {
        _pin(found["name"], found["version"])
        for found in dependencies
        if "version" in found and "skip_reason" not in found
    }
    missing = sorted({_pin(*pin.split("==")) for pin in asked} - told)
    if missing:
        some = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        msg = f"nothing is known of {len(missing)} of {len(asked)} packages ({some})"
        raise Unanswered(msg)
    return [
        Finding(
            package=found["name"],
            version=found["version"],
            id=known["id"],
            fixed_in=tuple(known.get("fix_versions", ())),
        )
        for found in dependencies
        for known in found.get("vulns", ())
    ]


def _pin(name: str, version: str) -> str:
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"


def ask(asked: Sequence[str], service: str) -> list[Finding]:
    """What is known of these pins. Raises Unanswered."""
    findings: list[Finding] = []
    # A package with a version for each of two Pythons cannot stand twice in one list.
    for together in _apart(asked):
        with tempfile.TemporaryDirectory() as scratch:
            wanted = Path(scratch) / "requirements.txt"
            wanted.write_text("\n".join(together) + "\n", encoding="utf-8")
            # uv by the name it gives itself; it need not be on PATH.
            command = [os.environ.get("UV", "uv"), "run", "--quiet", "--no-project", "--isolated"]
            command += ["--with", AUDITOR, "pip-audit", "--requirement", str(wanted)]
            command += ["--no-deps", "--disable-pip", "--progress-spinner", "off"]
            command += ["--format", "json", "--vulnerability-service", service]
            try:
                done = subprocess.run(
                    command,
                    cwd=scratch,
                    capture_output=True,
                    text=True,
                    timeout=AUDIT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired as exc:
                msg = f"no answer within {AUDIT_S} s"
                raise Unanswered(msg) from exc
        # 1 is also what it says where it was not answered: only a report tells.
        if not done.stdout.strip():
            last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            msg = f"the auditor ended with {done.returncode}: {last[:300]}"
            raise Unanswered(msg)
        findings += read_report(done.stdout, together)
    return findings


def _apart(asked: Sequence[str]) -> Iterator[list[str]]:
    left = list(asked)
    while left:
        once: dict[str, str] = {}
        for pin in left:
            once.setdefault(pin.split("==")[0], pin)
        yield list(once.values())
        left = [pin for pin in left if pin not in once.values()]


def licences(distributions: Iterable[metadata.Distribution]) -> dict[str, str]:
    """By package: its licence as its metadata tell, "" where they do not."""
    found = {}
    for distribution in distributions:
        told = distribution.metadata
        name = str(told["Name"])
        if name.startswith("tickmind"):
            continue
        # SPDX first (PEP 639), then what was before it; some put the whole text into a field.
        classified = [
            line.rsplit("::", 1)[-1].strip()
            for line in told.get_all("Classifier") or []
            if line.startswith("License ::")
        ]
        named = [
            one for key in ("License-Expression", "License") for one in told.get_all(key) or []
        ]
        candidates = [*named, ", ".join(classified)]
        said = [str(one).strip().splitlines()[0][:100] for one in candidates if str(one).strip()]
        found[name] = said[0] if said else ""
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev audit", description=__doc__)
    parser.add_argument("--service", choices=("pypi", "osv"), default="pypi")
    parser.add_argument("--licences", action="store_true")
    given = parser.parse_args(arguments)
    if given.licences:
        return _licences()
    asked = pins((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    try:
        findings = ask(asked, given.service)
    except Unanswered as exc:
        print(
            f"NOT AUDITED: the service of vulnerabilities could not be asked: {exc}\n"
            "This is no all-clear. Run ./dev audit where it can be reached, or try --service osv.",
            file=sys.stderr,
        )
        return UNKNOWN
    for finding in findings:
        fixed = ", ".join(finding.fixed_in) or "nothing yet"
        print(f"{finding.package} {finding.version}: {finding.id}, mended in {fixed}")
    print(f"{len(asked)} packages asked for, {len(findings)} known vulnerabilities")
    return FOUND if findings else CLEAN


def _licences() -> int:
    found = licences(metadata.distributions())
    strange = {
        name
        for name, licence in found.items()
        if name not in PROGRAMS and not ALLOWED.search(licence)
    }
    for name, licence in sorted(found.items()):
        print(f"{name}: {licence or 'not told'}{'  <-- look at this' if name in strange else ''}")
    print(f"{len(found)} packages, {len(strange)} to look at")
    return FOUND if strange else CLEAN


if __name__ == "__main__":
    sys.exit(main())
