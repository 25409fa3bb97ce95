"""How `scale` shares memories out, and what it makes of what it measured."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.bulk import copy_bytes, interleaved
from benchmarks.scale import Options, flatness, sizes


@pytest.mark.parametrize("total", [100, 20_000, *Options().totals])
def test_sizes_come_to_the_total(total: int) -> None:
    found = sizes(total)

    assert sum(size * agents for size, agents in found.items()) == total
    assert all(found.values())


def test_sizes_of_two_million_have_agents_of_every_size() -> None:
    assert sizes(2_000_000) == {100_000: 6, 10_000: 40, 1_000: 400, 100: 6_000}


@pytest.mark.parametrize("total", [0, 150])
def test_sizes_refuse_a_total_that_small_agents_cannot_make_up(total: int) -> None:
    with pytest.raises(ValueError, match="multiple of 100"):
        sizes(total)


def test_flatness_compares_the_largest_total_with_the_smallest() -> None:
    assert flatness({2_000: 3.0, 100: 2.0, 500: 9.0}) == 1.5


@pytest.mark.parametrize("costs", [{100: 2.0}, {100: 0.0, 200: 2.0}])
def test_flatness_of_what_cannot_be_compared_is_none(costs: dict[int, float]) -> None:
    assert flatness(costs) is None


def test_interleaved_gives_each_agent_its_memories_out_of_order() -> None:
    owners = interleaved({30: 2, 10: 4}, np.random.default_rng(1))

    assert np.bincount(owners).tolist() == [30, 30, 10, 10, 10, 10]
    assert owners.tolist() != sorted(owners.tolist())


def test_copy_bytes_are_rows_as_postgresql_reads_them() -> None:
    columns = {
        "id": np.array([1, 2], dtype=">i8"),
        "kind": np.array([b"talk", b"move"]),
        "hash": np.array([[7, 8], [9, 10]], dtype=np.uint8),
    }

    assert copy_bytes(columns) == (
        b"\x00\x03"
        b"\x00\x00\x00\x08" b"\x00\x00\x00\x00\x00\x00\x00\x01"
        b"\x00\x00\x00\x04talk"
        b"\x00\x00\x00\x02\x07\x08"
        b"\x00\x03"
        b"\x00\x00\x00\x08" b"\x00\x00\x00\x00\x00\x00\x00\x02"
        b"\x00\x00\x00\x04move"
        b"\x00\x00\x00\x02\x09\x0a"
    )  # fmt: skip
