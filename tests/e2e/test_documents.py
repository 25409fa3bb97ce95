"""The documents hang together: links lead somewhere, the layout is whole, the cases are listed."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest
import typer
from typer.core import TyperGroup

from benchmarks import __main__ as benchmarks
from tests.e2e.documents import DOCUMENTS, ROOT, blocks, rows
from tickmind.cli.app import create_app
from tools import cases


def _anchors(text: str) -> set[str]:
    """The anchors GitHub gives the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_of_a_document_lead_somewhere(document: str) -> None:
    path = ROOT / document
    text = path.read_text(encoding="utf-8")
    links = re.findall(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)", text)
    broken = []
    for link in links:
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        target, _, anchor = unquote(link).partition("#")
        file = (path.parent / target) if target else path
        if not file.exists() or (anchor and anchor not in _anchors(file.read_text())):
            broken.append(link)
    assert broken == []


def _modules() -> set[str]:
    """Every module of the packages, by its path from the root; `local/`, `cli/` and the like by
    their folder."""
    found = set()
    for package in (ROOT / "shared/src/tickmind", *ROOT.glob("services/*/src/*")):
        for path in package.glob("*.py"):
            if path.name != "__init__.py":
                found.add(str(path.relative_to(ROOT)))
        for folder in package.iterdir():
            if (folder / "__init__.py").exists():
                found.add(f"{folder.relative_to(ROOT)}/")
    return found


def test_layout_of_the_architecture_names_every_module() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    [layout] = re.findall(r"^## Layout$(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    listed = set()
    for heading, body in re.findall(r"^### `(.+?)`.*?$(.*?)(?=^### |\Z)", layout, re.M | re.S):
        for row in rows(body):
            listed |= {f"{heading}{name}" for name in re.findall(r"`([^`]+)`", row[0])}
    assert {name for name in listed if not (ROOT / name).exists()} == set()
    assert _modules() - listed == set()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_habits_named_in_a_document_exist(document: str) -> None:
    """`./dev WORD` is one of its own words or a command of tickmind."""
    script = (ROOT / "dev").read_text(encoding="utf-8")
    own = set(re.findall(r"^([a-z]+)\)", script, re.MULTILINE)) | {"help"}
    root = typer.main.get_command(create_app())
    assert isinstance(root, TyperGroup)
    text = (ROOT / document).read_text(encoding="utf-8")
    assert set(re.findall(r"\./dev ([a-z]+)", text)) - own - set(root.commands) == set()
    assert set(re.findall(r"\./dev bench ([a-z]+)", text)) <= set(benchmarks.NAMES)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_tells_nobody_to_type_what_is_on_no_path(document: str) -> None:
    """uv may be in .uv/ alone, `tickmind` in its environment alone: `./dev` finds both."""
    typed = "\n".join(blocks("sh", (ROOT / document).read_text(encoding="utf-8")))
    assert "uv run" not in (ROOT / document).read_text(encoding="utf-8")
    assert re.findall(r"^python.*", typed, re.MULTILINE) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_labels_told_in_a_document_are_those_of_the_metrics(document: str) -> None:
    """`{outcome="stored"}` is one of the words that README's table gives that label."""
    told = re.findall(r'\{(\w+)="(\w+)"', (ROOT / document).read_text(encoding="utf-8"))
    known = {
        (label, word)
        for row in rows()
        if row[0].startswith("`tickmind_")
        for label in re.findall(r"`(\w+)`", row[1])
        for word in re.findall(r"`(\w+)`", row[2])
    }
    assert set(told) - known == set()


def test_table_of_cases_is_up_to_date() -> None:
    path = ROOT / "tests" / "README.md"
    text = path.read_text(encoding="utf-8")
    assert cases.with_table(text, cases.find(ROOT / "tests")) == text, (
        "run: ./dev run python tools/cases.py"
    )
