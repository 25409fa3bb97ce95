"""How much is ranked until enough of it says something else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tests.unit.test_distinct import memory
from tickmind.memory import Scored
from tickmind.messages import RecallEnvelope
from tickmind_retriever.chosen import chosen
from tickmind_retriever.ranking import Terms, WorldRanking


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    agent_id: int


class Asked:
    """Agents with these memories, best first, and what was asked of them."""

    def __init__(self, *remembered: Sequence[Scored]) -> None:
        self.remembered = remembered
        self.asked: list[tuple[list[int], int, bool]] = []

    async def __call__(self, terms: Terms, questions: Sequence[Who], /) -> list[list[Scored]]:
        core_only = terms.filters.core_only
        self.asked.append(([who.agent_id for who in questions], terms.k, core_only))
        return [
            [m for m in self.remembered[who.agent_id] if m.is_core or not core_only][: terms.k]
            for who in questions
        ]


def _terms(**options: object) -> Terms:
    asked = {"world": "w", "tick": 1, "queries": [{}]} | options
    return WorldRanking().terms(RecallEnvelope.model_validate(asked))


def _moves(count: int) -> list[Scored]:
    return [memory(n, "I moved to (3, 4)") for n in range(count)]


async def test_thirty_moves_leave_room_for_four_distinct_ones() -> None:
    others = [memory(100 + n, f"{n} said") for n in range(4)]
    asked = Asked([*_moves(30), *others])
    (found,) = await chosen(asked, _terms(), [Who(agent_id=0)], with_core=())
    assert [m.id for m in found] == [0, 100, 101, 102, 103]
    assert [k for _, k, _ in asked.asked] == [20, 160]


@pytest.mark.parametrize("others", [3, 4])
async def test_is_asked_once_where_that_is_all_there_is(others: int) -> None:
    asked = Asked([*_moves(10), *(memory(100 + n, f"{n} said") for n in range(others))])
    (found,) = await chosen(asked, _terms(), [Who(agent_id=0)], with_core=())
    assert len(found) == others + 1
    assert len(asked.asked) == 1


async def test_only_who_has_too_few_is_asked_again() -> None:
    asked = Asked([memory(n, f"{n} said") for n in range(50)], _moves(50), [])
    asking = [Who(agent_id=n) for n in range(3)]
    found = await chosen(asked, _terms(), asking, with_core=())
    assert [len(memories) for memories in found] == [5, 1, 0]
    assert [who for who, _, _ in asked.asked] == [[0, 1, 2], [1]]


async def test_looking_ends_somewhere() -> None:
    asked = Asked(_moves(10_000))
    (found,) = await chosen(asked, _terms(k=100), [Who(agent_id=0)], with_core=())
    assert len(found) == 1
    assert [k for _, k, _ in asked.asked] == [400, 3200, 4096]


async def test_nothing_more_is_ranked_where_all_count() -> None:
    asked = Asked(_moves(30))
    (found,) = await chosen(asked, _terms(distinct="off"), [Who(agent_id=0)], with_core=())
    assert [m.id for m in found] == [0, 1, 2, 3, 4]
    assert asked.asked == [([0], 5, False)]


async def test_core_is_asked_for_where_there_is_some_and_room_for_it() -> None:
    name = memory(7, "I am Alice", core=True)
    asked = Asked([*(memory(20 + n, f"{n} said") for n in range(40)), name], [memory(1, "fish")])
    asking = [Who(agent_id=0), Who(agent_id=1)]
    found = await chosen(asked, _terms(), asking, with_core={0})
    assert [m.id for m in found[0]] == [7, 20, 21, 22, 23]
    assert asked.asked[0] == ([0], 12, True)
    asked.asked.clear()
    for options in ({"max_core": 0}, {"ranking": "relevance"}):
        (without,) = await chosen(asked, _terms(**options), asking[:1], with_core={0})
        assert without[0].id == 20
    assert not any(core_only for _, _, core_only in asked.asked)
