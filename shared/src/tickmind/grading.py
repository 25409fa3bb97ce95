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

__all__ = ["MAX_CONTEXT_CHARS", "Graded", "context_of", "grade"]

#: Of a longer utterance the end is kept: that is what is answered.
MAX_CONTEXT_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """What one tick comes to.

    `kept`: decisions remembered, by action; `dropped`: those that are not, by (action, why); why is
    `policy`, `blank` or `unknown`.
    `hearers_cut`: hearers beyond the policy's `max_hearers`.
    """

    memories: tuple[Memory, ...]
    kept: Counter[str] = field(default_factory=Counter)
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    rejected: tuple[Rejected, ...] = ()
    hearers_cut: int = 0


def _number(value: int | float) -> str:
    # 15.0 is 15; beyond 2^53 a float's digits are no longer those that were meant.
    whole = isinstance(value, float) and value.is_integer() and abs(value) <= 2**53
    return str(int(value) if whole else value)


def _said(text: str | None) -> str | None:
    """The text where it says something: blank is as good as absent."""
    return None if text is None or is_blank(text) else text


def _values(decision: Decision) -> dict[str, str]:
    """What can fill a wording's gaps; `text` falls back to `speech`."""
    values = {"action": decision.action, "agent": decision.agent}
    speech, place = _said(decision.speech), _said(decision.place)
    text = _said(decision.text) or speech
    if speech is not None:
        values["speech"] = speech
    if text is not None:
        values["text"] = text
    if decision.target is not None:
        values["target"] = "(" + ", ".join(map(_number, decision.target)) + ")"
    if place is not None:
        values["place"] = place
    return values


def _hearers(decision: Decision, audience: str, decisions: Sequence[Decision]) -> Iterable[str]:
    """Who hears it, each once, the speaker never, in the order given."""
    heard: Iterable[str]
    if decision.heard_by is not None:
        heard = decision.heard_by
    elif audience == "message":
        heard = (other.agent for other in decisions)
    elif audience == "same_place" and _said(decision.place) is not None:
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
    if known is not None:
        return (None, "policy") if isinstance(known, str) else (known, "")
    if isinstance(policy.other, str):
        return None, "unknown"
    if _said(decision.text) is None and _said(decision.speech) is None:
        return None, "blank" if decision.text or decision.speech else "unknown"
    return policy.other, ""


def _is_mute(decision: Decision) -> bool:
    """Whether words were given, and none of them says anything."""
    given = [words for words in (decision.speech, decision.text) if words is not None]
    return bool(given) and all(map(is_blank, given))


def context_of(kind: str, present: Sequence[str], before: Memory | None) -> str | None:
    """What a memory of this kind answers: the agent's own memory before it, where that is of the
    same kind and its speaker is among those present now."""
    if before is None or before.kind != kind or (before.speaker or before.agent) not in present:
        return None
    return before.content[-MAX_CONTEXT_CHARS:]


def grade(tick: DecodedTick, policy: Policy) -> Graded:
    """Memories of everyone concerned by one tick, in the order of its decisions."""
    rules = policy.of(tick.world)
    memories: list[Memory] = []
    kept: Counter[str] = Counter()
    dropped: Counter[tuple[str, str]] = Counter()
    rejected: list[Rejected] = []
    seen: dict[tuple[str, bytes], int] = {}
    before: dict[str, Memory] = {}  # each agent's latest in this message
    hearers_cut = 0
    for decision in tick.decisions:
        action, why = _action(rules, decision)
        name = decision.action if decision.action in rules.actions else "other"
        if action is None:
            dropped[name, why] += 1
            continue
        values = _values(decision)
        language = _language(rules, decision)
        content = word(action.words(language), values)
        if content is None and _is_mute(decision):
            dropped[name, "blank"] += 1
            continue
        if content is None:
            wanted = " or ".join(
                " with ".join(sorted(template.gaps - {"action", "agent"}))
                for template in action.words(language)
            )
            detail = f"a {decision.action!r} needs {wanted} to be remembered"
            rejected.append(Rejected(reason="invalid", detail=detail, body=alone(tick, decision)))
            continue
        agent = decision.agent
        # A decision's values are plain: no need of model_dump, which takes three times as long.
        decided = canonical(vars(decision))
        ordinal = seen.get((agent, decided), 0)
        seen[agent, decided] = ordinal + 1
        key = event_key(
            tick.world,
            tick.tick,
            agent,
            event_id=decision.event_id,
            decision=decided,
            ordinal=ordinal,
        )
        kept[name] += 1
        importance = decision.importance if decision.importance is not None else action.importance
        is_core = decision.core if decision.core is not None else action.core
        told, hearers = None, []
        if action.heard:
            values["speaker"] = agent
            told = word(action.words(language, heard=True), values)
        if told is not None:
            hearers = list(_hearers(decision, action.audience or rules.audience, tick.decisions))
            hearers_cut += max(0, len(hearers) - rules.max_hearers)
            hearers = hearers[: rules.max_hearers]
        in_context = action.context != "none"
        present = (agent, *hearers) if in_context else ()
        for whose in (agent, *hearers):
            acts = whose == agent
            memory = Memory(
                world=tick.world,
                agent=whose,
                tick=tick.tick,
                kind=action.kind,
                content=content if acts or told is None else told,
                importance=importance,
                event_key=key if acts else hearer_key(key, whose),
                is_core=is_core,
                speaker=None if acts else agent,
                present=present,
                context=context_of(action.kind, present, before.get(whose)) if in_context else None,
                context_use=action.context,
            )
            before[whose] = memory
            memories.append(memory)
    return Graded(
        memories=tuple(memories),
        kept=kept,
        dropped=dropped,
        rejected=tuple(rejected),
        hearers_cut=hearers_cut,
    )
