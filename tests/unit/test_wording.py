"""Wordings: what a template may hold, and that what fills it is never interpreted."""

from __future__ import annotations

import pytest

from tickmind.wording import FIELDS, Template, language_of, word


@pytest.mark.parametrize("gap", sorted(FIELDS))
def test_fills_every_gap(gap: str) -> None:
    assert Template.parse(f"<{{{gap}}}>").fill({gap: "x"}) == "<x>"


def test_what_fills_a_gap_is_never_interpreted() -> None:
    template = Template.parse("{speaker} told me: {speech}")

    filled = template.fill({"speaker": "{speech}", "speech": "{speaker} %s \\1 {0} {{"})

    assert filled == "{speech} told me: {speaker} %s \\1 {0} {{"


def test_doubled_braces_are_braces() -> None:
    assert Template.parse("{{{text}}}").fill({"text": "x"}) == "{x}"


@pytest.mark.parametrize(
    "source",
    [
        "{speeech}",
        "{}",
        "{0}",
        "{text.upper}",
        "{text[0]}",
        "{text!r}",
        "{text:>9}",
        "{text",
        "text}",
        "",
        " \n",
        "\u200b",
    ],
)
def test_refuses_a_template_that_cannot_be_filled_or_says_nothing(source: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Template.parse(source)


def test_uses_the_first_template_whose_gaps_can_be_filled() -> None:
    templates = [Template.parse(s) for s in ("{target}, {place}", "{target}", "{place}")]

    assert word(templates, {"target": "(1, 2)", "place": "market"}) == "(1, 2), market"
    assert word(templates, {"target": "(1, 2)"}) == "(1, 2)"
    assert word(templates, {"place": "market"}) == "market"
    assert word(templates, {"text": "x"}) is None


@pytest.mark.parametrize(
    ("texts", "language"),
    [
        (("The market",), "en"),
        (("市场在卖鱼",), "zh"),
        (("市場で魚を売っている",), "ja"),
        (("カタカナ",), "ja"),
        (("ｶﾀｶﾅ",), "ja"),
        (("I said 你好 to her",), "zh"),
        ((None, "", "café", "你好"), "zh"),
        (("한국어",), "en"),
        (("\U00020000",), "zh"),
        ((), "en"),
    ],
)
def test_tells_the_language_by_its_letters(texts: tuple[str | None, ...], language: str) -> None:
    """case 25: the scaffolding follows the words."""
    assert language_of(*texts) == language
