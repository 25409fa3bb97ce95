"""The audit of dependencies: it never takes silence for an all-clear."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tools import audit

_PROJECT = """
[tool.uv]
constraint-dependencies = [
    "numpy==1.0 ; (python_full_version < '3.12')", "numpy==2.0 ; (x >= '3.12')", "Typing_x==3",
]
build-constraint-dependencies = ["typing_x==3", "hatchling==4"]
"""


def _report(*packages: dict[str, Any]) -> str:
    return json.dumps({"dependencies": list(packages), "fixes": []})


def _answering(monkeypatch: pytest.MonkeyPatch, *, out: str, code: int = 0, err: str = "") -> None:
    def run(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], code, out, err)

    monkeypatch.setattr("subprocess.run", run)


def test_every_pin_is_asked_for_once_whatever_it_is_for() -> None:
    assert audit.pins(_PROJECT) == [
        "Typing_x==3",
        "hatchling==4",
        "numpy==1.0",
        "numpy==2.0",
        "typing_x==3",
    ]
    root = (audit.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert len(audit.pins(root)) > 80
    assert all(pin.count("==") == 1 and " " not in pin for pin in audit.pins(root))


def test_known_vulnerabilities_are_told_and_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(audit, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.uv]\nconstraint-dependencies = ["a-b==1"]\nbuild-constraint-dependencies = []\n'
    )
    bad = {"name": "a_b", "version": "1", "vulns": [{"id": "GHSA-1", "fix_versions": ["2"]}]}
    _answering(monkeypatch, out=_report(bad), code=1)
    assert audit.main([]) == audit.FOUND
    assert "a_b 1: GHSA-1, mended in 2" in capsys.readouterr().out
    _answering(monkeypatch, out=_report({"name": "a.b", "version": "1", "vulns": []}))
    assert audit.main([]) == audit.CLEAN


@pytest.mark.parametrize(
    ("out", "why"),
    [
        ("", "ended with 1: no route"),
        ("<html>", "cannot be read"),
        ("{}", "cannot be read"),
        (_report(), "nothing is known of 1 of 1"),
        (_report({"name": "a-b", "version": "2", "vulns": []}), "nothing is known of 1 of 1"),
        (_report({"name": "a-b", "skip_reason": "could not be found"}), "nothing is known of 1"),
    ],
)
def test_what_was_not_answered_is_no_all_clear(
    out: str,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(audit, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.uv]\nconstraint-dependencies = ["a-b==1"]\nbuild-constraint-dependencies = []\n'
    )
    _answering(monkeypatch, out=out, code=1, err="trying\nno route")
    assert audit.main([]) == audit.UNKNOWN
    told = capsys.readouterr().err
    assert told.startswith("NOT AUDITED")
    assert why in told


def test_licences_of_what_is_installed_go_with_ours(capsys: pytest.CaptureFixture[str]) -> None:
    code = audit.main(["--licences"])
    assert code == audit.CLEAN, capsys.readouterr().out
