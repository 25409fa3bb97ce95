"""Memories and questions with labels: what of an agent's memories a question is about.

From TICKMIND_DATA (default ../shared/data): `bank_zh`, `bank_en`, long dialogues of five people
with 34 questions, 21 of which have an English side; `bank_zh_en`, the Chinese questions over the
English dialogues; `town_zh`, a town of 25 whose 184 conversations are asked for by their summary,
of everyone who took part (see `town`). And `demo`, the small town that tickmind ships: 25
situations in three languages, each with the one thing that should come to mind.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tickmind.conversation import Conversations
from tickmind.decoding import decode_tick
from tickmind.errors import ConfigurationError
from tickmind.grading import grade
from tickmind.local.town import load_questions, town_path
from tickmind.memory import Memory
from tickmind.policy import default_policy

__all__ = ["Labelled", "Question", "labelled"]

_TOWN = "smallville-zh"
#: A turn of the dialogues begins with its day: "[2023-04-27]".
_DAY_CHARS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`relevant`: places among the agent's memories. `tick`: when it is asked, of what was told
    until then; None: at the set's own, of all."""

    agent: str
    observation: str
    relevant: frozenset[int]
    tick: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """One set: each agent's memories in order, and questions asked at `tick`, or their own."""

    name: str
    memories: Mapping[str, Sequence[Memory]]
    questions: Sequence[Question]
    tick: int


def labelled() -> list[Labelled]:
    """All sets. Raises ConfigurationError where the data are missing."""
    data = Path(os.environ.get("TICKMIND_DATA", "../shared/data"))
    try:
        bank = json.loads((data / "memorybank" / "memorybank_qrels.json").read_bytes())
        ticks = (data / _TOWN / "tick_ended.jsonl").read_bytes().splitlines()
        summaries = (data / _TOWN / "summary_qrels.jsonl").read_bytes().splitlines()
    except OSError as exc:
        msg = f"cannot read the labelled sets in {data}: set TICKMIND_DATA to their folder"
        raise ConfigurationError(msg) from exc
    return [
        _bank("bank_zh", bank, dialogues="zh", questions="zh"),
        _bank("bank_en", bank, dialogues="en", questions="en"),
        _bank("bank_zh_en", bank, dialogues="en", questions="zh"),
        _town(ticks, [json.loads(line) for line in summaries if line]),
        _demo(),
    ]


def _bank(name: str, bank: Mapping[str, Any], *, dialogues: str, questions: str) -> Labelled:
    """A turn of a dialogue is a memory; what it answers, the turn before on the same day."""
    memories = {}
    for user, turns in bank[dialogues].items():
        before = [None, *turns[:-1]]
        memories[user] = [
            _turn(user, tick, turn, last if last and last[:_DAY_CHARS] == turn[:_DAY_CHARS] else "")
            for tick, (turn, last) in enumerate(zip(turns, before, strict=True))
        ]
    asked = [
        Question(
            agent=query["user" if dialogues == "zh" else "user_en"],
            observation=query[f"q_{questions}"],
            relevant=frozenset(query["rel"]),
        )
        for query in bank["queries"]
        if dialogues == "zh" or query["aligned_en"]
    ]
    last = max(map(len, memories.values()))
    return Labelled(name=name, memories=memories, questions=asked, tick=last)


def _turn(user: str, tick: int, content: str, context: str) -> Memory:
    return Memory(
        world="bank",
        agent=user,
        tick=tick,
        kind="conversation",
        content=content,
        importance=8,
        event_key=tick.to_bytes(16, "big"),
        context=context or None,
        context_use="words",
    )


def _town(ticks: Sequence[bytes], summaries: Sequence[Mapping[str, Any]]) -> Labelled:
    """What the recorder would store."""
    memories = _by_agent(ticks)
    asked = []
    for summary in summaries:
        # An utterance is labelled "speaker：words".
        words = [utterance.partition("：")[2] for utterance in summary["utterances"]]
        for agent in summary["participants"]:
            relevant = frozenset(
                place
                for place, memory in enumerate(memories[agent])
                if any(said in memory.content for said in words)
            )
            asked.append(Question(agent=agent, observation=summary["query"], relevant=relevant))
    return Labelled(name="town_zh", memories=memories, questions=asked, tick=_last(memories))


def _demo() -> Labelled:
    memories = _by_agent(town_path().read_bytes().splitlines())
    asked = [
        Question(
            agent=str(question.agent),
            observation=question.observation,
            relevant=frozenset(
                place
                for place, memory in enumerate(memories[str(question.agent)])
                if question.expects in memory.content and memory.tick <= question.tick
            ),
            tick=question.tick,
        )
        for question in load_questions()
    ]
    return Labelled(name="demo", memories=memories, questions=asked, tick=_last(memories))


def _by_agent(ticks: Sequence[bytes]) -> dict[str, list[Memory]]:
    memories: dict[str, list[Memory]] = {}
    for memory in _graded(ticks):
        memories.setdefault(memory.agent, []).append(memory)
    return memories


def _last(memories: Mapping[str, Sequence[Memory]]) -> int:
    return max(memory.tick for told in memories.values() for memory in told)


def _graded(ticks: Sequence[bytes]) -> Iterator[Memory]:
    policy, conversations = default_policy(), Conversations()
    for line in ticks:
        yield from conversations.answered(grade(decode_tick(line), policy).memories)
