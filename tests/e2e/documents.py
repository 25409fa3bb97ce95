"""The project's documents, and what stands in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["DOCUMENTS", "README", "ROOT", "blocks", "rows"]

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "tests/README.md")


def blocks(language: str, text: str = README) -> list[str]:
    """The fenced code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def rows(text: str = README) -> Iterator[list[str]]:
    """The cells of every table row."""
    for line in text.splitlines():
        if line.startswith("|") and not set(line) <= set("|- "):
            yield [cell.strip() for cell in line.strip("|").split("|")]
