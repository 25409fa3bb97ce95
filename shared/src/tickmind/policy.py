"""The policy file: which actions are remembered, how important, by whom, in which words."""

from __future__ import annotations

from collections.abc import Hashable
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
)

from tickmind.errors import ConfigurationError
from tickmind.memory import ContextUse
from tickmind.wording import LANGUAGES, Language, Template

__all__ = ["Action", "Policy", "WorldPolicy", "default_policy", "load_policy", "parse_policy"]


def _templates(value: Any) -> Any:
    sources = [value] if isinstance(value, str) else value
    if (
        not isinstance(sources, list)
        or not sources
        or not all(isinstance(source, str) for source in sources)
    ):
        msg = "must be a wording or a list of wordings"
        raise ValueError(msg)
    return tuple(Template.parse(source) for source in sources)


Templates = Annotated[tuple[Template, ...], BeforeValidator(_templates)]


def _every_language(wordings: dict[Language, Any]) -> dict[Language, Any]:
    missing = [language for language in LANGUAGES if language not in wordings]
    if wordings and missing:
        msg = f"lacks {', '.join(missing)}"
        raise ValueError(msg)
    return wordings


def _not_empty(wordings: dict[Language, Any]) -> dict[Language, Any]:
    if not wordings:
        msg = f"needs a wording for each of {', '.join(LANGUAGES)}"
        raise ValueError(msg)
    return wordings


def _without_speaker(wordings: dict[Language, tuple[Template, ...]]) -> dict[Language, Any]:
    if any("speaker" in template.gaps for words in wordings.values() for template in words):
        msg = "{speaker} is known to hearers only: {agent} is the one who acts"
        raise ValueError(msg)
    return dict(wordings)


Wordings = Annotated[dict[Language, Templates], AfterValidator(_every_language)]
Audience = Literal["same_place", "message", "none"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Action(_Part):
    """How one action is remembered. `heard`: the words of those who hear it, none: nobody does.
    `context`: what the memory of the same kind before it is kept for."""

    importance: Annotated[int, Field(strict=True, ge=1, le=10)]
    kind: Annotated[str, Field(min_length=1, max_length=50)] = "observation"
    core: bool = False
    audience: Audience | None = None
    context: ContextUse = "none"
    wording: Annotated[Wordings, AfterValidator(_not_empty), AfterValidator(_without_speaker)]
    heard: Wordings = {}

    def words(self, language: Language, *, heard: bool = False) -> tuple[Template, ...]:
        return (self.heard if heard else self.wording)[language]


def _branch(value: Any) -> str:
    return "<drop>" if isinstance(value, str) else "<action>"


#: What the policy says of one action. Told apart by their type, so that an error speaks of the
#: one that was meant.
Rule = Annotated[
    Annotated[Action, Tag("<action>")] | Annotated[Literal["drop"], Tag("<drop>")],
    Discriminator(_branch),
]


class WorldPolicy(_Part):
    """The policy of one world, complete."""

    language: Literal["auto", "en", "zh", "ja"] = "auto"
    audience: Audience = "same_place"
    max_hearers: Annotated[int, Field(strict=True, ge=0, le=10_000)] = 50
    actions: dict[str, Rule]
    other: Rule


class Policy(_Part):
    """Defaults, and the worlds that differ."""

    version: Literal[1]
    defaults: WorldPolicy
    worlds: dict[str, WorldPolicy] = {}

    def of(self, world: str) -> WorldPolicy:
        return self.worlds.get(world, self.defaults)


def _merge(base: Any, change: Any) -> Any:
    """A mapping in `change` changes only the keys it names; anything else replaces."""
    if isinstance(base, dict) and isinstance(change, dict):
        return {
            **base,
            **{
                key: _merge(base[key], value) if key in base else value
                for key, value in change.items()
            },
        }
    return change


class _Loader(yaml.SafeLoader):
    """YAML whose keys are the words that stand there (7 and no are names here, not a number and
    false), each once, and whose dates are text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
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


def _load(text: str, source: str) -> tuple[yaml.Node | None, Any]:
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
        msg = f"{source}: nested too deeply to be a policy"
        raise ConfigurationError(msg) from exc
    except ValueError as exc:  # what looks like a number and is none, such as 0b_
        msg = f"{source}: not YAML: {exc}"
        raise ConfigurationError(msg) from exc


def _validated(raw: dict[str, Any], node: yaml.Node | None, source: str) -> Policy:
    try:
        return Policy.model_validate(raw)
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


def parse_policy(text: str, *, source: str) -> Policy:
    """Policy from YAML. Raises ConfigurationError naming the file, the line and what is wrong."""
    node, raw = _load(text, source)
    if not isinstance(raw, dict):
        msg = f"{source}, line 1: a policy is a mapping with version, defaults and worlds"
        raise ConfigurationError(msg)
    worlds = raw.pop("worlds", None)
    # First without the worlds: what is wrong with the defaults would be wrong with each of them.
    policy = _validated(raw, node, source)
    if worlds is None:
        return policy
    if isinstance(worlds, dict):
        defaults = raw["defaults"]
        worlds = {
            name: _merge(defaults, {} if changes is None else changes)
            for name, changes in worlds.items()
        }
    return _validated({**raw, "worlds": worlds}, node, source)


def load_policy(path: Path) -> Policy:
    """Policy from a file. Raises ConfigurationError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        msg = f"cannot read the policy file {path}: {exc}"
        raise ConfigurationError(msg) from exc
    return parse_policy(text, source=str(path))


def default_policy() -> Policy:
    """The policy that ships with tickmind."""
    text = (files("tickmind") / "policy.yaml").read_text(encoding="utf-8")
    return parse_policy(text, source="policy.yaml")
