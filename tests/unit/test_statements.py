"""No SQL statement is made of input: each is a constant, or made of constants at import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_SOURCES = sorted(
    path
    for folder in ("shared/src", "services", "migrations/src")
    for path in (_ROOT / folder).rglob("*.py")
    if "versions" not in path.parts
)
#: Methods whose first argument is a statement.
_EXECUTING = frozenset(
    ("execute", "scalar", "scalars", "stream", "exec_driver_sql", "fetch", "fetchval", "fetchrow")
)
#: Where statements are made of names that no parameter can stand for, and why none is input.
_MADE_OF_NAMES = {
    # Seconds that are constants of the package.
    ("migrations/src/tickmind_migrations/__init__.py", "_upgrade"),
    ("migrations/src/tickmind_migrations/timeouts.py", "concurrently"),
    # Roles and tables of RIGHTS; schemas as the server itself quotes them.
    ("migrations/src/tickmind_migrations/rights.py", "grant"),
    # Databases of the local stack, named by it, quoted.
    ("shared/src/tickmind/local/postgres.py", "create_database"),
    ("shared/src/tickmind/local/postgres.py", "drop_database"),
    ("shared/src/tickmind/local/postgres.py", "_execute"),
    # Whoever calls these gives the statement: looked at there.
    ("shared/src/tickmind/driver.py", "numbered"),
    ("shared/src/tickmind/driver.py", "fetch"),
    # Numbers of an index, read as integers from its comment; its name is made of them.
    ("shared/src/tickmind/store/hnsw.py", "build"),
    ("shared/src/tickmind/store/hnsw.py", "drop"),
    ("shared/src/tickmind/store/recall.py", "rank"),
    # Parts of the module's own, and those numbers.
    ("shared/src/tickmind/store/recall.py", "_statement"),
}
#: Functions that make a statement of their first argument; and one of `tickmind.driver` that is
#: given a statement as its second.
_MAKING = frozenset(("text", "numbered"))
_DRIVER, _FETCHING = "tickmind.driver", "fetch"


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _module_names(tree: ast.Module) -> set[str]:
    """Names bound where a module is read: constants and imports."""
    bound: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound |= {
                name.id for t in targets for name in ast.walk(t) if isinstance(name, ast.Name)
            }
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name for alias in node.names}
    return bound


def _called_at_import_alone(tree: ast.Module, name: str) -> bool:
    """Whether a function is only used by the module's own statements."""
    within = {
        id(inner)
        for function in _functions(tree)
        for inner in ast.walk(function)
        if isinstance(inner, ast.Name) and inner.id == name
    }
    used = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    return bool(used) and not any(id(node) in within for node in used)


def _constant(
    node: ast.expr, constants: set[str], function: ast.FunctionDef | ast.AsyncFunctionDef
) -> bool:
    """Whether an expression in a function can only be one of the module's own strings."""
    match node:
        case ast.Constant(value=str()):
            return True
        case ast.Name(id=name):
            values = [
                inner.value
                for inner in ast.walk(function)
                if isinstance(inner, ast.Assign)
                and any(isinstance(t, ast.Name) and t.id == name for t in inner.targets)
            ]
            values += [  # each of a table of statements
                inner.iter
                for inner in ast.walk(function)
                if isinstance(inner, ast.comprehension | ast.For)
                and isinstance(inner.target, ast.Name)
                and inner.target.id == name
            ]
            if values:
                return all(_constant(value, constants, function) for value in values)
            return name in constants
        case ast.IfExp(body=body, orelse=orelse):
            return all(_constant(part, constants, function) for part in (body, orelse))
        case ast.Subscript(value=ast.Name(id=name)):  # a table of statements
            return name in constants
        case ast.Call(func=ast.Name(id=name), args=[inner]) if name in _MAKING:
            return _constant(inner, constants, function)
        case ast.Attribute(value=ast.Name(id=name)):  # another module's constant
            return name in constants
    return False


def _suspect(path: Path) -> Iterator[tuple[str, int, str]]:
    """(function, line, what) of each statement that may be made of something else."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = _module_names(tree)
    of_driver = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == _DRIVER
        for alias in node.names
    }
    making = {"text"} | (_MAKING & of_driver)
    for function in _functions(tree):
        if _called_at_import_alone(tree, function.name):
            continue
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            made = isinstance(node.func, ast.Name) and node.func.id in making
            executed = isinstance(node.func, ast.Attribute) and node.func.attr in _EXECUTING
            fetched = isinstance(node.func, ast.Name) and node.func.id == _FETCHING
            fetched = fetched and _FETCHING in of_driver
            if not (made or executed or fetched):
                continue
            asked = node.args[1 if fetched else 0]
            if not _constant(asked, constants, function):
                yield function.name, node.lineno, ast.unparse(asked)


def _relative(path: Path) -> str:
    return path.relative_to(_ROOT).as_posix()


@pytest.mark.parametrize("path", _SOURCES, ids=_relative)
def test_every_statement_is_a_constant_of_its_module(path: Path) -> None:
    """What is asked for stands in parameters alone, so no name and no text can be SQL."""
    found = [
        (name, line, what)
        for name, line, what in _suspect(path)
        if (_relative(path), name) not in _MADE_OF_NAMES
    ]
    assert not found


def test_what_is_looked_for_would_be_found(tmp_path: Path) -> None:
    """The check itself: each way of making a statement of input."""
    ways = (
        'session.execute(text(f"SELECT {name}"))',
        'session.execute(text("SELECT %s" % name))',
        'session.execute(text("SELECT {}".format(name)))',
        'session.execute(text("SELECT " + name))',
        "session.execute(text(name))",
        "session.scalar(name)",
        'connection.exec_driver_sql("SELECT " + name)',
        "session.execute(text(_SQL.replace('x', name)))",
        "session.execute(made)",
        'fetch(session, numbered("SELECT " + name), {})',
        "fetch(session, made, {})",
    )
    for way in ways:
        source = tmp_path / "module.py"
        source.write_text(
            "from tickmind.driver import fetch, numbered\n"
            f"_SQL = 'SELECT x'\ndef ask(session, connection, name):\n"
            f"    made = text('SELECT ' + name)\n    {way}\n"
        )
        assert {name for name, line, _ in _suspect(source) if line == 5} == {"ask"}, way
    source.write_text(
        "_SQL = text('SELECT x')\n_OTHER = 'SELECT y'\ndef ask(session, name):\n"
        "    chosen = _SQL if name else _OTHER\n"
        "    session.execute(chosen, {'name': name})\n    session.execute(text('SELECT 1'))\n"
    )
    assert list(_suspect(source)) == []


def test_the_modules_of_the_store_are_among_those_looked_at() -> None:
    looked_at = {_relative(path) for path in _SOURCES}
    assert {f"shared/src/tickmind/store/{name}.py" for name in ("recall", "lexical")} <= looked_at
