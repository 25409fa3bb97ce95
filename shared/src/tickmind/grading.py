"""From decisions to memories: what is worth remembering, how important, by whom, in which words.

Rules only: grading by a language model would cost a call, money and rate limit per decision.
Pure: the same message and policy give the same memories.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tickmind.clean import is_blank
from tickmind.decoding import DecodedTick, Rejected, alone
from tickmind.identity import canonical, event_key, hearer_key
from tickmind.memory import Memory
from tickmind.messages import Decision
from tickmind.policy import Action, Policy, WorldPolicy
from tickmind.wording import Language, language_of, word

__all__ = ["Graded", "grade"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """What one tick comes to.

    `dropped`: decisions not remembered, by (action, why); why is `policy`, `blank` or `unknown`.
    `hearers_cut`: hearers beyond the policy's `max_hearers`.
    """

    memories: tuple[Memory, ...]
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    rejected: tuple[Rejected, ...] = ()
    hearers_cut: int = 0


def _number(value: int | float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _values(decision: Decision) -> dict[str, str]:
    """What can fill a wording's gaps; `text` falls back to `speech`."""
    values = {"action": decision.action, "agent": decision.agent}
    if decision.speech is not None:
        values["speech"] = decision.speech
    text = decision.text if decision.text is not None else decision.speech
    if text is not None:
        values["text"] = text
    if decision.target is not None:
        values["target"] = "(" + ", ".join(map(_number, decision.target)) + ")"
    if decision.place:
        values["place"] = decision.place
    return values


def _hearers(decision: Decision, audience: str, decisions: Sequence[Decision]) -> Iterable[str]:
    """Who hears it, each once, the speaker never, in the order given."""
    heard: Iterable[str]
    if decision.heard_by is not None:
        heard = decision.heard_by
    elif audience == "message":
        heard = (other.agent for other in decisions)
    elif audience == "same_place" and decision.place:
        heard = (other.agent for other in decisions if other.place == decision.place)
    else:
        heard = ()
    return [agent for agent in dict.fromkeys(heard) if agent != decision.agent]


def _language(policy: WorldPolicy, decision: Decision) -> Language:
    if policy.language != "auto":
        return policy.language
    return language_of(decision.speech, decision.text, decision.place, decision.agent)


def _action(policy: WorldPolicy, decision: Decision) -> tuple[Action | None, str]:
    """The rule for a decision, or None and why it is dropped."""
    known = policy.actions.get(decision.action)
    if known == "drop":
        return None, "policy"
    if known is not None:
        words = decision.speech if decision.speech is not None else decision.text
        if words is not None and is_blank(words):
            return None, "blank"
        return known, ""
    if policy.other == "drop" or not (decision.text or decision.speech):
        return None, "unknown"
    if is_blank(decision.text or decision.speech or ""):
        return None, "blank"
    return policy.other, ""


def grade(tick: DecodedTick, policy: Policy) -> Graded:
    """Memories of everyone concerned by one tick, in the order of its decisions."""
    rules = policy.of(tick.world)
    memories: list[Memory] = []
    dropped: Counter[tuple[str, str]] = Counter()
    rejected: list[Rejected] = []
    seen: Counter[tuple[str, bytes]] = Counter()
    hearers_cut = 0
    for decision in tick.decisions:
        action, why = _action(rules, decision)
        if action is None:
            name = decision.action if decision.action in rules.actions else "other"
            dropped[name, why] += 1
            continue
        values = _values(decision)
        language = _language(rules, decision)
        content = word(action.words(language), values)
        if content is None:
            wanted = " or ".join(
                " with ".join(sorted(template.gaps - {"action", "agent"}))
                for template in action.words(language)
            )
            detail = f"a {decision.action!r} needs {wanted} to be remembered"
            rejected.append(Rejected(reason="invalid", detail=detail, body=alone(tick, decision)))
            continue
        decided = canonical(decision.model_dump(exclude_none=True))
        ordinal = seen[decision.agent, decided]
        seen[decision.agent, decided] += 1
        key = event_key(
            tick.world,
            tick.tick,
            decision.agent,
            event_id=decision.event_id,
            decision=decided,
            ordinal=ordinal,
        )
        importance = decision.importance if decision.importance is not None else action.importance
        is_core = decision.core if decision.core is not None else action.core
        memories.append(
            Memory(
                world=tick.world,
                agent=decision.agent,
                tick=tick.tick,
                kind=action.kind,
                content=content,
                importance=importance,
                event_key=key,
                is_core=is_core,
            )
        )
        if not action.heard:
            continue
        values["speaker"] = decision.agent
        told = word(action.words(language, heard=True), values)
        if told is None:
            continue
        hearers = list(_hearers(decision, action.audience or rules.audience, tick.decisions))
        hearers_cut += max(0, len(hearers) - rules.max_hearers)
        memories.extend(
            Memory(
                world=tick.world,
                agent=hearer,
                tick=tick.tick,
                kind=action.kind,
                content=told,
                importance=importance,
                event_key=hearer_key(key, hearer),
                is_core=is_core,
                speaker=decision.agent,
            )
            for hearer in hearers[: rules.max_hearers]
        )
    return Graded(
        memories=tuple(memories),
        dropped=dropped,
        rejected=tuple(rejected),
        hearers_cut=hearers_cut,
    )
