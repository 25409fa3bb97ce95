"""YAML files that people write, bent: read, or refused in one sentence that names the line."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.mutating import Fuzzing, blamed
from tickmind.decoding import decode_tick
from tickmind.errors import ConfigurationError
from tickmind.grading import grade
from tickmind.limits import parse_limits, written
from tickmind.policy import parse_policy
from tickmind_retriever.ranking import parse_ranking

_POLICY = (files("tickmind") / "policy.yaml").read_bytes()
_RANKING = b"""\
version: 1
defaults: {half_life_ticks: 500, weights: {relevance: 1, recency: 0.1, importance: 0.2}}
worlds:
  town-7: {half_life_ticks: 2000, distinct: numbers}
  7: &seven {max_core: 3}
  no: *seven
"""
_LINES = (
    *(
        "!!map [a]",
        "!!set {a}",
        "!!int ''",
        "!!float ''",
        "!!bool x",
        "!!timestamp soon",
        "!!pairs 1",
    ),
    *(
        "!!binary x",
        "!!python/object:os.system x",
        "!local x",
        "<<: 5",
        "<<: *a",
        "&a [*a]",
        "? [1]",
    ),
    *("1: 2", "=: 1", "0b_: 1", "0x: 1", "1:60: 1", ".inf", ".nan", "- - - a", "{a: {a: {a: *b}}}"),
    *(
        "version: 2",
        "worlds: []",
        "worlds: {a: 5}",
        "defaults: []",
        "actions: {talk: drop}",
        "\t a",
    ),
    *("importance: 11", "wording: {en: '{x}'}", "wording: {en: '{'}", "wording: '{speech!r:>9}'"),
    *("other: keep", "max_hearers: -1", "half_life_ticks: .nan", "weights: {recency: -1}", "%TAG"),
    *(
        "--- a\n--- b",
        "a: 'unclosed",
        "a: \x07",
        "\ufeff",
        "\u2028",
        "'\\ud800'",
        '"\\ud800"',
        "界: 1",
    ),
)
_SENTENCE = re.compile(r"file\.yaml(, line \d+)?: .", re.S)
_TICK = decode_tick(
    b'{"world": "town-7", "tick": 1, "decisions": [{"agent": "a", "action": "talk", "speech": "b",'
    b' "heard_by": ["c"]}, {"agent": "a", "action": "move", "place": "x"}]}'
)


def _judged(text: str) -> int:
    """How many of the two kinds of file it is."""
    taken = 0
    try:
        grade(_TICK, parse_policy(text, source="file.yaml"))
        taken += 1
    except ConfigurationError as exc:
        if _SENTENCE.match(str(exc)) is None:
            pytest.fail(f"not a sentence: {exc}")
    try:
        parse_ranking(text, source="file.yaml").of("town-7")
        taken += 1
    except ConfigurationError as exc:
        if _SENTENCE.match(str(exc)) is None:
            pytest.fail(f"not a sentence: {exc}")
    return taken


def test_bent_files_are_read_or_refused_by_their_line(fuzzing: Fuzzing) -> None:
    bent = [_POLICY, _RANKING, *(line.encode() for line in _LINES)]
    taken = 0
    for mutated in fuzzing.inputs(bent, 300):
        with blamed(mutated):
            taken += _judged(mutated.body.decode(errors="replace"))
    assert taken


@pytest.mark.parametrize("line", _LINES)
@pytest.mark.parametrize("where", ["top", "defaults", "world", "action"])
def test_any_line_anywhere_is_read_or_refused(line: str, where: str) -> None:
    indented = line.replace("\n", "\n      ")
    before, _, after = _POLICY.decode().partition("    talk:\n")
    _judged(
        {
            "top": line,
            "defaults": f"version: 1\ndefaults: {line}\n",
            "world": f"{_RANKING.decode()}  x: {indented}\n",
            "action": f"{before}    sing: {indented}\n    talk:\n{after}",
        }[where]
    )


@given(st.text())
@example("a: " + "[" * 400)
@example("a: " + "{a: " * 400)
@example("&a {a: &b [*a, *b]}")
@example("9" * 5000)
@example("version: 1\ndefaults: &a {actions: *a, other: drop}")
def test_any_text_is_read_or_refused(text: str) -> None:
    _judged(text)


@given(
    st.lists(
        st.from_regex(r"[0-9_]{1,20}[kM]? ?(calls|texts|tokens)/[0-9.]{0,6} ?(s|min|h|day|x)?")
        | st.text(max_size=20),
        max_size=4,
    ).map(", ".join)
)
def test_any_limits_are_read_or_refused_and_say_themselves_again(text: str) -> None:
    try:
        limits = parse_limits(text)
    except ValueError as exc:
        if not str(exc):
            pytest.fail("refused without a word")
        return
    for limit in limits:
        assert 1 <= limit.amount <= 10**12
        assert 0 < limit.window_s <= 7 * 86_400
        (again,) = parse_limits(written(limit))
        assert (again.unit, again.amount) == (limit.unit, limit.amount)
