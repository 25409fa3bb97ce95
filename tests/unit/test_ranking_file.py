"""The ranking file: a request wins over its world, the world over the defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tickmind.errors import ConfigurationError
from tickmind.memory import Weights
from tickmind.messages import RecallEnvelope
from tickmind.store.recall import Filters
from tickmind_retriever.ranking import Ranking, Terms, WorldRanking, load_ranking, parse_ranking

_FILE = """\
version: 1
defaults:
  weights: {recency: 0.5}
  max_core: 2
worlds:
  town-7:
    half_life_ticks: 2000
    weights: {importance: 0}
    distinct: numbers
  7:
"""


def _terms(world: WorldRanking, **options: Any) -> Terms:
    asked = {"world": "w", "tick": 100, "queries": [{}]} | options
    return world.terms(RecallEnvelope.model_validate(asked))


def test_world_changes_only_what_it_names() -> None:
    ranking = parse_ranking(_FILE, source="it", half_life_ticks=300)
    town, other = ranking.of("town-7"), ranking.of("elsewhere")
    assert (town.half_life_ticks, other.half_life_ticks) == (2000, 300)
    assert town.weights.model_dump() == {"relevance": 1, "recency": 0.5, "importance": 0}
    assert other.weights.model_dump() == {"relevance": 1, "recency": 0.5, "importance": 0.2}
    assert (town.distinct, other.distinct, town.max_core) == ("numbers", "text", 2)
    assert ranking.of("7") == other


def test_request_wins_over_its_world() -> None:
    town = parse_ranking(_FILE, source="it").of("town-7")
    terms = _terms(town, weights={"recency": 2}, distinct="off", max_core=9)
    assert terms.weights == Weights(relevance=1, recency=2, importance=0)
    assert (terms.distinct, terms.max_core, terms.half_life_ticks) == ("off", 9, 2000)


def test_relevance_alone_stays_in_exact_order_unless_asked() -> None:
    terms = _terms(WorldRanking(), ranking="relevance")
    assert (terms.weights, terms.distinct, terms.max_core) == (None, "off", 0)
    assert terms.weights_without_vector == Weights()
    terms = _terms(WorldRanking(), ranking="relevance", distinct="text", max_core=1)
    assert (terms.distinct, terms.max_core) == ("text", 1)


@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        ({}, None, None),
        ({"as_of_tick": 50}, None, 50),
        ({"to_tick": 60, "as_of_tick": 50}, None, 50),
        ({"to_tick": 40, "as_of_tick": 50}, None, 40),
        ({"from_tick": 0, "to_tick": 0}, 0, 0),
        ({"exclude_last_ticks": 0}, None, None),
        ({"exclude_last_ticks": 1}, None, 99),
        ({"exclude_last_ticks": 30, "to_tick": 80}, None, 70),
        ({"exclude_last_ticks": 101}, None, -1),
        ({"exclude_last_ticks": 2**63 - 1, "tick": 0}, None, 1 - 2**63),
    ],
)
def test_bounds_on_ticks_are_one_range(
    options: dict[str, Any], first: int | None, last: int | None
) -> None:
    assert _terms(WorldRanking(), **options).filters == Filters(from_tick=first, as_of_tick=last)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("version: 1", "version: 2", "line 1: version"),
        ("version: 1\n", "", "line 1: a ranking is a mapping"),
        ("recency: 0.5", "recency: -1", "line 3: defaults.weights.recency"),
        ("recency: 0.5", "recency: .nan", "line 3: defaults.weights.recency"),
        ("recency: 0.5", "recent: 1", "line 3: defaults.weights.recent: there is no such setting"),
        ("half_life_ticks: 2000", "half_life_ticks: 0", "line 7: worlds.town-7.half_life_ticks"),
        ("distinct: numbers", "distinct: maybe", "line 9: worlds.town-7.distinct"),
        ("max_core: 2", "max_core: many", "line 4: defaults.max_core"),
        ("  7:", "  7: [", "not YAML"),
        ("  7:", "  town-7:", "line 10: town-7 is there twice"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(old: str, new: str, told: str) -> None:
    assert old in _FILE
    with pytest.raises(ConfigurationError) as caught:
        parse_ranking(_FILE.replace(old, new), source="it")
    assert "it, line" in str(caught.value)
    assert told in str(caught.value)


def test_file_that_is_not_there_is_told_and_none_is_the_defaults(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot read the ranking file"):
        load_ranking(tmp_path / "none.yaml", half_life_ticks=500)
    assert load_ranking(None, half_life_ticks=500) == Ranking()
    path = tmp_path / "ranking.yaml"
    path.write_text(_FILE)
    assert load_ranking(path, half_life_ticks=9).of("x").half_life_ticks == 9
