"""How memories are ranked where a request does not say: the ranking file, by world.

    version: 1
    defaults: {half_life_ticks: 500, weights: {relevance: 1, recency: 0.1, importance: 0.2}}
    worlds:
      town-7: {half_life_ticks: 2000, distinct: numbers}

What a world leaves out is as the defaults say, and what those leave out as below.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tickmind import documents
from tickmind.errors import ConfigurationError
from tickmind.memory import Distinct, Weights
from tickmind.messages import RecallEnvelope
from tickmind.store.recall import Filters

__all__ = ["Ranking", "Terms", "WeightsOfWorld", "WorldRanking", "load_ranking", "parse_ranking"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How the questions of one request are ranked; `weights` None: by the raw cosine alone.

    `weights_without_vector`: where the observation has no vector, in either case.
    """

    tick: int
    k: int
    filters: Filters
    weights: Weights | None
    weights_without_vector: Weights
    half_life_ticks: float
    distinct: Distinct
    max_core: int

    def asking(self, *, k: int, core_only: bool) -> Terms:
        """For so many memories, of core ones alone maybe."""
        return replace(self, k=k, filters=replace(self.filters, core_only=core_only))


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


_WEIGHTS = Weights()
_Weight = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]


class WeightsOfWorld(_Part):
    """How much each term of a blended score counts."""

    relevance: _Weight = _WEIGHTS.relevance
    recency: _Weight = _WEIGHTS.recency
    importance: _Weight = _WEIGHTS.importance


class WorldRanking(_Part):
    """How the memories of one world are ranked, complete."""

    half_life_ticks: Annotated[float, Field(ge=1e-3, le=1e15, allow_inf_nan=False)] = 500.0
    weights: WeightsOfWorld = WeightsOfWorld()
    distinct: Distinct = "text"
    #: Of the five that come back by default, two are left to what the agent sees now.
    max_core: Annotated[int, Field(strict=True, ge=0, le=100)] = 3

    def terms(self, options: RecallEnvelope) -> Terms:
        """What a request asks for, and where it does not say, what this world has.

        `ranking: "relevance"` is the exact order of cosines: unasked, nothing is left out of it
        or put before it.
        """
        exact = options.ranking == "relevance"
        asked = options.weights.model_dump(exclude_none=True) if options.weights else {}
        weights = Weights(**(self.weights.model_dump() | asked))
        distinct, max_core = options.distinct, options.max_core
        if distinct is None:
            distinct = "off" if exact else self.distinct
        if max_core is None:
            max_core = 0 if exact else self.max_core
        return Terms(
            tick=options.tick,
            k=options.k,
            filters=_filters(options),
            weights=None if exact else weights,
            weights_without_vector=weights,
            half_life_ticks=self.half_life_ticks,
            distinct=distinct,
            max_core=max_core,
        )


def _filters(options: RecallEnvelope) -> Filters:
    """Of the bounds on what is newest, the earliest counts."""
    last = [options.as_of_tick, options.to_tick]
    if options.exclude_last_ticks:
        last.append(options.tick - options.exclude_last_ticks)
    return Filters(
        as_of_tick=min((tick for tick in last if tick is not None), default=None),
        from_tick=options.from_tick,
        kinds=tuple(options.kinds) if options.kinds is not None else None,
        min_importance=options.min_importance,
    )


class Ranking(_Part):
    """Defaults, and the worlds that differ."""

    version: Literal[1] = 1
    defaults: WorldRanking = WorldRanking()
    worlds: dict[str, WorldRanking] = {}

    def of(self, world: str) -> WorldRanking:
        return self.worlds.get(world, self.defaults)


def parse_ranking(text: str, *, source: str, half_life_ticks: float | None = None) -> Ranking:
    """The ranking from YAML. `half_life_ticks`: of the defaults, where the file has none.

    Raises ConfigurationError naming the file, the line and what is wrong.
    """
    node, raw = documents.load(text, source)
    if not isinstance(raw, dict) or "version" not in raw:
        msg = f"{source}, line 1: a ranking is a mapping with version, defaults and worlds"
        raise ConfigurationError(msg)
    defaults: Any = raw.get("defaults") or {}
    if isinstance(defaults, dict) and half_life_ticks is not None:
        defaults = {"half_life_ticks": half_life_ticks, **defaults}
    raw = {**raw, "defaults": defaults}
    worlds = raw.pop("worlds", None)
    # First without the worlds: what is wrong with the defaults would be wrong with each of them.
    ranking = documents.validated(Ranking, raw, node, source)
    if worlds is None:
        return ranking
    if isinstance(worlds, dict):
        worlds = {
            name: documents.merge(defaults, {} if changes is None else changes)
            for name, changes in worlds.items()
        }
    return documents.validated(Ranking, {**raw, "worlds": worlds}, node, source)


def load_ranking(path: Path | None, *, half_life_ticks: float) -> Ranking:
    """The ranking file; without one, the defaults. Raises ConfigurationError."""
    if path is None:
        return Ranking(defaults=WorldRanking(half_life_ticks=half_life_ticks))
    text = documents.read(path, "ranking")
    return parse_ranking(text, source=str(path), half_life_ticks=half_life_ticks)
