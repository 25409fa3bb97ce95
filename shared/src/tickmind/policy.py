"""The policy file: which actions are remembered, how important, by whom, in which words."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
)

from tickmind import documents
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


def parse_policy(text: str, *, source: str) -> Policy:
    """Policy from YAML. Raises ConfigurationError naming the file, the line and what is wrong."""
    node, raw = documents.load(text, source)
    if not isinstance(raw, dict):
        msg = f"{source}, line 1: a policy is a mapping with version, defaults and worlds"
        raise ConfigurationError(msg)
    worlds = raw.pop("worlds", None)
    # First without the worlds: what is wrong with the defaults would be wrong with each of them.
    policy = documents.validated(Policy, raw, node, source)
    if worlds is None:
        return policy
    if isinstance(worlds, dict):
        defaults = raw["defaults"]
        worlds = {
            name: documents.merge(defaults, {} if changes is None else changes)
            for name, changes in worlds.items()
        }
    return documents.validated(Policy, {**raw, "worlds": worlds}, node, source)


def load_policy(path: Path) -> Policy:
    """Policy from a file. Raises ConfigurationError."""
    return parse_policy(documents.read(path, "policy"), source=str(path))


def default_policy() -> Policy:
    """The policy that ships with tickmind."""
    text = (files("tickmind") / "policy.yaml").read_text(encoding="utf-8")
    return parse_policy(text, source="policy.yaml")
