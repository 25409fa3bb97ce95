"""What a benchmark prints, and what it holds its figures to."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks.report import Report, at_least, at_most, machine, spread

_MACHINE: dict[str, str | int | float] = {"cpu": "a fast one", "cores": 2}


def _report() -> Report:
    return Report(name="ingest", machine=_MACHINE)


@pytest.mark.parametrize(("value", "holds"), [(0.69999, False), (0.7, True), (0.9, True)])
def test_a_figure_holds_from_its_lower_bound_on(value: float, holds: bool) -> None:
    report = _report()

    report.add("ratio", value, "", at_least(0.7))

    assert report.figures["ratio"].holds is holds


@pytest.mark.parametrize(("value", "holds"), [(1.50001, False), (1.5, True), (0.2, True)])
def test_a_figure_holds_up_to_its_upper_bound(value: float, holds: bool) -> None:
    report = _report()

    report.add("ratio", value, "", at_most(1.5))

    assert report.figures["ratio"].holds is holds


def test_json_is_one_object_of_name_machine_and_figures() -> None:
    report = _report()
    report.add("ingest_ratio", 0.81237, "rate / ceiling's rate", at_least(0.7))
    report.add("decisions_per_s", 16358.2, "1/s")

    text = report.as_json()

    assert "\n" not in text
    assert json.loads(text) == {
        "name": "ingest",
        "machine": _MACHINE,
        "figures": {
            "ingest_ratio": {
                "value": 0.8124,
                "unit": "rate / ceiling's rate",
                "aim": ">= 0.7",
                "holds": True,
            },
            "decisions_per_s": {"value": 16360, "unit": "1/s", "aim": None, "holds": None},
        },
    }


def test_rounding_what_is_told_does_not_change_what_holds() -> None:
    report = _report()

    report.add("ratio", 0.69999, "", at_least(0.7))

    figure = json.loads(report.as_json())["figures"]["ratio"]
    assert (figure["value"], figure["holds"]) == (0.7, False)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_figure_that_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"the figure ratio is .*: nothing was measured"):
        _report().add("ratio", value, "", at_least(0.7))


def test_rounds_come_as_their_median_with_their_extremes() -> None:
    report = _report()

    report.add_spread("ratio", [0.9, 0.6, 0.8], "", at_least(0.7))

    figures = json.loads(report.as_json())["figures"]
    assert {name: figure["value"] for name, figure in figures.items()} == {
        "ratio": 0.8,
        "ratio_low": 0.6,
        "ratio_high": 0.9,
    }
    assert [figure["holds"] for figure in figures.values()] == [True, None, None]


def test_the_median_of_an_even_number_of_rounds_lies_between_the_middle_two() -> None:
    assert spread([1.0, 4.0, 2.0, 3.0]).median == 2.5


def test_two_figures_of_one_name_are_refused() -> None:
    report = _report()
    report.add("ratio", 1.0, "")

    with pytest.raises(ValueError, match="the figure ratio is there already"):
        report.add("ratio", 2.0, "")


def test_the_table_shows_rounds_beside_their_median_and_a_missed_aim_loudly() -> None:
    report = _report()
    report.add_spread("ratio", [0.5, 0.6, 0.8], "", at_least(0.7))
    report.add("seconds", 12.0, "s")

    lines = report.as_table().splitlines()

    assert lines[0] == "ingest on cpu a fast one, cores 2"
    cells = [line.split() for line in lines[2:]]
    assert cells == [
        ["figure", "value", "rounds", "aim", "holds"],
        ["ratio", "0.6", "0.5", "..", "0.8", ">=", "0.7", "NO"],
        ["seconds", "12", "s"],
    ]


def test_the_machine_is_told_in_plain_values() -> None:
    told = machine()

    assert told["cores"]
    assert json.loads(json.dumps(told)) == told
