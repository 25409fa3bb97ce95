"""What a trace would cost, told without a server."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.commands import Done, run_here
from tickmind.estimating import Caps, Estimate, seconds_under
from tickmind.limits import Limit, parse_limits, written
from tickmind.pieces import estimate_tokens

Run = Callable[..., Done]


def _talk(tick: int, speech: str, *hearers: str, agent: str = "bob") -> dict[str, Any]:
    return {
        "world": "w",
        "tick": tick,
        "decisions": [
            {"agent": agent, "action": "talk", "speech": speech, "heard_by": list(hearers)}
        ],
    }


#: 2 + 2 + 1 memories, of 2 distinct texts; then tick 1 again, which is no new event.
TRACE = [
    _talk(1, "Fish!", "alice"),
    _talk(2, "Fish!", "alice"),
    _talk(3, "Fish!"),
    _talk(1, "Fish!", "alice"),
]
TEXTS = ("I said: Fish!", "bob told me: Fish!")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """The command line in this process, in a directory with traces."""
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps(tick) for tick in TRACE]
    Path("trace.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    Path("bad.jsonl").write_text("\n".join([lines[0], "{", ""]), encoding="utf-8")
    return partial(run_here, capsys, monkeypatch)


def test_each_distinct_text_is_counted_once(run: Run) -> None:
    done = run("estimate", "trace.jsonl", "--profile", "text-embedding-3-small", "--json")
    assert (done.code, done.err) == (0, "")
    tokens = sum(map(estimate_tokens, TEXTS))
    assert done.json == {
        "profile": "text-embedding-3-small",
        "model": "text-embedding-3-small",
        "dimensions": 1536,
        "ticks": 4,
        "bad_lines": 0,
        "rejected": 0,
        "repeated": 2,
        "memories": 5,
        "texts": 2,
        "saved_by_deduplication": 3,
        "blank": 0,
        "inputs": 2,
        "tokens": tokens,
        "calls": 1,
        "price_per_million_tokens": 0.02,
        "cost_usd": round(tokens * 0.02e-6, 6),
        "hours": 0.0,
        "limit": None,
        "hours_by_limit": {"3000 calls/min": 0.0, "1000000 tokens/min": 0.0},
    }


def test_prefix_counts_with_every_text(run: Run) -> None:
    with_prefix = run("estimate", "trace.jsonl", "--profile", "ollama", "--json").json
    assert with_prefix["tokens"] == sum(
        estimate_tokens(f"search_document: {text}") for text in TEXTS
    )


def test_limits_and_price_can_be_said(run: Run) -> None:
    """A tenth of every limit is left to recalls."""
    found = run(
        *("estimate", "trace.jsonl", "--json", "--profile", "tei"),
        *("--limits", "1 texts/day, 100 texts/min", "--price", "1000000"),
    ).json
    assert found["cost_usd"] == found["tokens"]
    assert found["limit"] == "1 texts/day"
    assert found["hours"] == 48.0  # two texts at 0.9 a day are done in the third day
    assert found["hours_by_limit"] == {"1 texts/day": 48.0, "100 texts/min": 0.0}


def test_settings_of_the_environment_are_used_where_no_profile_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TICKMIND_EMBEDDING_MODEL", "mine")
    monkeypatch.setenv("TICKMIND_EMBEDDING_PRICE", "3")
    mine = run("estimate", "trace.jsonl", "--json").json
    assert (mine["model"], mine["price_per_million_tokens"]) == ("mine", 3)
    profile = run("estimate", "trace.jsonl", "--profile", "vllm", "--json").json
    assert (profile["model"], profile["price_per_million_tokens"]) == ("BAAI/bge-m3", 0)


def test_long_text_is_counted_in_its_pieces(run: Run) -> None:
    speech = "The market sells fresh fish. " * 200
    Path("long.jsonl").write_text(json.dumps(_talk(1, speech)), encoding="utf-8")
    found = run("estimate", "long.jsonl", "--profile", "tei", "--json").json
    assert (found["memories"], found["texts"]) == (1, 1)
    assert found["inputs"] > 1
    assert found["tokens"] > estimate_tokens(speech)


def test_policy_decides_what_there_is_to_embed(run: Run) -> None:
    policy = "version: 1\ndefaults:\n  actions:\n    talk: drop\n  other: drop\n"
    Path("policy.yaml").write_text(policy, encoding="utf-8")
    found = run("estimate", "trace.jsonl", "--policy", "policy.yaml", "--json").json
    assert (found["memories"], found["texts"], found["calls"]) == (0, 0, 0)
    shown = run("estimate", "trace.jsonl", "--policy", "policy.yaml")
    assert shown.code == 0


def test_what_a_talk_answers_counts_where_the_policy_has_it_embedded(run: Run) -> None:
    """Found across ticks, of one conversation alone; a late line finds what it answers, too."""
    policy = """
version: 1
defaults:
  actions:
    talk:
      importance: 8
      kind: conversation
      context: embedded
      wording: {en: "I: {speech}", zh: "{speech}", ja: "{speech}"}
      heard: {en: "{speaker}: {speech}", zh: "{speech}", ja: "{speech}"}
  other: drop
"""
    Path("policy.yaml").write_text(policy, encoding="utf-8")
    ticks = [
        _talk(1, "Fish?", "alice"),
        _talk(2, "Yes", "bob", agent="alice"),
        _talk(4, "Oh", "alice"),
        _talk(5, "No", "carol", agent="alice"),  # said to somebody else
        _talk(3, "Where?", "alice"),
        _talk(90, "Yes", "bob", agent="alice"),  # long after
    ]
    lines = "\n".join(json.dumps(tick) for tick in ticks)
    Path("talks.jsonl").write_text(lines, encoding="utf-8")
    found = run("estimate", "talks.jsonl", "--policy", "policy.yaml", "--json").json
    sent = {
        *("I: Fish?", "bob: Fish?"),
        *("bob: Fish?\nI: Yes", "I: Fish?\nalice: Yes"),
        *("I: Yes\nbob: Oh", "alice: Yes\nI: Oh"),
        *("I: No", "alice: No"),
        *("I: Yes\nbob: Where?", "alice: Yes\nI: Where?"),
        *("I: Yes", "alice: Yes"),
    }
    assert (found["memories"], found["texts"]) == (12, len(sent))
    assert found["tokens"] == sum(map(estimate_tokens, sent))


def test_bad_lines_are_named_and_the_rest_is_counted(run: Run) -> None:
    done = run("estimate", "bad.jsonl", "--json")
    assert done.code == 1
    assert done.err.startswith("line 2: ")
    assert (done.json["bad_lines"], done.json["memories"]) == (1, 2)


def test_figures_are_shown_to_a_person(run: Run) -> None:
    done = run(
        *("estimate", "trace.jsonl", "--profile", "gemini-embedding-001"),
        *("--limits", "1 texts/min"),
    )
    assert done.code == 0
    for part in ("gemini-embedding-001", "40% of the memories", "$0.15", "by 1 texts/min"):
        assert part in done.out
    assert "2.0 min" in done.out


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--profile", "nobody"), "there is no 'nobody'"),
        (("--limits", "many"), "'many' is not a limit"),
    ],
)
def test_wrong_option_ends_with_one_sentence(run: Run, args: tuple[str, str], told: str) -> None:
    done = run("estimate", "trace.jsonl", *args)
    assert (done.code, done.out) == (2, "")
    assert told in done.err


def test_blank_texts_cost_nothing() -> None:
    estimate = Estimate()
    assert [estimate.add(text) for text in ("a", " ", "a", "\u200b", " ")] == [
        True,
        False,
        False,
        False,
        False,
    ]
    assert (estimate.memories, estimate.texts, estimate.blank, estimate.saved) == (5, 1, 2, 2)


@pytest.mark.parametrize(
    ("caps", "calls"),
    [
        (Caps(inputs=4), 3),
        (Caps(inputs=4, tokens=2), 10),
        (Caps(inputs=100, size=25), 2),
        (Caps(inputs=100), 1),
    ],
)
def test_requests_are_as_many_as_the_tightest_cap_asks(caps: Caps, calls: int) -> None:
    estimate = Estimate()
    for number in range(10):
        if estimate.add(f"{number:05}"):
            estimate.sent(["aaaaa"] if number else ["aa"])  # 2 tokens each, and one
    assert (estimate.inputs, estimate.tokens) == (10, 19)
    cost = estimate.cost(caps=caps, dollars_per_million=2, limits=(), kept=0.1)
    assert (cost.calls, cost.hours, cost.decided_by) == (calls, 0, None)
    assert cost.dollars == pytest.approx(19 * 2e-6)


@pytest.mark.parametrize(
    ("units", "kept", "seconds"),
    [(0, 0, 0), (1, 0, 0), (100, 0, 0), (101, 0, 60), (300, 0, 120), (300, 0.1, 180), (90, 0.1, 0)],
)
def test_first_window_goes_at_once_and_each_further_one_a_window_later(
    units: int, kept: float, seconds: float
) -> None:
    limit = Limit(amount=100, unit="texts", window_s=60)
    assert seconds_under(limit, units, kept=kept) == seconds


def test_tightest_limit_decides() -> None:
    estimate = Estimate()
    for number in range(1000):
        estimate.add(str(number))
        estimate.sent(["word"])
    limits = parse_limits("100 texts/min, 5 calls/h, 1M tokens/min")
    cost = estimate.cost(caps=Caps(inputs=10), dollars_per_million=0, limits=limits, kept=0)
    assert cost.calls == 100
    assert cost.decided_by == "5 calls/h"
    assert cost.hours == 19


@pytest.mark.parametrize("text", ["3000 texts/min", "500 texts/10s", "7 calls/day", "2 tokens/h"])
def test_written_limit_is_read_again(text: str) -> None:
    assert written(parse_limits(text)[0]) == text
    assert parse_limits(written(parse_limits(text)[0])) == parse_limits(text)
