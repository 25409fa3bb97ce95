"""How the play is told to a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from tickmind.cli.output import called, safe, say, table
from tickmind.cli.traffic import answer_table
from tickmind.client import Answer
from tickmind.local.town import Question

__all__ = ["Answered", "introduce", "show_answer", "show_summary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A question, what came back, and how long that took."""

    question: Question
    answer: Answer
    latency_ms: float

    @property
    def found(self) -> bool:
        """Whether what should come to mind is among the memories."""
        return any(self.question.expects in memory["content"] for memory in self.answer.memories)

    def as_json(self) -> dict[str, Any]:
        return {
            "agent": str(self.question.agent),
            "tick": self.question.tick,
            "observation": self.question.observation,
            "recalled": [memory["content"] for memory in self.answer.memories],
            "found": self.found,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """Where a memory comes from: what an agent did, and who heard it."""

    tick: int
    agent: str
    words: str
    heard_by: tuple[str, ...]

    def told(self) -> str:
        to = f" to {', '.join(self.heard_by)}" if self.heard_by else ""
        return f"{self.agent} says{to}: “{self.words}”"


def _origin(ticks: Sequence[Mapping[str, Any]], question: Question) -> _Origin | None:
    """The last time before the question that somebody said what it expects."""
    found = None
    for tick in ticks:
        if tick["tick"] > question.tick:
            break
        for decision in tick["decisions"]:
            words = decision.get("speech") or decision.get("text") or ""
            if question.expects in words:
                found = _Origin(
                    tick=tick["tick"],
                    agent=str(decision["agent"]),
                    words=words,
                    heard_by=tuple(map(str, decision.get("heard_by") or ())),
                )
    return found


def introduce(ticks: Sequence[Mapping[str, Any]], question: Question) -> None:
    """What tickmind does, by one story."""
    origin = _origin(ticks, question)
    say(Text("Long-term memory for the agents of a simulation.", style="bold"), "")
    if origin is not None:
        say(f"  tick {origin.tick:>4}   {safe(origin.told())}")
    say(
        f"  tick {question.tick:>4}   {question.observation}. What comes to mind?",
        "",
        "Starting all of it on this machine: PostgreSQL, RabbitMQ, an embedding model, services.",
    )


def show_answer(answered: Answered, ticks: Sequence[Mapping[str, Any]]) -> None:
    """One question: what is seen, what comes back and why, and what goes into the prompt."""
    question, answer = answered.question, answered.answer
    say("", Rule(Text(f"{question.agent} at tick {question.tick}", style="bold"), align="left"))
    say(Text.assemble(("sees       ", "dim"), (question.observation, "bold")))
    origin = _origin(ticks, question)
    if origin is not None:
        say(Text.assemble(("earlier    ", "dim"), f"tick {origin.tick}: {safe(origin.told())}"))
    if not answer.memories:
        why = answer.detail or answer.reason or "nothing is remembered"
        say(Text.assemble(("recalls    ", "dim"), (safe(why), "red")))
        return
    say(Text(f"recalls    in {answered.latency_ms:.0f} ms", style="dim"))
    say(Padding(answer_table(answer, mark=question.expects), (0, 0, 0, 2), expand=False))
    say(Text("prompt", style="dim"))
    for line in safe(answer.fragment, lines=True).splitlines():
        say(Text(f"  {line}", style="cyan"))


def show_summary(summary: Mapping[str, Any], first: Answered, found: int) -> None:
    """The story's end, and the numbers of the whole play."""
    recalls = summary["recalls"]
    rows = [
        ["decisions published", summary["published"], ""],
        ["not worth remembering", summary["dropped"], "dropped by the policy, and counted"],
        ["rejected", summary["rejected"], ""],
        ["memories stored", summary["stored"], "those of hearers included"],
        ["waiting for a vector", summary["pending"], ""],
        ["parked", summary["parked"], "given up on"],
        ["recalls", recalls, f"{summary['empty']} came back empty"],
        ["right ones", found, f"of {recalls}: hold what should come to mind, marked »"],
        ["median recall, ms", summary["recall_p50_ms"], f"p99 {summary['recall_p99_ms']} ms"],
        ["seconds", summary["seconds"], "from nothing to nothing left behind"],
    ]
    say("", Rule(Text("Summary", style="bold"), align="left"))
    come = [
        memory for memory in first.answer.memories if first.question.expects in memory["content"]
    ]
    for memory in come[:1]:
        say(
            f"{first.question.observation} at tick {first.question.tick}, and remembers tick"
            f" {memory['tick']}: “{safe(memory['content'])}”"
        )
    say(
        table(["", "", ""], [[name, f"{value:g}", about] for name, value, about in rows]),
        f"Next: `{called()} up` keeps a stack running, for an engine of yours;"
        f" `{called()} publish` plays a trace.",
    )
