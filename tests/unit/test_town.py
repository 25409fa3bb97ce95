"""The shipped town: a valid trace, and questions that the trace, and only it, can answer."""

from __future__ import annotations

import copy
import re
import runpy
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tickmind.decoding import decode_tick
from tickmind.grading import grade
from tickmind.local.town import Question, load_questions, load_ticks, town_path
from tickmind.policy import default_policy
from tickmind.wording import language_of

EXAMPLES = Path(__file__).parents[2] / "examples"

TICKS = list(load_ticks())
QUESTIONS = load_questions()


def _decisions() -> Iterator[tuple[int, dict[str, Any]]]:
    for message in TICKS:
        for decision in message["decisions"]:
            yield message["tick"], decision


@pytest.fixture(scope="module")
def remembered() -> dict[str, list[tuple[int, str]]]:
    """What the default policy makes every agent remember: (tick, content) by agent."""
    memories: dict[str, list[tuple[int, str]]] = defaultdict(list)
    policy = default_policy()
    with town_path().open("rb") as lines:
        for line in lines:
            for memory in grade(decode_tick(line), policy).memories:
                memories[memory.agent].append((memory.tick, memory.content))
    return memories


def test_ticks_are_complete_ascending_and_five_minutes_apart() -> None:
    assert [message["tick"] for message in TICKS] == list(range(201))
    assert {message["world"] for message in TICKS} == {"harbour-town"}
    times = [datetime.fromisoformat(message["time"]) for message in TICKS]
    assert all(message["time"].endswith("Z") for message in TICKS)
    steps = {later - earlier for earlier, later in pairwise(times)}
    assert steps == {timedelta(minutes=5)}
    assert all(message["decisions"] for message in TICKS)


def test_decisions_are_all_valid_under_contract_and_default_policy() -> None:
    policy = default_policy()
    with town_path().open("rb") as lines:
        for line in lines:
            decoded = decode_tick(line)
            assert decoded.rejected == ()
            assert grade(decoded, policy).rejected == ()


def test_actions_come_in_the_shares_of_a_lively_town() -> None:
    counted = Counter(decision["action"] for _, decision in _decisions())
    total = sum(counted.values())
    assert 900 <= total <= 1500
    assert 0.4 <= counted["stay"] / total <= 0.6
    assert 0.25 <= counted["move"] / total <= 0.4
    assert counted["talk"] >= 200
    assert counted["observe"] >= 15


def test_agents_act_once_a_tick_and_hearers_are_never_the_speaker() -> None:
    agents = {decision["agent"] for _, decision in _decisions()}
    assert len(agents) == 13
    for message in TICKS:
        acting = [decision["agent"] for decision in message["decisions"]]
        assert len(acting) == len(set(acting))
    for _, decision in _decisions():
        hearers = decision.get("heard_by", [])
        assert decision["agent"] not in hearers
        assert set(hearers) <= agents


def test_agents_speak_one_language_each() -> None:
    spoken: dict[str | int, set[str]] = defaultdict(set)
    for _, decision in _decisions():
        for text in (decision.get("speech"), decision.get("text")):
            if text is not None:
                spoken[decision["agent"]].add(language_of(text))
    assert all(len(languages) == 1 for languages in spoken.values())
    found = Counter(next(iter(languages)) for languages in spoken.values())
    assert found == {"en": 5, "zh": 4, "ja": 4}
    for question in QUESTIONS:
        assert spoken[question.agent] == {question.language}
        assert language_of(question.observation) == question.language


def test_memories_are_worded_in_the_language_of_those_who_act(
    remembered: dict[str, list[tuple[int, str]]],
) -> None:
    japanese = {str(question.agent) for question in QUESTIONS if question.language == "ja"}
    for agent in japanese:
        moves = [content for _, content in remembered[agent] if re.search(r"\(\d+, \d+\)", content)]
        assert moves
        assert {language_of(content) for content in moves} == {"ja"}


def test_places_keep_their_coordinates() -> None:
    owner: dict[tuple[int, int], str] = {}
    for _, decision in _decisions():
        if decision["action"] == "move":
            x, y = decision["target"]
            assert owner.setdefault((x, y), decision["place"]) == decision["place"]
    assert owner[15, 8] == "market"


def test_fish_is_told_at_tick_42_and_asked_about_at_tick_200() -> None:
    told = [(tick, d) for tick, d in _decisions() if "fresh fish" in d.get("speech", "")]
    assert [tick for tick, _ in told] == [42]
    decision = told[0][1]
    assert decision["agent"] == "bob"
    assert decision["speech"] == "The market sells fresh fish"
    assert decision["heard_by"] == ["alice"]
    asked = [q for q in QUESTIONS if q.observation == "Alice walks past the market"]
    assert [(q.agent, q.tick, q.expects) for q in asked] == [("alice", 200, "fresh fish")]


def test_trace_holds_what_engines_really_send() -> None:
    decisions = list(_decisions())
    assert any(type(d["agent"]) is int for _, d in decisions)
    assert any(17 in d.get("heard_by", []) for _, d in decisions)
    assert any("🎂" in d.get("speech", "") for _, d in decisions)
    repeated = Counter((d["agent"], d.get("speech")) for _, d in decisions if "speech" in d)
    assert repeated[17, "All moorings are secure."] == 2
    fire = [d for _, d in decisions if d.get("event_id") == "fire-1"]
    assert [(d["action"], d["importance"]) for d in fire] == [("observe", 9)]
    assert any(d.get("core") is True for _, d in decisions)
    unknown = [d for _, d in decisions if d["action"] in ("sing", "sketch")]
    assert {"text" in d for d in unknown} == {True, False}


def test_talk_is_heard_by_name_by_place_and_by_nobody() -> None:
    named = by_place = unheard = 0
    for message in TICKS:
        for decision in message["decisions"]:
            if decision["action"] != "talk":
                continue
            near = [d for d in message["decisions"] if d.get("place") == decision["place"]]
            named += "heard_by" in decision
            by_place += "heard_by" not in decision and len(near) > 1
            unheard += "heard_by" not in decision and len(near) == 1
    assert named >= 50
    assert by_place >= 50
    assert unheard >= 1


def test_questions_are_at_least_four_in_each_language() -> None:
    assert len(QUESTIONS) >= 14
    by_language = Counter(question.language for question in QUESTIONS)
    assert set(by_language) == {"en", "zh", "ja"}
    assert min(by_language.values()) >= 4
    assert any(question.tick < 200 for question in QUESTIONS)
    assert any(type(question.agent) is int for question in QUESTIONS)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: f"{q.agent}-{q.tick}-{q.expects}")
def test_expected_memory_is_held_by_the_asked_agent_well_before(
    question: Question, remembered: dict[str, list[tuple[int, str]]]
) -> None:
    held = [t for t, content in remembered[str(question.agent)] if question.expects in content]
    assert 1 <= len(held) <= 2
    assert max(held) <= question.tick - 20  # not simply the latest thing said


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: f"{q.agent}-{q.tick}-{q.expects}")
def test_question_cannot_be_answered_without_the_memory(
    question: Question, remembered: dict[str, list[tuple[int, str]]]
) -> None:
    assert question.expects not in question.observation
    holders = {
        agent
        for agent, memories in remembered.items()
        if any(question.expects in content for _, content in memories)
    }
    assert str(question.agent) in holders
    assert len(holders) <= 3  # those who took part; the rest of the town cannot know
    own = remembered[str(question.agent)]
    assert len([tick for tick, _ in own if tick <= question.tick]) >= 25  # k = 5 must choose


def test_generator_reproduces_the_shipped_file_exactly() -> None:
    made = subprocess.run(
        [sys.executable, EXAMPLES / "make_town.py", "-"], capture_output=True, check=True
    )
    assert made.stdout == town_path().read_bytes()


def test_generator_refuses_an_agent_with_two_things_to_do_in_one_tick() -> None:
    program = runpy.run_path(str(EXAMPLES / "make_town.py"))
    script = copy.deepcopy(program["load_script"]())
    script["events"].append({"tick": 42, "agent": "alice", "action": "observe", "text": "A gull"})
    with pytest.raises(program["ScriptError"], match="alice has two things to do in tick 42"):
        list(program["town_ticks"](script))


def test_generator_refuses_an_agent_who_cannot_be_there_in_time() -> None:
    program = runpy.run_path(str(EXAMPLES / "make_town.py"))
    script = copy.deepcopy(program["load_script"]())
    script["events"].append(
        {"tick": 45, "agent": "alice", "action": "observe", "text": "A gull", "place": "inn"}
    )
    with pytest.raises(program["ScriptError"], match="alice cannot be at inn by tick 45"):
        list(program["town_ticks"](script))
