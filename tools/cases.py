"""Which test proves which case from the field: the table of tests/README.md, from docstrings.

    ./dev run python tools/cases.py          # writes the table anew

A test says "case 20: what it shows" (or "cases 1 and 25: …") in its docstring, and may say so of
several cases in several sentences.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Proof", "find", "with_table"]

#: "case 8", "cases 8 and 24", "cases 1, 2, 4–6", "(case 30)"; a docstring may break its lines.
_CASES = re.compile(r"\bcases?\s+(\d+(?:(?:\s*[,;–-]\s*|\s+(?:and|to)\s+|,\s+and\s+)\d+)*)", re.I)
_SPAN = re.compile(r"(\d+)(?:\s*[–-]\s*|\s+to\s+)(\d+)")

_BEGIN = "<!-- cases: written by tools/cases.py -->"
_END = "<!-- end of cases -->"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Proof:
    """One test that proves one case."""

    case: int
    path: str
    test: str


def _numbers(docstring: str) -> set[int]:
    """Every case a docstring names."""
    found: set[int] = set()
    for match in _CASES.finditer(docstring):
        named = match[1]
        for first, last in _SPAN.findall(named):
            found |= set(range(int(first), int(last) + 1))
        found |= {int(number) for number in re.findall(r"\d+", named)}
    return found


def _tests(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Tests and their docstrings, those of classes with the class's name."""
    scopes: list[tuple[str, list[ast.stmt]]] = [("", tree.body)]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            scopes.append((f"{node.name}.", node.body))
    for prefix, body in scopes:
        for node in body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if node.name.startswith("test"):
                yield prefix + node.name, ast.get_docstring(node) or ""


def find(tests: Path) -> list[Proof]:
    """All proofs below a folder, by case, then path, then place in the file."""
    proofs = []
    for path in sorted(tests.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for name, docstring in _tests(tree):
            where = path.relative_to(tests).as_posix()
            proofs += [Proof(case=case, path=where, test=name) for case in _numbers(docstring)]
    return sorted(proofs, key=lambda proof: (proof.case, proof.path))


def with_table(text: str, proofs: list[Proof]) -> str:
    """The document with its table written anew. Raises ValueError where it has no place for it."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        msg = f"the document lacks {_BEGIN!r} and {_END!r}"
        raise ValueError(msg)
    lines = ["| case | tests |", "|---|---|"]
    for case in sorted({proof.case for proof in proofs}):
        named = [proof for proof in proofs if proof.case == case]
        cells = [f"[{proof.test}]({proof.path})" for proof in named]
        lines.append(f"| {case} | {'<br>'.join(cells)} |")
    table = "\n".join(lines)
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"


def main() -> None:
    tests = Path(__file__).parents[1] / "tests"
    readme = tests / "README.md"
    proofs = find(tests)
    readme.write_text(
        with_table(readme.read_text(encoding="utf-8"), proofs), encoding="utf-8", newline="\n"
    )
    print(f"{len({proof.case for proof in proofs})} cases, {len(proofs)} tests: {readme}")


if __name__ == "__main__":
    main()
