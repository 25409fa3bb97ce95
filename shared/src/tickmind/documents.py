"""YAML files that people write: read strictly, and told what is wrong by its line."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from tickmind.errors import ConfigurationError
from tickmind.files import read_text

__all__ = ["load", "merge", "read", "validated"]

_Model = TypeVar("_Model", bound=BaseModel)


def merge(base: Any, change: Any) -> Any:
    """A mapping in `change` changes only the keys it names; anything else replaces."""
    if isinstance(base, dict) and isinstance(change, dict):
        return {
            **base,
            **{
                key: merge(base[key], value) if key in base else value
                for key, value in change.items()
            },
        }
    return change


class _Loader(yaml.SafeLoader):
    """YAML whose keys are the words that stand there (7 and no are names here, not a number and
    false), each once, and whose dates are text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        if not isinstance(node, yaml.MappingNode):  # by a tag: !!map [a]
            msg = "no mapping stands here"
            raise yaml.constructor.ConstructorError(None, None, msg, node.start_mark)
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                msg = "a name must be a single word or text"
                raise yaml.constructor.ConstructorError(None, None, msg, key.start_mark)
            if key.value in seen:
                msg = f"{key.value} is there twice"
                raise yaml.constructor.ConstructorError(None, None, msg, key.start_mark)
            seen.add(key.value)
        self.flatten_mapping(node)  # `<<: *anchor`
        return {key.value: self.construct_object(value, deep=deep) for key, value in node.value}


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _line_of(node: yaml.Node | None, path: tuple[int | str, ...]) -> int:
    """1-based line of the deepest part of `path` that the document has."""
    line = node.start_mark.line + 1 if node is not None else 1
    for step in path:
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if k.value == str(step)), None)
            if found is None:
                continue  # a step of the model, not of the file (a union's branch)
            line, node = found[0].start_mark.line + 1, found[1]
        elif (
            isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value)
        ):
            node = node.value[step]
            line = node.start_mark.line + 1
    return line


def load(text: str, source: str) -> tuple[yaml.Node | None, Any]:
    """The document's nodes, for their lines, and what they say. Raises ConfigurationError."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return node, None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else 1
        what = "" if isinstance(exc, yaml.constructor.ConstructorError) else "not YAML: "
        msg = f"{source}, line {line}: {what}{exc.problem}"
        raise ConfigurationError(msg) from exc
    except yaml.reader.ReaderError as exc:
        line = text.count("\n", 0, exc.position) + 1
        msg = f"{source}, line {line}: not YAML: it may not hold U+{exc.character:04X}"
        raise ConfigurationError(msg) from exc
    except RecursionError as exc:
        msg = f"{source}: nested too deeply to be read"
        raise ConfigurationError(msg) from exc
    except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as exc:
        # What looks like a number and is none, such as 0b_, or has a tag that it does not fit,
        # such as !!int "" or !!timestamp soon, for which PyYAML raises what comes.
        msg = f"{source}: not YAML: a value is none of its kind ({type(exc).__name__}: {exc})"
        raise ConfigurationError(msg) from exc


def validated(
    model: type[_Model], raw: dict[str, Any], node: yaml.Node | None, source: str
) -> _Model:
    """The document as this model. Raises ConfigurationError naming the line."""
    try:
        return model.model_validate(raw)
    except ValidationError as exc:
        errors = exc.errors(include_url=False)
        # A misspelt name says more than the name that is missing for it.
        first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
        told = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            told = "there is no such setting"
        where = ".".join(str(step) for step in first["loc"] if not str(step).startswith("<"))
        line = _line_of(node, first["loc"])
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        msg = f"{source}, line {line}: {where}: {told}{more}"
        raise ConfigurationError(msg) from exc


def read(path: Path, what: str) -> str:
    """The text of a file; `what` it is, for who gave its name. Raises ConfigurationError."""
    try:
        return read_text(path)
    except (OSError, ValueError) as exc:
        # Its own words do not repeat the path.
        told = exc.strerror if isinstance(exc, OSError) else exc
        msg = f"cannot read the {what} file {path}: {told}"
        raise ConfigurationError(msg) from exc
