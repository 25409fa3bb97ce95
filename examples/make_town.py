"""Write the example town's ticks from its script.

    python examples/make_town.py            # rewrites the town that tickmind ships
    python examples/make_town.py -          # prints it instead

The script, `town.yaml` beside this file, holds what was written by hand: places, people,
dialogue. This program adds what nobody wants to write by hand: everybody walks to their
scenes in time, listens while others talk, and wanders or pauses in between. The same script
always gives the same file.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import yaml

SCRIPT = Path(__file__).with_name("town.yaml")
TICKS = Path(__file__).parents[1] / "shared/src/tickmind/local/town/ticks.jsonl"

AgentId = str | int
T = TypeVar("T")
Decision = dict[str, Any]


class ScriptError(ValueError):
    """The script asks for something impossible; the text says where and what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """What the script wants of one agent in one tick.

    `decision` is in the contract's form without agent and place. `place` None: wherever
    the agent happens to be.
    """

    place: str | None
    decision: Decision


@dataclass(slots=True, kw_only=True)
class Walker:
    """One agent while the day is played: where it stands and what it still has to do."""

    id: AgentId
    places: list[str]
    duties: dict[int, Duty]
    place: str
    spot: list[int]

    def assign(self, tick: int, duty: Duty) -> None:
        if tick in self.duties:
            raise ScriptError(f"{self.id} has two things to do in tick {tick}")
        self.duties[tick] = duty


def load_script(path: Path = SCRIPT) -> dict[str, Any]:
    """Read the script as it stands; `town_ticks` checks what matters in it."""
    script: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return script


def town_ticks(script: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Play the script and yield one `tick.ended` message a tick.

    Raises ScriptError where somebody would have to be in two places at once.
    """
    walkers = cast_of(script)
    assign_scenes(script["scenes"], walkers)
    assign_others(script, walkers)
    # Only random() is drawn: of the generator's methods it alone promises the same sequence
    # for a seed in every Python version.
    dice = random.Random(script["seed"])
    start = datetime.fromisoformat(script["start"])
    for tick in range(script["last_tick"] + 1):
        decisions = [
            decision
            for walker in walkers.values()
            if (decision := play(walker, tick, script, dice)) is not None
        ]
        time = start + timedelta(minutes=script["minutes_per_tick"] * tick)
        yield {
            "world": script["world"],
            "tick": tick,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "decisions": decisions,
        }


def cast_of(script: dict[str, Any]) -> dict[str, Walker]:
    """Everybody at the first of their places, by name as the script's lines write it."""
    return {
        str(agent["id"]): Walker(
            id=agent["id"],
            places=agent["places"],
            duties={},
            place=agent["places"][0],
            spot=script["places"][agent["places"][0]][0],
        )
        for agent in script["agents"]
    }


def assign_scenes(scenes: list[dict[str, Any]], walkers: dict[str, Walker]) -> None:
    """Give every line to its speaker, and everybody else in its scene a tick of listening."""
    for scene in scenes:
        lines = [parse_line(line) for line in scene["lines"]]
        people = {name: None for speaker, hearers, _ in lines for name in (speaker, *hearers)}
        people |= {str(name): None for name in scene.get("with", [])}
        for tick, (speaker, hearers, words) in enumerate(lines, start=scene["tick"]):
            talk: Decision = {"action": "talk", "speech": words}
            if hearers:
                talk["heard_by"] = [walkers[name].id for name in hearers]
            for name in people:
                said = talk if name == speaker else {"action": "stay"}
                walkers[name].assign(tick, Duty(place=scene["place"], decision=said))


def parse_line(line: dict[Any, str]) -> tuple[str, list[str], str]:
    """Split `{"bob > alice, dan": words}` into speaker, named hearers and words."""
    ((who, words),) = line.items()
    speaker, _, hearers = str(who).partition(" > ")
    return speaker, hearers.split(", ") if hearers else [], words


def assign_others(script: dict[str, Any], walkers: dict[str, Walker]) -> None:
    """Hand out the events, and the walks that must take place."""
    for event in script["events"]:
        decision = {k: v for k, v in event.items() if k not in ("tick", "agent", "place")}
        duty = Duty(place=event.get("place"), decision=decision)
        walkers[str(event["agent"])].assign(event["tick"], duty)
    for walk in script["walks"]:
        target = script["places"][walk["place"]][0]
        duty = Duty(place=walk["place"], decision={"action": "move", "target": target})
        walkers[str(walk["agent"])].assign(walk["tick"], duty)


def play(walker: Walker, tick: int, script: dict[str, Any], dice: random.Random) -> Decision | None:
    """What the agent does in this tick: its duty, the way to the next one, or as it pleases."""
    duty = walker.duties.get(tick)
    if duty is not None:
        if duty.decision["action"] == "move" and duty.place is not None:
            walker.place, walker.spot = duty.place, duty.decision["target"]
        if duty.place not in (None, walker.place):
            raise ScriptError(f"{walker.id} cannot be at {duty.place} by tick {tick}")
        return {"agent": walker.id, **duty.decision, "place": walker.place}
    closes = script["closes"]
    choice = [place for place in walker.places if tick < closes.get(place, tick + 1)]
    following = walker.duties.get(tick + 1)
    if following is not None and following.place and following.decision["action"] != "move":
        if following.place != walker.place:
            return go(walker, following.place, script, dice)
        choice = [walker.place]
    mood = dice.random()
    if mood < script["walk"]:
        return go(walker, draw(choice, dice), script, dice)
    if mood < script["walk"] + script["pause"]:
        return {"agent": walker.id, "action": "stay", "place": walker.place}
    return None


def go(walker: Walker, place: str, script: dict[str, Any], dice: random.Random) -> Decision:
    """Walk to a tile of the place on which the agent does not stand yet."""
    walker.spot = draw([tile for tile in script["places"][place] if tile != walker.spot], dice)
    walker.place = place
    return {"agent": walker.id, "action": "move", "target": walker.spot, "place": place}


def draw(items: list[T], dice: random.Random) -> T:
    return items[int(dice.random() * len(items))]


def as_lines(script: dict[str, Any]) -> str:
    """The whole day as JSON lines, UTF-8 text left readable."""
    return "".join(json.dumps(message, ensure_ascii=False) + "\n" for message in town_ticks(script))


def main() -> None:
    text = as_lines(load_script())
    if sys.argv[1:] == ["-"]:
        sys.stdout.buffer.write(text.encode())
    else:
        TICKS.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
