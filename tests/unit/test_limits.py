"""Limits as an operator writes them."""

from __future__ import annotations

import pytest

from tickmind.limits import Limit, parse_limits, smallest
from tickmind.profiles import PROFILES


def test_reads_amounts_units_and_windows() -> None:
    assert parse_limits("3000 texts/min, 1M tokens/min; 500 texts/10s\n1_000 requests/day") == (
        Limit(amount=3000, unit="texts", window_s=60),
        Limit(amount=1_000_000, unit="tokens", window_s=60),
        Limit(amount=500, unit="texts", window_s=10),
        Limit(amount=1000, unit="calls", window_s=86_400),
    )


def test_nothing_is_no_limit() -> None:
    assert parse_limits(" ,\n") == ()


@pytest.mark.parametrize(
    "text",
    ["3000", "3000 texts", "3000 texts/fortnight", "many texts/min", "0 texts/min", "5 cats/min"],
)
def test_names_the_part_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse_limits(f"10 calls/s, {text}")


def test_smallest_amount_of_a_unit() -> None:
    limits = parse_limits("3000 texts/min, 500 texts/10s, 9 calls/s")
    assert smallest(limits, "texts") == 500
    assert smallest(limits, "tokens") is None


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_every_profile_can_be_read(name: str) -> None:
    profile = PROFILES[name]
    parse_limits(profile.limits)
    assert 1 <= profile.dimensions <= 1536
    assert profile.encoding_format in ("float", "base64", "omit")
