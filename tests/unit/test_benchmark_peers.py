"""What `peers` gives everyone to remember, and how answers are judged and compared."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from benchmarks.peers import Options
from benchmarks.peers.comparing import Measured, compared
from benchmarks.peers.workload import Oracle, percentile, questions, workload
from benchmarks.report import Report

_PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"


def test_workload_has_every_text_once_and_the_sizes_asked_for() -> None:
    work = workload({"big": (1, 60), "small": (3, 10)})

    told = [text for tick in work.ticks for _, text in tick]
    assert len(set(told)) == len(told) == work.memories == 90
    assert {agent: len(texts) for agent, texts in work.texts.items()} == {
        "big-00": 60, "small-00": 10, "small-01": 10, "small-02": 10
    }  # fmt: skip
    assert work.agents == {"big": ["big-00"], "small": ["small-00", "small-01", "small-02"]}


def test_questions_are_never_the_same_twice() -> None:
    asked = list(itertools.islice(questions(["big-00", "small-00"], 3), 200))

    assert len(set(asked)) == 200
    assert {agent for agent, _ in asked} == {"big-00", "small-00"}


def _oracle() -> Oracle:
    near = [f"fish market day{n}" for n in range(5)]
    far = [f"something else altogether number{n}" for n in range(20)]
    return Oracle({"alice": [*near, *far], "bob": ["fish market"]}, dimensions=256)


def test_recall5_of_the_exact_five_is_one() -> None:
    answer = [f"fish market day{n}" for n in (4, 2, 0, 1, 3)]

    assert _oracle().recall5("alice", "the fish market", answer) == 1.0


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        ([], 0.0),
        (["fish market day0"], 0.2),
        (["fish market day0"] * 5, 0.2),
        (["fish market day0", "something else altogether number1"], 0.2),
        (["fish market"], 0.0),
    ],
    ids=["nothing", "one", "one five times", "one and a wrong one", "another agent's"],
)
def test_recall5_counts_each_near_one_once(answer: list[str], share: float) -> None:
    assert _oracle().recall5("alice", "the fish market", answer) == pytest.approx(share)


def test_percentile_is_a_value_that_was_measured() -> None:
    values = [float(n) for n in range(1, 201)]

    assert percentile(values, 0.5) == 100
    assert percentile(values, 0.99) == 198
    assert percentile([7.0], 0.99) == 7.0


def _measured(*, seconds: float, recallable_s: float, recall5: float) -> Measured:
    return Measured(
        memories=1000,
        stored_s=1.0,
        recallable_s=recallable_s,
        seconds={(kind, callers): [seconds] for kind in ("big", "small") for callers in (1, 64)},
        recall5={"big": recall5, "small": 1.0},
        short={"big": 0.0, "small": 0.0},
    )


def test_compared_holds_ours_in_process_to_the_aims_and_tells_the_queue_beside() -> None:
    found = Report(name="peers", machine={})
    everyone = {
        "mem0": _measured(seconds=0.4, recallable_s=10.0, recall5=0.9),
        "tickmind": _measured(seconds=0.1, recallable_s=1.0, recall5=1.0),
        "queue": _measured(seconds=0.2, recallable_s=2.0, recall5=1.0),
    }

    compared(found, everyone, [1, 64])

    figures = found.figures
    assert (figures["write_ratio_mem0"].value, figures["write_ratio_mem0"].holds) == (10.0, True)
    assert figures["p99_ratio_mem0_c64"].value == pytest.approx(4.0)
    assert figures["p99_ratio_mem0_c64"].holds
    assert figures["recall5_lead_mem0"].value == 0.0  # of the worse set
    assert figures["write_ratio_queue_mem0"].value == 5.0
    assert figures["write_ratio_queue_mem0"].aim is None


def test_compared_without_ours_or_without_peers_tells_what_there_is() -> None:
    for name in ("mem0", "tickmind"):
        found = Report(name="peers", machine={})
        compared(found, {name: _measured(seconds=1, recallable_s=1, recall5=1)}, [64])
        assert f"write_per_s_{name}" in found.figures
        assert not any("ratio" in figure for figure in found.figures)


@pytest.mark.parametrize("peer", Options().peers)
def test_requirements_of_a_peer_are_exact(peer: str) -> None:
    lines = (_PEERS / f"requirements-{peer}.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]

    assert pins
    assert [pin for pin in pins if not re.fullmatch(r"[a-z0-9-]+==[0-9a-z.]+", pin)] == []
    assert (_PEERS / f"of_{peer}.py").exists()
