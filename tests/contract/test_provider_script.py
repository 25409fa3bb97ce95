"""Which rule strikes which request, and rules as JSON."""

from __future__ import annotations

import asyncio
import typing

import pytest
from pydantic import ValidationError

from tickmind.local.provider.faults import (
    Asked,
    BadIndex,
    BadVector,
    Drip,
    Fault,
    Hang,
    NoUsage,
    OneVector,
    OtherEncoding,
    Outage,
    RefuseParameter,
    Rule,
    Shuffled,
    Status,
    Throttle,
    Truncate,
    WrongCount,
    WrongWidth,
    rules_from_json,
    rules_to_json,
)
from tickmind.local.provider.script import FaultScript
from tickmind.local.provider.triggers import (
    Always,
    Containing,
    During,
    EveryNth,
    LargerThan,
    Next,
    RandomShare,
    Trigger,
)

BROKEN = Status(code=500)


def struck(script: FaultScript, *batches: tuple[str, ...]) -> list[str | None]:
    """Kind of the fault each batch meets."""
    faults = [script.choose(Asked(texts=texts)) for texts in batches]
    return [None if fault is None else fault.kind for fault in faults]


ONE = (("a",),)


def test_next_is_the_default_and_strikes_once() -> None:
    script = FaultScript()
    script.add(BROKEN)

    assert struck(script, *ONE * 3) == ["status", None, None]
    assert script.rules == ()


def test_next_rules_are_worked_off_like_a_queue() -> None:
    script = FaultScript()
    script.add(Throttle(), Next(requests=2))
    script.add(BROKEN, Next(requests=1, after=1))
    script.add(Outage(), Next())

    assert struck(script, *ONE * 6) == ["throttle", "throttle", "outage", "status", None, None]


def test_every_nth_counts_what_reaches_it() -> None:
    script = FaultScript()
    script.add(BROKEN, EveryNth(n=3))

    assert struck(script, *ONE * 7) == [None, None, "status"] * 2 + [None]


def test_containing_strikes_only_batches_with_the_substring() -> None:
    script = FaultScript()
    script.add(BROKEN, Containing(substring="毒"))

    assert struck(script, ("a", "有毒的"), ("a",), (), ("毒",)) == ["status", None, None, "status"]


def test_larger_than_strikes_only_larger_batches() -> None:
    script = FaultScript()
    script.add(BROKEN, LargerThan(texts=2))

    assert struck(script, ("a",) * 2, ("a",) * 3) == [None, "status"]


def test_random_share_is_about_the_share_and_the_same_for_a_seed() -> None:
    runs = []
    for seed in (1, 1, 2):
        script = FaultScript()
        script.add(BROKEN, RandomShare(share=0.25, seed=seed))
        runs.append(struck(script, *ONE * 1000))

    assert runs[0] == runs[1] != runs[2]
    assert 200 < runs[0].count("status") < 300


def test_during_holds_for_its_span_of_the_clock() -> None:
    now = [50.0]
    script = FaultScript(clock=lambda: now[0])
    script.add(BROKEN, During(seconds=2.0, after_s=1.0))

    found = []
    for at in (50.0, 50.9, 51.0, 52.9, 53.0, 51.5):
        now[0] = at
        found += struck(script, *ONE)

    assert found == [None, None, "status", "status", None, None]


def test_first_rule_that_strikes_hides_the_request_from_the_rest() -> None:
    script = FaultScript()
    script.add(Outage(), Containing(substring="a"))
    script.add(BROKEN, Next())

    assert struck(script, ("a",), ("b",), ("b",)) == ["outage", "status", None]


@pytest.mark.parametrize("fault", [OneVector(), Shuffled(), BadIndex(how="duplicate")])
def test_fault_that_needs_several_texts_waits_for_them(fault: Fault) -> None:
    script = FaultScript()
    script.add(fault)

    assert struck(script, ("a",), ("a", "b"), ("a", "b")) == [None, fault.kind, None]


def test_removed_and_cleared_rules_strike_no_more() -> None:
    script = FaultScript()
    first, _, third = script.extend([Rule(fault=BROKEN, trigger=Always())] * 3)

    script.remove(first)
    script.remove(first)
    assert len(script.rules) == 2
    script.clear()
    script.remove(third)

    assert struck(script, *ONE) == [None]


async def test_pause_ends_at_the_next_release_and_not_at_an_earlier_one() -> None:
    script = FaultScript()
    script.release()
    pauses = [asyncio.ensure_future(script.pause(seconds)) for seconds in (None, 60.0)]
    done, _ = await asyncio.wait(pauses, timeout=0.02)
    assert not done

    script.release()

    await asyncio.wait_for(asyncio.gather(*pauses), timeout=30)


FAULTS: list[Fault] = [
    Status(code=502, body="html", message="gone", headers={"x": "y"}),
    Throttle(header="http-date", body="gemini", quota="day", retry_after_s=7.5),
    Outage(how="reset"),
    RefuseParameter(parameter="base64"),
    WrongCount(by=2),
    OneVector(),
    Shuffled(seed=3),
    BadIndex(how="null", position=None),
    NoUsage(),
    OtherEncoding(),
    WrongWidth(width=7, position=1),
    BadVector(how="unnormalised", scale=0.1),
    Hang(seconds=None),
    Drip(seconds=2.0, chunks=3),
    Truncate(share=0.1, how="close"),
]
TRIGGERS: list[Trigger] = [
    Next(requests=2, after=1),
    EveryNth(n=4),
    Containing(substring="毒"),
    LargerThan(texts=10),
    RandomShare(share=0.5, seed=9),
    During(seconds=3.0, after_s=1.0),
    Always(),
]


def test_every_fault_and_trigger_survives_json() -> None:
    rules = [Rule(fault=fault) for fault in FAULTS]
    rules += [Rule(fault=BROKEN, trigger=trigger) for trigger in TRIGGERS]

    assert rules_from_json(rules_to_json(rules)) == rules


def test_every_fault_and_trigger_is_among_those_tested() -> None:
    """A new one must be added to the lists above."""
    for listed, union in ((FAULTS, Fault), (TRIGGERS, Trigger)):
        members = typing.get_args(typing.get_args(union)[0])
        assert {type(value) for value in listed} == set(members)


def test_rule_without_a_trigger_is_for_the_next_request() -> None:
    assert rules_from_json('[{"fault": {"kind": "outage"}}]') == [
        Rule(fault=Outage(), trigger=Next())
    ]


@pytest.mark.parametrize(
    "text",
    [
        '[{"fault": {"kind": "flood"}}]',
        '[{"fault": {"kind": "status"}}]',
        '[{"fault": {"kind": "status", "code": 500, "reason": "x"}}]',
        '[{"fault": {"kind": "outage"}, "trigger": {"kind": "next", "request": 2}}]',
        '[{"fault": {"kind": "outage"}, "when": {"kind": "always"}}]',
        '{"fault": {"kind": "outage"}}',
    ],
)
def test_misspelt_script_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        rules_from_json(text)
