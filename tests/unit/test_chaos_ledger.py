"""The ledger of the chaos suite finds what it is there for: each fault alone breaks it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.figures import Figures, as_json, table, total
from tests.chaos.ledger import TOLERANCE_S, Found, Ledger, Recall, Stored, Verdict
from tests.chaos.replay import Trace, replay
from tests.running import SOUND
from tickmind import Answer
from tickmind.policy import default_policy

_DECISIONS = (
    {"agent": "bob", "action": "talk", "speech": "We sell fish (river 0)", "heard_by": ["alice"]},
    {"agent": "alice", "action": "move", "target": [1, 2]},
    {"agent": "carol", "action": "stay"},
)
_HEARD = "bob told me: We sell fish (river 0)"


def _ledger() -> Ledger:
    """A world in which bob told alice something, who moved; and its twin, with other words."""
    ledger = Ledger(policy=default_policy())
    ledger.publishing("river", 7, _DECISIONS)
    ledger.publishing("hill", 7, [_DECISIONS[0] | {"speech": "We sell fish (hill 0)"}])
    for world in ("river", "hill"):
        ledger.confirm(world, 7, 3)
    return ledger


def _stored(ledger: Ledger) -> list[Stored]:
    return [Stored(id=id_, memory=memory) for id_, memory in enumerate(ledger.expected.elements())]


def _row(rows: Sequence[Stored], world: str, content: str) -> Stored:
    return next(row for row in rows if (row.memory.world, row.memory.content) == (world, content))


def _recall(*memories: Stored, **other: Any) -> Recall:
    """Alice of the river asks, and is told these."""
    told = [
        {"id": row.id, "tick": row.memory.tick, "content": row.memory.content} for row in memories
    ]
    fragment = "\n".join(row.memory.content for row in memories)
    given: dict[str, Any] = {
        "world": "river",
        "agents": ("alice",),
        "answers": (
            Answer(
                agent="alice",
                status="ok" if told else "empty",
                fragment=fragment,
                memories=tuple(told),
            ),
        ),
        "began_s": 0.0,
        "took_s": 0.1,
        "deadline_s": 0.8,
        "foreign_words": ("hill",),
    }
    return Recall(**(given | other))


def _found(rows: Sequence[Stored], **other: int) -> Found:
    return Found(stored=rows, audit=SOUND, **other)


def _kinds(verdict: Verdict) -> dict[str, int]:
    """Which lists hold faults, and how many."""
    lists = ("lost", "duplicated", "invented", "foreign", "late", "unfinished")
    return {name: len(faults) for name in lists if (faults := getattr(verdict, name))}


def test_sound_where_everything_is_once_and_ones_own() -> None:
    ledger = _ledger()
    rows = _stored(ledger)
    ledger.recalls.append(_recall(_row(rows, "river", _HEARD)))

    verdict = ledger.verdict(_found(rows))

    assert verdict.sound
    assert len(rows) == 5  # said and heard in two worlds, and a move
    assert ledger.events == 4


def test_a_memory_that_is_not_there_is_lost() -> None:
    ledger = _ledger()
    rows = _stored(ledger)
    gone = _row(rows, "river", _HEARD)

    verdict = ledger.verdict(_found([row for row in rows if row is not gone]))

    assert _kinds(verdict) == {"lost": 1}
    assert verdict.lost == [gone.memory]
    assert not verdict.sound
    assert _HEARD in str(verdict)


def test_a_memory_under_another_key_is_a_second_one() -> None:
    ledger = _ledger()
    rows = _stored(ledger)

    verdict = ledger.verdict(_found([*rows, replace(rows[0], id=99)]))

    assert _kinds(verdict) == {"duplicated": 1}


def test_identical_decisions_of_one_message_are_two_memories() -> None:
    ledger = Ledger(policy=default_policy())
    ledger.publishing("river", 7, [_DECISIONS[1], _DECISIONS[1]])
    rows = _stored(ledger)

    assert ledger.verdict(_found(rows)).sound
    assert _kinds(ledger.verdict(_found(rows[:1]))) == {"lost": 1}
    assert _kinds(ledger.verdict(_found([*rows, replace(rows[0], id=9)]))) == {"duplicated": 1}


@pytest.mark.parametrize(
    "change",
    [{"agent": "carol"}, {"world": "hill"}, {"tick": 8}, {"importance": 1}, {"content": "else"}],
)
def test_a_memory_stored_otherwise_is_lost_and_another_invented(change: dict[str, Any]) -> None:
    ledger = _ledger()
    rows = _stored(ledger)
    place = rows.index(_row(rows, "river", _HEARD))
    rows[place] = replace(rows[place], memory=replace(rows[place].memory, **change))

    assert _kinds(ledger.verdict(_found(rows))) == {"lost": 1, "invented": 1}


def _of_the_twin(rows: Sequence[Stored]) -> Recall:
    return _recall(_row(rows, "hill", _HEARD.replace("river", "hill")), foreign_words=())


def _of_a_neighbour(rows: Sequence[Stored]) -> Recall:
    bobs = next(row for row in rows if (row.memory.world, row.memory.agent) == ("river", "bob"))
    return _recall(bobs)


def _of_nobody(rows: Sequence[Stored]) -> Recall:
    return _recall(replace(rows[0], id=99))


def _anothers_answer(rows: Sequence[Stored]) -> Recall:
    return _recall(_row(rows, "river", _HEARD), answers=(Answer(agent="bob"),))


def _in_the_fragment_alone(rows: Sequence[Stored]) -> Recall:
    return _recall(answers=(Answer(agent="alice", fragment="- I moved to the hill"),))


def _other_words(rows: Sequence[Stored]) -> Recall:
    row = _row(rows, "river", _HEARD)
    return _recall(replace(row, memory=replace(row.memory, content="bob said nothing")))


def _fewer_answers(rows: Sequence[Stored]) -> Recall:
    return _recall(agents=("alice", "bob"))


@pytest.mark.parametrize(
    "recall",
    [
        _of_the_twin,
        _of_a_neighbour,
        _of_nobody,
        _anothers_answer,
        _in_the_fragment_alone,
        _other_words,
        _fewer_answers,
    ],
)
def test_a_strangers_memory_is_told(recall: Callable[[Sequence[Stored]], Recall]) -> None:
    ledger = _ledger()
    rows = _stored(ledger)
    ledger.recalls.append(recall(rows))

    assert _kinds(ledger.verdict(_found(rows))) == {"foreign": 1}


def test_a_recall_is_late_beyond_its_deadline_and_the_tolerance() -> None:
    ledger = _ledger()
    rows = _stored(ledger)
    ledger.recalls += [
        _recall(took_s=0.8 + TOLERANCE_S - 0.01),
        _recall(took_s=0.8 + TOLERANCE_S + 0.01),
        _recall(took_s=2.8 + TOLERANCE_S - 0.01, stalled_s=2.0),
    ]

    assert _kinds(ledger.verdict(_found(rows))) == {"late": 1}


@pytest.mark.parametrize("what", ["pending", "mispaired", "rejects", "dead_letters", "left"])
def test_what_is_left_is_unfinished(what: str) -> None:
    ledger = _ledger()

    verdict = ledger.verdict(_found(_stored(ledger), **{what: 2}))

    assert _kinds(verdict) == {"unfinished": 1}
    assert "2 " in verdict.unfinished[0]


def test_a_broken_link_protocol_is_unfinished_and_what_is_parked_is_not() -> None:
    ledger = _ledger()
    rows = _stored(ledger)

    broken = ledger.verdict(replace(_found(rows), audit=replace(SOUND, lost=1)))

    assert _kinds(broken) == {"unfinished": 1}
    assert ledger.verdict(_found(rows, parked=3)).sound


@pytest.mark.parametrize(
    ("answers", "known"),
    [
        ([("ok", None), ("empty", None)], True),
        ([("empty", None), ("empty", None)], False),
        ([("ok", None), ("empty", "deadline")], False),
        ([("degraded", "embedding"), ("ok", None)], False),
    ],
)
def test_a_recall_is_known_where_all_were_answered_in_full(
    answers: list[tuple[str, str | None]], known: bool
) -> None:
    given = tuple(Answer(agent="a", status=status, reason=why) for status, why in answers)

    assert _recall(agents=("a", "a"), answers=given).known is known


def test_a_replayed_world_says_nothing_twice_and_nothing_of_another() -> None:
    trace = Trace(
        ticks=((0, _DECISIONS[:1]), (3, _DECISIONS[1:])), agents=("bob",), observations=("fish",)
    )
    worlds = {world: replay(trace, world) for world in ("a", "b")}
    ticks = [next(worlds[world]) for world in worlds for _ in range(6)]
    said = [d["speech"] for tick in ticks for d in tick.decisions if "speech" in d]

    assert [tick.tick for tick in ticks[:6]] == [0, 3, 4, 7, 8, 11]
    assert len(said) == len(set(said)) == 6


def test_figures_are_summed_and_the_longest_recovery_kept() -> None:
    one = Figures(
        scenario="killed",
        seed=1,
        seconds=20.0,
        events=100,
        deliveries=100,
        memories=60,
        faults=3,
        recalls=50,
        recalls_ok=40,
        lost=0,
        duplicated=0,
        wrong_agent=0,
        late=1,
        unfinished=0,
        parked=0,
        exits=0,
        recovery_s=2.5,
    )
    runs = [one, replace(one, scenario="scaled", recovery_s=1.5)]

    assert total(runs)["events"] == 200
    assert total(runs)["recovery_s"] == 2.5
    assert table(runs)[-1] == (
        "events published 200, faults injected 6, lost 0, duplicated 0, wrong-agent 0,"
        " recalls late 2, longest recovery 2.5 s"
    )
    told = json.loads(as_json(runs, seed=7))
    assert (told["seed"], told["total"]) == (7, total(runs))
    assert [run["scenario"] for run in told["scenarios"]] == ["killed", "scaled"]
