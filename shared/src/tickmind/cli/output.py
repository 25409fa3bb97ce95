"""What a command prints: results on stdout, everything else on stderr.

Texts of agents were written by anyone: they are shown, never interpreted.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, TaskID
    from rich.table import Table

__all__ = [
    "Bar",
    "ago",
    "called",
    "confirm",
    "examples",
    "note",
    "out",
    "person_there",
    "print_json",
    "progress",
    "safe",
    "say",
    "table",
]

#: Width of tables for readers other than a terminal, where COLUMNS says nothing.
PIPE_WIDTH = 120

# Control characters could rewrite the screen, and marks of direction the order of what is read.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_CONTROLS_IN_LINES = re.compile(r"(?!\n)" + _CONTROLS.pattern)


def safe(text: str, *, lines: bool = False) -> str:
    """The text with nothing a terminal obeys; `lines`: line breaks are kept."""
    if lines:
        return _CONTROLS_IN_LINES.sub(" ", text)
    return _CONTROLS.sub(" ", text)


def called() -> str:
    """What one types to call this program: in a checkout it is on no PATH but `uv run`'s own."""
    program = Path(sys.argv[0]).absolute()
    checkout = program.parents[2] if len(program.parts) > 3 else program
    return (
        "./dev"
        if program.parent.parent.name == ".venv" and (checkout / "dev").is_file()
        else "tickmind"
    )


def examples(*commands: str, after: str = "") -> str:
    """The end of a help text: what one would type, and what else to know."""
    lines = ["Example:", *(f"$ {command}" for command in commands), *([after] if after else [])]
    return "\n\n".join(line.replace("[", r"\[") for line in lines)  # no markup


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    return console


def out() -> Console:
    """The console of results. Made anew each time, since stdout may be another by now."""
    return _console(stderr=False)


def say(*parts: RenderableType) -> None:
    """Print results for a person. Lines of text are left to the terminal to break."""
    from rich.text import Text

    console = out()
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str | Text))


def note(text: str) -> None:
    """Tell a person something that is no result."""
    print(safe(text, lines=True), file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Print one JSON document on one line of stdout."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(value, ensure_ascii=not unicode, default=_said), flush=True)


def _said(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, wide: str = "") -> Table:
    """Rows under headings, "" for none. Numbers stand right; `wide` takes the room left."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    listed = [list(row) for row in rows]
    shown = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
        header_style="bold",
        show_header=any(columns),
    )
    for place, name in enumerate(columns):
        numbers = all(isinstance(row[place], int | float) for row in listed) and bool(listed)
        shown.add_column(
            name,
            justify="right" if numbers else "left",
            no_wrap=numbers,
            overflow="fold",
            ratio=1 if name == wide else None,
        )
    for row in listed:
        shown.add_row(*(_cell(value) for value in row))
    return shown


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.3f}"
    return safe(str(value))


def ago(moment: datetime) -> str:
    """How long ago, as roughly as a person asks."""
    seconds = max(0, int((datetime.now(moment.tzinfo) - moment).total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"


def person_there() -> bool:
    """Whether a person can answer a question."""
    return sys.stdin is not None and sys.stdin.isatty()


def confirm(question: str) -> bool:
    """Ask on stderr; anything but yes is no."""
    print(f"{safe(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


class Bar:
    """A bar that can be set; nothing happens where there is no terminal to show it."""

    def __init__(self, progress: Progress | None = None, task: TaskID | None = None) -> None:
        self._progress = progress
        self._task = task

    def to(self, done: float, total: float | None = None, *, about: str | None = None) -> None:
        """Set how much is done, of how much, and a word about it."""
        if self._progress is None or self._task is None:
            return
        changed: dict[str, Any] = {"completed": done}
        if total is not None:
            changed["total"] = total
        if about is not None:
            changed["about"] = about
        self._progress.update(self._task, **changed)


@contextmanager
def progress(title: str, *, total: float | None = None) -> Iterator[Bar]:
    """A bar on stderr while the block runs, if that is a terminal; it vanishes at the end."""
    if not sys.stderr.isatty():
        yield Bar()
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    shown = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[about]}", markup=False),
        TimeElapsedColumn(),
        console=_console(stderr=True),
        transient=True,
    )
    with shown:
        yield Bar(shown, shown.add_task(title, total=total, about=""))
