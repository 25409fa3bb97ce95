"""Harbour Town: the small town that tickmind ships, one day of it, and what to ask about it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Literal

__all__ = ["Question", "load_questions", "load_ticks", "town_path"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A situation in which one memory of an agent matters.

    `agent`: as the engine sends it, text or integer. `tick`: when it is asked; what is expected
    was told before. `observation`: what the agent sees, in its own `language`. `expects`: a part
    of the one text that should come back. `why`: the story behind it, in English.
    """

    agent: str | int
    tick: int
    language: Literal["en", "zh", "ja"]
    observation: str
    expects: str
    why: str


def town_path() -> Path:
    """The file of ticks: JSON lines, one `tick.ended` message each, ticks ascending."""
    # An installed package is a folder, so the path outlives the context.
    with as_file(files(__name__) / "ticks.jsonl") as path:
        return path


def load_ticks() -> Iterator[dict[str, Any]]:
    """The town's `tick.ended` messages, in their order."""
    with town_path().open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def load_questions() -> list[Question]:
    """What to ask, in the order of the file."""
    text = (files(__name__) / "questions.json").read_text(encoding="utf-8")
    return [Question(**question) for question in json.loads(text)]
