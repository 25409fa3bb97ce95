"""The repository's own commands, as far as they need no network."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def dev(*arguments: str, path: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "dev"), *arguments],
        env={"PATH": str(path)},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A PATH with what every POSIX system has, and neither Python nor uv."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "cat", "dirname", "rm"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    return programs


@pytest.mark.parametrize("arguments", [(), ("help",), ("--help",)])
def test_usage_is_shown_from_anywhere(
    bare_path: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    result = dev(*arguments, path=bare_path, cwd=tmp_path)
    assert result.returncode == 0
    assert result.stdout.startswith("usage: ./dev COMMAND")


@pytest.mark.skipif((ROOT / ".uv").exists(), reason="this checkout has brought its own uv")
def test_missing_python_is_one_sentence(bare_path: Path, tmp_path: Path) -> None:
    (bare_path / "python3").symlink_to("/bin/false")
    result = dev("demo", path=bare_path, cwd=tmp_path)
    assert result.returncode != 0
    assert result.stderr.count("\n") == 1
    assert "Python 3.11 or newer" in result.stderr


@pytest.fixture(scope="module")
def lock() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lock", ROOT / "tools" / "lock.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "project",
    [
        "[tool.uv]\npackage = false\n\n[tool.other]\nkey = 1\n",
        '[tool.uv]\npackage = false\npins = [\n    "a==1",\n]\n\n[tool.other]\nkey = 1\n',
        "[tool.uv]\npins = []\npackage = false\n\n[tool.other]\nkey = 1\n",
    ],
)
def test_pins_are_written_and_the_rest_is_kept(lock: ModuleType, project: str) -> None:
    pins = ["a==2", "b==1 ; (python_full_version < '3.12')"]
    written = tomllib.loads(lock._with_list(project, "pins", pins))
    uv = {"package": False, "pins": pins}
    assert written == {"tool": {"uv": uv, "other": {"key": 1}}}


def test_every_version_is_pinned_where_it_applies(lock: ModuleType) -> None:
    marker = "python_full_version < '3.12'"
    resolved = {
        "package": [
            {"name": "b", "version": "1", "source": {"registry": "r"}},
            {"name": "ours", "version": "1", "source": {"editable": "."}},
            {
                "name": "a",
                "version": "2",
                "source": {"registry": "r"},
                "resolution-markers": [marker],
            },
        ]
    }
    assert lock._pins(resolved) == [f"a==2 ; ({marker})", "b==1"]
