"""The policy file: what ships, how worlds differ, and errors that name the line."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from tickmind.errors import ConfigurationError
from tickmind.policy import Action, default_policy, load_policy, parse_policy
from tickmind.wording import LANGUAGES

_TEXT = (files("tickmind") / "policy.yaml").read_text(encoding="utf-8")


def _changed(old: str, new: str) -> str:
    assert old in _TEXT
    return _TEXT.replace(old, new, 1)


def _line(text: str, part: str) -> int:
    """1-based line of the first occurrence of `part`."""
    return text[: text.index(part)].count("\n") + 1


def test_ships_what_is_documented() -> None:
    rules = default_policy().defaults

    talk, move, observe = (rules.actions[name] for name in ("talk", "move", "observe"))
    assert isinstance(talk, Action)
    assert isinstance(move, Action)
    assert isinstance(observe, Action)
    assert isinstance(rules.other, Action)
    assert (talk.importance, talk.kind) == (8, "conversation")
    assert (move.importance, move.kind) == (4, "observation")
    assert (observe.importance, observe.kind) == (5, "observation")
    assert (rules.other.importance, rules.other.kind) == (3, "observation")
    assert rules.actions["stay"] == "drop"
    assert (rules.language, rules.audience, rules.max_hearers) == ("auto", "same_place", 50)


def test_every_wording_that_ships_can_be_filled() -> None:
    rules = default_policy().defaults
    values = dict.fromkeys(
        ("speech", "text", "target", "place", "action", "agent", "speaker"), "…x…"
    )

    for action in [*rules.actions.values(), rules.other]:
        if action == "drop":
            continue
        for language in LANGUAGES:
            for heard in (False, True) if action.heard else (False,):
                for template in action.words(language, heard=heard):
                    assert "…x…" in template.fill(values)
                    assert "{" not in template.fill(values)


def test_a_world_changes_only_what_it_names() -> None:
    policy = parse_policy(
        _changed(
            "worlds: {}",
            """worlds:
  town-7:
    language: zh
    actions:
      move: drop
      talk: {importance: 9, wording: {en: "Said I: {speech}"}}
      stay: {importance: 1, wording: {en: "a", zh: "b", ja: "c"}}
      sing: drop
  empty:
""",
        ),
        source="f",
    )

    rules, defaults = policy.of("town-7"), policy.defaults
    talk, default_talk = rules.actions["talk"], defaults.actions["talk"]
    assert isinstance(talk, Action)
    assert isinstance(default_talk, Action)
    assert (rules.language, rules.audience) == ("zh", "same_place")
    assert rules.actions["move"] == "drop"
    assert (talk.importance, talk.kind) == (9, "conversation")
    assert talk.words("en")[0].fill({"speech": "x"}) == "Said I: x"
    assert talk.words("ja") == default_talk.words("ja")
    assert rules.actions["stay"] != "drop"
    assert rules.actions["sing"] == "drop"
    assert policy.of("empty") == defaults
    assert policy.of("town-8") == defaults


@pytest.mark.parametrize("name", ["7", "no", "on", "1.0", "null", "2026-08-02", "~"])
def test_a_name_is_what_stands_there(name: str) -> None:
    """YAML would read a number, false, a date or nothing, and never find the world of that name."""
    policy = parse_policy(
        _changed("worlds: {}", f"worlds: {{{name}: {{language: ja}}}}"), source="f"
    )

    assert policy.of(name).language == "ja"


def test_wordings_may_be_shared_by_anchors() -> None:
    policy = parse_policy(
        _TEXT.replace("    talk:\n", "    talk: &talk\n", 1).replace(
            "    stay: drop\n", "    stay: drop\n    shout: {<<: *talk, importance: 10}\n", 1
        ),
        source="f",
    )

    shout = policy.defaults.actions["shout"]
    assert isinstance(shout, Action)
    assert (shout.importance, shout.kind) == (10, "conversation")


@pytest.mark.parametrize(
    ("old", "new", "at", "told"),
    [
        ("importance: 8", "importance: 80", "importance: 80", "less than or equal to 10"),
        ("importance: 8", "importance: 0", "importance: 0", "greater than or equal to 1"),
        ("importance: 8", 'importance: "8"', 'importance: "8"', "valid integer"),
        ("importance: 8", "importance: 7.5", "importance: 7.5", "valid integer"),
        ("importance: 8", "importance:", "importance:\n", "valid integer"),
        ("importance: 8", "importance: 2001-99-99", "importance: 2001", "valid integer"),
        ("importance: 8", "imporance: 8", "imporance", "imporance: there is no such setting"),
        ("importance: 8", "importance: 8\n      importance: 9", "importance: 9", "there twice"),
        ("kind: conversation", 'kind: ""', 'kind: ""', "at least 1 character"),
        ("kind: conversation", "kind: 5", "kind: 5", "valid string"),
        ('en: "I said: {speech}"', 'en: "{speeech}"', "{speeech}", "{speeech} in"),
        ('en: "I said: {speech}"', 'en: "{speech"', "{speech", "expected '}'"),
        ('en: "I said: {speech}"', 'en: "{speech!r}"', "{speech!r", "is not a gap"),
        ('en: "I said: {speech}"', "en: [5]", "en: [5]", "a wording or a list of wordings"),
        ('en: "I said: {speech}"', "en: []", "en: []", "a wording or a list of wordings"),
        ('en: "I said: {speech}"', 'en: ""', 'en: ""', "must say something"),
        ('en: "I said: {speech}"', 'fr: "{speech}"', "fr:", "Input should be 'en', 'zh' or 'ja'"),
        ('en: "I said: {speech}"', 'en: "{speaker}"', "wording:", "known to hearers only"),
        ('        ja: "私はこう言った：{speech}"\n', "", "wording:", "lacks ja"),
        ('        ja: "{speaker}が私に言った：{speech}"\n', "", "heard:", "lacks ja"),
        ("stay: drop", "stay: dropp", "stay: dropp", "Input should be 'drop'"),
        ("stay: drop", "stay: 5", "stay: 5", "valid dictionary"),
        ("stay: drop", "stay: drop\n    stay: drop", "stay: drop\n    # A", "is there twice"),
        ("audience: same_place", "audience: everyone", "audience: e", "'same_place', 'message'"),
        ("max_hearers: 50", "max_hearers: -1", "max_hearers: -1", "greater than or equal to 0"),
        ("language: auto", "language: fr", "language: fr", "'auto', 'en', 'zh' or 'ja'"),
        ("version: 1", "version: 2", "version: 2", "Input should be 1"),
        ("defaults:\n", "defualts:\n", "defualts", "there is no such setting"),
        ("worlds: {}", "wordls: {}", "wordls", "there is no such setting"),
        ("worlds: {}", "worlds: [a]", "worlds: [a]", "valid dictionary"),
        ("worlds: {}", "worlds: {t: 5}", "worlds: {t", "valid dictionary"),
        ("worlds: {}", "worlds:\n  t:\n    language: fr", "language: fr", "'auto', 'en'"),
        (
            "worlds: {}",
            "worlds:\n  t:\n    actions:\n      talk:\n        importance: 80",
            "importance: 80",
            "worlds.t.actions.talk.importance",
        ),
        ("worlds: {}", "worlds: {[a]: {}}", "worlds: {[a]", "must be a single word or text"),
        ("worlds: {}", "worlds: *x", "worlds: *x", "undefined alias"),
        ("worlds: {}", "worlds: {", "worlds: {", "not YAML"),
        ("worlds: {}", "\tworlds: {}", "\tworlds", "not YAML"),
        ("worlds: {}", "worlds: {a: \x07}", "worlds: {a: \x07}", "may not hold U+0007"),
        ("worlds: {}", "worlds: !!python/object:os.system x", "worlds: !!", "constructor for"),
    ],
)
def test_an_error_names_file_and_line_and_what_is_wrong(
    old: str, new: str, at: str, told: str
) -> None:
    text = _changed(old, new)
    if new == "stay: drop\n    stay: drop":
        line = _line(text, "stay: drop") + 1
    elif new == "worlds: {":
        line = text.count("\n") + 1  # where the document ends
    else:
        line = _line(text, at)

    with pytest.raises(ConfigurationError) as caught:
        parse_policy(text, source="town.yaml")

    assert str(caught.value).startswith(f"town.yaml, line {line}: ")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_fault_of_the_defaults_is_told_as_theirs_where_worlds_inherit_it() -> None:
    text = _changed("importance: 8", "importance: 80").replace(
        "worlds: {}", "worlds: {t: {language: zh}}"
    )

    with pytest.raises(ConfigurationError, match=r"defaults\.actions\.talk\.importance"):
        parse_policy(text, source="f")


@pytest.mark.parametrize("text", ["", "[]", "5", "# nothing", "- a\n- b"])
def test_refuses_what_is_no_policy_at_all(text: str) -> None:
    with pytest.raises(ConfigurationError, match="line 1: a policy is a mapping with version"):
        parse_policy(text, source="f")


@pytest.mark.parametrize("text", ["- " * 2000, "&a {version: 1, defaults: {actions: *a}}"])
def test_refuses_what_has_no_end(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_policy(text, source="f")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"version: 1 # \xe9")

    for name in ("absent", "latin", "."):
        with pytest.raises(ConfigurationError, match=f"cannot read the policy file {tmp_path}"):
            load_policy(tmp_path / name)


def test_loads_a_file(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(_TEXT, encoding="utf-8")

    assert load_policy(tmp_path / "policy.yaml") == default_policy()
