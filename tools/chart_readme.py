"""The tables of values in the chart's README, from the comments in its values.yaml.

    ./dev run python tools/chart_readme.py          # writes the tables anew

A value's comment begins with `# -- ` and stands in one line above it. Mappings are walked into
as far as their keys have comments of their own.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

__all__ = ["Value", "find", "with_tables"]

CHART = Path(__file__).resolve().parent.parent / "charts" / "tickmind"

_BEGIN = "<!-- values: written by tools/chart_readme.py -->"
_END = "<!-- end of values -->"
_KEY = re.compile(r"^( *)([A-Za-z][\w.-]*):")
_INDENT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value: its path, what it is when nobody says, and what it means."""

    path: str
    default: Any
    about: str


def find(text: str) -> list[Value]:
    """Every value of values.yaml that has a comment, in its order. Raises ValueError for one
    that has none."""
    defaults = yaml.safe_load(text)
    found = []
    path: list[str] = []
    about: str | None = None
    inside = -1  # how deep the last documented value is: what stands in it needs no comment
    for line in text.splitlines():
        if line.lstrip().startswith("# -- "):
            about = line.lstrip().removeprefix("# -- ")
            continue
        key = _KEY.match(line)
        if key is None:
            continue
        depth = len(key[1]) // _INDENT
        if 0 <= inside < depth:
            continue
        path[depth:] = [key[2]]
        inside = -1
        default = _at(defaults, path)
        if about is not None:
            found.append(Value(path=".".join(path), default=default, about=about))
            inside = depth
        elif not isinstance(default, dict) or not default:
            msg = f"values.yaml: {'.'.join(path)} has no comment (`# -- what it is`)"
            raise ValueError(msg)
        about = None
    return found


def _at(values: Any, path: list[str]) -> Any:
    for key in path:
        values = values[key]
    return values


def _rows(values: list[Value]) -> Iterator[str]:
    section = ""
    for value in values:
        head = value.path.split(".")[0] if "." in value.path else ""
        if head != section:
            section = head
            yield f"| **{head}** | | |" if head else "| | | |"
        default = json.dumps(value.default, ensure_ascii=False)
        about = value.about.replace("|", "\\|")
        yield f"| `{value.path}` | `{default}` | {about} |"


def with_tables(readme: str, values: list[Value]) -> str:
    """The README with its table of values renewed."""
    before, _, rest = readme.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    table = "\n".join(["| value | default | |", "|---|---|---|", *_rows(values)])
    return f"{before}{_BEGIN}\n\n{table}\n\n{_END}{after}"


def main() -> None:
    """Write the README."""
    path = CHART / "README.md"
    try:
        values = find((CHART / "values.yaml").read_text(encoding="utf-8"))
    except ValueError as exc:
        sys.exit(str(exc))
    path.write_text(with_tables(path.read_text(encoding="utf-8"), values), encoding="utf-8")
    print(f"{len(values)} values in {path.relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
