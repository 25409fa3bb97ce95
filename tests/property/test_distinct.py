"""What must hold of near-duplicates whatever the texts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_distinct import memory
from tickmind.distinct import distinct, folded, merged

RULES = st.sampled_from(["off", "text", "numbers"])
TEXTS = st.lists(st.sampled_from(["a", "A ", "b", "1", "2", "!", "", "١"]) | st.text(max_size=5))


@given(st.text(), RULES)
def test_folding_is_never_empty_and_the_same_every_time(text: str, rule: str) -> None:
    assert folded(text, rule) == folded(text, rule)  # type: ignore[arg-type]
    assert bool(folded(text, rule)) is bool(text)  # type: ignore[arg-type]


@given(TEXTS, RULES, st.integers(0, 12))
def test_what_comes_back_is_the_first_of_each(texts: list[str], rule: str, most: int) -> None:
    said = [memory(place, text) for place, text in enumerate(texts)]
    found = distinct(said, rule, most)  # type: ignore[arg-type]
    places = [m.id for m in found]
    assert places == sorted(places)
    keys = [m.id if rule == "off" else folded(m.content, rule) for m in said]  # type: ignore[arg-type]
    firsts = [place for place, key in enumerate(keys) if keys.index(key) == place]
    assert places == firsts[:most]


@given(TEXTS, st.sets(st.integers(0, 6)), RULES, st.integers(1, 8), st.integers(0, 8))
def test_core_comes_first_within_its_number(
    texts: list[str], cores: set[int], rule: str, most: int, most_core: int
) -> None:
    said = [memory(n, text, core=n in cores) for n, text in enumerate(texts)]
    core = [m for m in said if m.is_core]
    found = merged(core, said, rule=rule, most=most, most_core=most_core)  # type: ignore[arg-type]
    assert len(found) <= most
    assert len({m.id for m in found}) == len(found)
    first = distinct(core, rule, min(most, most_core))  # type: ignore[arg-type]
    assert found[: len(first)] == first
    rest = [m.id for m in found[len(first) :]]
    assert rest == sorted(rest)


@given(st.text("aZ09.- ,(\n_!", max_size=12), RULES)
def test_ascii_is_folded_as_any_text_is(text: str, rule: str) -> None:
    """The quick way and the general one: a letter beyond ASCII takes the latter."""
    general = folded(f"é {text}", rule)  # type: ignore[arg-type]
    quick = folded(f"e {text}", rule)  # type: ignore[arg-type]
    assert general.replace("é", "e") == quick
