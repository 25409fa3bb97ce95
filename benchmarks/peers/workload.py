"""What every system is given to remember and asked for, and which answers are the exact ones."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.driving import RESULTS
from tickmind.hashed import hash_embed, hash_embed_many

__all__ = ["Oracle", "Workload", "percentile", "questions", "workload"]

#: A tick of a town of 25.
_A_TICK = 25
#: Everyone talks about the same things: each memory has two thirds of its words from one of so
#: many topics, of so many words each, and the rest from a vocabulary of all.
_TOPICS, _TOPIC_WORDS, _VOCABULARY = 50, 30, 3000
_WORDS_OF_TOPIC, _OTHER_WORDS = 8, 4
#: Two memories this near to each other in cosine count as equally near: what rounding to half
#: precision moves a cosine by, at most.
_TIE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`ticks`: (agent, text) in the order of time, no text twice; `texts`: the same by agent;
    `agents`: by the kind they are of."""

    ticks: Sequence[Sequence[tuple[str, str]]]
    texts: Mapping[str, Sequence[str]]
    agents: Mapping[str, Sequence[str]]

    @property
    def memories(self) -> int:
        return sum(map(len, self.ticks))


def workload(sizes: Mapping[str, tuple[int, int]]) -> Workload:
    """Agents that live side by side, always the same. `sizes`: by kind, how many and of how many
    memories each."""
    source = random.Random(12)
    agents = {kind: [f"{kind}-{n:02}" for n in range(count)] for kind, (count, _) in sizes.items()}
    owners = [name for kind, some in agents.items() for name in some for _ in range(sizes[kind][1])]
    source.shuffle(owners)
    told = [(owner, f"{_sentence(source)} n{n}") for n, owner in enumerate(owners)]
    texts: dict[str, list[str]] = {owner: [] for owner in sorted(set(owners))}
    for owner, text in told:
        texts[owner].append(text)
    ticks = [told[first : first + _A_TICK] for first in range(0, len(told), _A_TICK)]
    return Workload(ticks=ticks, texts=texts, agents=agents)


def questions(agents: Sequence[str], seed: int) -> Iterator[tuple[str, str]]:
    """(agent, observation) without end: of a topic everyone knows, never the same twice."""
    source = random.Random(seed)
    while True:
        yield source.choice(agents), f"{_sentence(source)} q{source.getrandbits(48):x}"


def _sentence(source: random.Random) -> str:
    topic = source.randrange(_TOPICS)
    words = [f"topic{topic}word{n}" for n in source.sample(range(_TOPIC_WORDS), _WORDS_OF_TOPIC)]
    words += [f"word{source.randrange(_VOCABULARY)}" for _ in range(_OTHER_WORDS)]
    return " ".join(words)


class Oracle:
    """Exact nearest neighbours by cosine among an agent's texts."""

    def __init__(self, texts: Mapping[str, Sequence[str]], dimensions: int) -> None:
        self._dimensions = dimensions
        self._places = {
            agent: {text: place for place, text in enumerate(some)} for agent, some in texts.items()
        }
        self._vectors: dict[str, NDArray[np.float32]] = {
            agent: hash_embed_many(list(some), dimensions) for agent, some in texts.items()
        }

    def recall5(self, agent: str, observation: str, answer: Sequence[str]) -> float:
        """The share of the five nearest that the answer holds; as near as the fifth counts."""
        cosines = self._vectors[agent] @ hash_embed(observation, self._dimensions)
        fifth = np.partition(cosines, -RESULTS)[-RESULTS]
        places = self._places[agent]
        near = [text for text in set(answer) if text in places]
        got = sum(float(cosines[places[text]]) >= float(fifth) - _TIE for text in near)
        return got / RESULTS


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all does not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
