"""`policy test` and `asyncapi`: what needs no server."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import Done, run_here
from tickmind.asyncapi import document
from tickmind.decoding import decode_tick
from tickmind.grading import grade
from tickmind.local.town import town_path
from tickmind.policy import default_policy

Run = Callable[..., Done]

TRACE: list[dict[str, Any]] = [
    {
        "world": "w",
        "tick": 1,
        "decisions": [
            {"agent": "bob", "action": "talk", "speech": "Fish!", "heard_by": ["alice", "zoe"]},
            {"agent": "bob", "action": "talk"},
            {"agent": "carol", "action": "stay"},
            {"agent": "carol", "action": "dance"},
            {"agent": "dan", "action": "observe", "text": "Fire!", "importance": 9},
            {"action": "stay"},
        ],
    },
    {"world": "w", "tick": 2, "decisions": [{"agent": "bob", "action": "talk", "speech": "Fish!"}]},
]

POLICY = """\
version: 1
defaults:
  actions:
    talk: drop
  other: drop
worlds:
  loud:
    max_hearers: 1
    actions:
      talk:
        importance: 2
        kind: gossip
        wording: {en: "Said {speech}", zh: "{speech}", ja: "{speech}"}
        heard: {en: "{speaker} said {speech}", zh: "{speech}", ja: "{speech}"}
"""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """The command line in this process, in a directory with a trace and a policy."""
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps(tick) for tick in TRACE]
    Path("trace.jsonl").write_text("\n".join([*lines, "", "{", ""]), encoding="utf-8")
    Path("sound.jsonl").write_text(lines[1] + "\n", encoding="utf-8")
    Path("policy.yaml").write_text(POLICY, encoding="utf-8")
    return partial(run_here, capsys, monkeypatch)


def test_policy_test_counts_what_becomes_of_each_action(run: Run) -> None:
    done = run("policy", "test", "trace.jsonl", "--json", "--examples", "5")
    assert done.code == 1
    first, second = done.err.splitlines()
    assert first.startswith("line 1: agent: Field required")
    assert second.startswith("line 4: ")
    found = done.json
    actions = found.pop("actions")
    assert found.pop("by_kind") == [
        {"kind": "conversation", "importance": 8, "memories": 4},
        {"kind": "observation", "importance": 9, "memories": 1},
    ]
    assert found == {
        "ticks": 2,
        "bad_lines": 1,
        "decisions": 7,
        "kept": 3,
        "dropped": 2,
        "rejected": 2,
        "memories": 5,
        "heard": 2,
        "hearers_cut": 0,
    }
    talk = actions["talk"]
    assert (talk["decisions"], talk["kept"], talk["rejected"], talk["heard"]) == (3, 2, 1, 2)
    assert talk["examples"] == ["I said: Fish!", "bob told me: Fish!"]
    assert actions["stay"]["why"] == {"policy": 1}
    assert actions["dance"]["why"] == {"unknown": 1}
    assert actions["(not valid)"]["rejected"] == 1


def test_policy_test_of_a_sound_trace_ends_well_and_shows_wordings(run: Run) -> None:
    done = run("policy", "test", "sound.jsonl")
    assert (done.code, done.err) == (0, "")
    assert "talk: I said: Fish!" in done.out
    assert "1 decisions of 1 ticks: 1 memories, 0 of them of hearers; 0 bad lines" in done.out
    assert "\x1b" not in done.out
    none = run("policy", "test", "sound.jsonl", "--examples", "0")
    assert "I said" not in none.out


def test_policy_test_uses_the_policy_and_the_world_that_are_named(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = run("policy", "test", "trace.jsonl", "--policy", "policy.yaml", "--json").json
    assert strict["memories"] == 0

    monkeypatch.setenv("TICKMIND_RECORDER_POLICY_FILE", "policy.yaml")
    loud = run("policy", "test", "trace.jsonl", "--world", "loud", "--json").json
    assert (loud["memories"], loud["heard"], loud["hearers_cut"]) == (3, 1, 1)
    assert loud["by_kind"] == [{"kind": "gossip", "importance": 2, "memories": 3}]
    assert loud["actions"]["talk"]["examples"] == ["Said Fish!", "bob said Fish!"]


def test_policy_test_of_the_town_agrees_with_the_recorder(run: Run) -> None:
    found = run("policy", "test", str(town_path()), "--json").json
    policy = default_policy()
    with town_path().open("rb") as lines:
        graded = [grade(decode_tick(line), policy) for line in lines]
    assert found["memories"] == sum(len(tick.memories) for tick in graded)
    assert found["dropped"] == sum(tick.dropped.total() for tick in graded)
    assert found["heard"] == sum(m.speaker is not None for tick in graded for m in tick.memories)
    assert found["rejected"] == found["bad_lines"] == 0


def test_policy_test_takes_a_tick_larger_than_a_message(run: Run) -> None:
    decisions = [
        {"agent": f"a{number}", "action": "talk", "speech": "x" * 1000, "place": "square"}
        for number in range(1100)
    ]
    line = json.dumps({"world": "w", "tick": 1, "decisions": decisions})
    Path("large.jsonl").write_text(line, encoding="utf-8")
    done = run("policy", "test", "large.jsonl", "--json")
    assert (done.code, done.err) == (0, "")
    assert (done.json["kept"], done.json["heard"]) == (1100, 1100 * 50)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("importance: 2", "importance: 11"), "policy.yaml, line 11: "),
        (("{speech}\", zh", "{shout}\", zh"), "policy.yaml, line 13: "),
        (("version: 1", "version: [1"), "policy.yaml, line 2: not YAML"),
    ],
)  # fmt: skip
def test_a_wrong_policy_names_its_line(run: Run, change: tuple[str, str], says: str) -> None:
    Path("policy.yaml").write_text(POLICY.replace(*change), encoding="utf-8")
    done = run("policy", "test", "sound.jsonl", "--policy", "policy.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"tickmind: {says}")
    assert done.err.count("\n") == 1


def test_a_policy_that_cannot_be_read_is_one_sentence(run: Run) -> None:
    done = run("policy", "test", "sound.jsonl", "--policy", "none.yaml")
    assert (done.code, done.out) == (2, "")
    assert "cannot read the policy file none.yaml" in done.err


def test_asyncapi_is_the_document_in_yaml_and_json(run: Run) -> None:
    shown = run("asyncapi")
    assert (shown.code, shown.err) == (0, "")
    assert yaml.safe_load(shown.out) == document()
    assert shown.out.startswith("asyncapi: 3.0.0\n")
    assert run("asyncapi", "--json").json == document()

    for name, load in (("a.json", json.loads), ("a.yaml", yaml.safe_load)):
        written = run("asyncapi", "--output", name)
        assert (written.code, written.out, written.err) == (0, "", "")
        assert load(Path(name).read_text(encoding="utf-8")) == document()

    nowhere = run("asyncapi", "--output", "no/such/folder.json")
    assert (nowhere.code, nowhere.out) == (2, "")
    assert "cannot write no/such/folder.json" in nowhere.err
