"""The policy file: which actions are remembered, how important, by whom, in which words."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from tickmind.errors import ConfigurationError
from tickmind.wording import LANGUAGES, Language, Template

__all__ = ["Action", "Policy", "WorldPolicy", "default_policy", "load_policy"]


def _templates(value: Any) -> Any:
    sources = [value] if isinstance(value, str) else value
    if not isinstance(sources, list) or not sources:
        msg = "must be a wording or a list of wordings"
        raise ValueError(msg)
    return tuple(Template.parse(source) for source in sources)


Templates = Annotated[tuple[Template, ...], BeforeValidator(_templates)]
Audience = Literal["same_place", "message", "none"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Action(_Part):
    """How one action is remembered. `heard`: the words of those who hear it, none: nobody does."""

    importance: Annotated[int, Field(strict=True, ge=1, le=10)]
    kind: Annotated[str, Field(min_length=1, max_length=50)] = "observation"
    core: bool = False
    audience: Audience | None = None
    wording: dict[Language, Templates]
    heard: dict[Language, Templates] = {}

    @model_validator(mode="after")
    def _every_language(self) -> Action:
        for name in ("wording", "heard"):
            given = getattr(self, name)
            missing = [language for language in LANGUAGES if language not in given]
            if (given and missing) or (name == "wording" and not given):
                msg = f"{name} lacks {', '.join(missing)}"
                raise ValueError(msg)
        return self

    def words(self, language: Language, *, heard: bool = False) -> tuple[Template, ...]:
        return (self.heard if heard else self.wording)[language]


class WorldPolicy(_Part):
    """The policy of one world, complete."""

    language: Literal["auto", "en", "zh", "ja"] = "auto"
    audience: Audience = "same_place"
    max_hearers: Annotated[int, Field(strict=True, ge=0, le=10_000)] = 50
    actions: dict[str, Action | Literal["drop"]]
    other: Action | Literal["drop"]


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


def _line_of(node: yaml.Node | None, path: tuple[int | str, ...]) -> int:
    """1-based line of the deepest part of `path` that the document has."""
    line = node.start_mark.line + 1 if node is not None else 1
    for step in path:
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if str(k.value) == str(step)), None)
            if found is None:
                continue  # a step of the model, not of the file (a union's branch)
            line, node = found[0].start_mark.line + 1, found[1]
        elif (
            isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value)
        ):
            node = node.value[step]
            line = node.start_mark.line + 1
    return line


def parse_policy(text: str, *, source: str) -> Policy:
    """Policy from YAML. Raises ConfigurationError naming the file, the line and what is wrong."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        raw = yaml.safe_load(text)
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else 1
        msg = f"{source}, line {line}: not YAML: {exc.problem}"
        raise ConfigurationError(msg) from exc
    except yaml.YAMLError as exc:
        msg = f"{source}: not YAML: {exc}"
        raise ConfigurationError(msg) from exc
    if not isinstance(raw, dict):
        msg = f"{source}, line 1: a policy is a mapping with version, defaults and worlds"
        raise ConfigurationError(msg)
    worlds = raw.get("worlds")
    if isinstance(worlds, dict):
        defaults = raw.get("defaults")
        raw = {**raw, "worlds": {str(k): _merge(defaults, v or {}) for k, v in worlds.items()}}
    elif worlds is None:
        raw = {**raw, "worlds": {}}
    try:
        return Policy.model_validate(raw)
    except ValidationError as exc:
        errors = exc.errors(include_url=False)
        # Of a union's branches, the one that got furthest into the value says the most.
        first = max(errors, key=lambda error: len(error["loc"]))
        where = ".".join(str(step) for step in first["loc"] if step not in ("Action", "drop"))
        line = _line_of(node, first["loc"])
        msg = f"{source}, line {line}: {where}: {first['msg']}"
        raise ConfigurationError(msg) from exc


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
