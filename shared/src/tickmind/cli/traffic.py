"""`publish` and `recall`: what an engine does, by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tickmind.cli.output import examples

if TYPE_CHECKING:
    from tickmind.client import Answer, MemoryClient
    from tickmind.settings import BrokerSettings

__all__ = ["answer_table", "register"]

_PANEL = "Use it"

_PUBLISH_EXAMPLE = examples(
    "tickmind publish town.jsonl --rate 20",
    "my-engine | tickmind publish -",
    after="One line: "
    '{"world": "town-7", "tick": 42, "decisions": [{"agent": "bob", "action": "talk", '
    '"speech": "The market sells fresh fish", "heard_by": ["alice"]}]}',
)
_RECALL_EXAMPLE = examples(
    'tickmind recall town-7 alice "Alice walks past the market"',
    'tickmind recall town-7 alice "Alice walks past the market" --tick 200 -k 3 --json',
    'tickmind recall town-7 alice "Alice walks past the market" --explain',
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(rich_help_panel=_PANEL, epilog=_PUBLISH_EXAMPLE)(publish)
    app.command(rich_help_panel=_PANEL, epilog=_RECALL_EXAMPLE)(recall)


def publish(
    file: Annotated[
        Path, typer.Argument(metavar="FILE|-", help="JSON lines, one tick each; - reads stdin.")
    ],
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Ticks per second; as fast as possible if unset")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Check all first; send nothing if any line is bad.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> int:
    """Publish a trace, each tick confirmed by the broker. Publishing it again changes nothing.

    A bad line is named with its number and left out; the others are sent, and the exit code is 1.
    """
    from tickmind.cli.output import note, print_json, say
    from tickmind.cli.publishing import publish_trace
    from tickmind.cli.servers import broker_settings

    done = asyncio.run(publish_trace(broker_settings(), file, rate=rate, strict=strict, warn=note))
    if as_json:
        print_json(asdict(done) | {"ticks_per_s": round(done.ticks_per_s, 1)})
    else:
        rejected = f", {done.rejected} decisions to be rejected" if done.rejected else ""
        say(
            f"{done.published} of {done.lines} ticks published, {done.bad} bad lines{rejected};"
            f" {done.seconds:.1f} s, {done.ticks_per_s:.0f} ticks/s"
        )
    return 0 if done.published == done.lines and not done.rejected else 1


def recall(
    world: Annotated[str, typer.Argument(metavar="WORLD", help="The world's name.")],
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Whose memory.")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the agent sees now.")],
    tick: Annotated[
        int | None, typer.Option(min=0, help="Now; the tick after the world's last one if unset")
    ] = None,
    k: Annotated[int, typer.Option("-k", "--k", min=1, max=100, help="Most memories.")] = 5,
    language: Annotated[
        Literal["en", "zh", "ja"], typer.Option(help="Of the fragment's heading.")
    ] = "en",
    ranking: Annotated[
        Literal["blended", "relevance"],
        typer.Option(help="By relevance, recency and importance, or by relevance alone."),
    ] = "blended",
    kinds: Annotated[
        list[str] | None, typer.Option(help="Only these; may be repeated or parted by commas.")
    ] = None,
    min_importance: Annotated[int | None, typer.Option(min=1, max=10, help="1 to 10.")] = None,
    as_of_tick: Annotated[
        int | None, typer.Option(min=0, help="Only what had happened by this tick.")
    ] = None,
    from_tick: Annotated[int | None, typer.Option(min=0, help="Only from this tick on.")] = None,
    to_tick: Annotated[int | None, typer.Option(min=0, help="Only up to this tick.")] = None,
    exclude_last_ticks: Annotated[
        int | None, typer.Option(min=0, help="Not the last so many, now being one of them.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(metavar="REL,REC,IMP", help="Of the score; the world's where unset."),
    ] = None,
    distinct: Annotated[
        Literal["off", "text", "numbers"] | None,
        typer.Option(help="What says the same comes back once: by its words, or numbers aside."),
    ] = None,
    max_core: Annotated[
        int | None, typer.Option(min=0, max=100, help="Most core memories that come first.")
    ] = None,
    fallback: Annotated[
        Literal["none", "text"], typer.Option(help="Where TEXT cannot be embedded.")
    ] = "none",
    wait_for_tick: Annotated[
        int | None, typer.Option(min=0, help="Wait until this tick is recorded.")
    ] = None,
    wait_ms: Annotated[int, typer.Option(min=0, max=60_000, help="So long at most.")] = 200,
    timeout: Annotated[
        float, typer.Option(min=0.001, max=60, help="Seconds; an engine would wait less.")
    ] = 5.0,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show how it was ranked, and what each step took.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> int:
    """Ask what an agent remembers about what it sees, and why each memory came back.

    Remembering nothing is a normal answer. Where a fault is the reason, the exit code is 1, unless
    --fallback had something to tell all the same.
    """
    from tickmind.cli.output import note, print_json, safe, say
    from tickmind.cli.servers import broker_settings

    options: dict[str, Any] = {"k": k, "language": language, "ranking": ranking}
    given = {
        "min_importance": min_importance,
        "as_of_tick": as_of_tick,
        "from_tick": from_tick,
        "to_tick": to_tick,
        "exclude_last_ticks": exclude_last_ticks,
        "weights": _weights(weights),
        "distinct": distinct,
        "max_core": max_core,
        "wait_for_tick": wait_for_tick,
        "explain": explain or None,
    }
    options |= {"fallback": fallback, "wait_ms": wait_ms}
    options |= {name: value for name, value in given.items() if value is not None}
    if kinds:
        options["kinds"] = [kind for part in kinds for kind in part.split(",") if kind]
    answer, now = asyncio.run(
        _recall(broker_settings(), world, agent, text, tick=tick, timeout_s=timeout, **options)
    )
    if as_json:
        print_json({"world": world, "tick": now, **asdict(answer)})
    if answer.reason is not None:
        detail = f" ({answer.detail})" if answer.detail else ""
        came = "only what needs no vector" if answer.memories else "nothing"
        note(f"tickmind: {came} came back, the reason is: {answer.reason}{detail}")
        if not answer.memories:
            return 1
    if as_json:
        return 0
    if answer.memories:
        say(answer_table(answer), safe(answer.fragment, lines=True))
    elif answer.recorded_tick is None:
        say(f"{agent} remembers nothing: no tick of a world named {world} has been recorded.")
    else:
        why = f": {answer.detail}" if answer.detail else ""
        say(f"{agent} remembers nothing of this at tick {now}{why}.")
    if answer.explain is not None:
        say(_explained_in_words(answer.explain))
    return 0


def _weights(given: str | None) -> dict[str, float] | None:
    """Three numbers parted by commas, by their names."""
    if given is None:
        return None
    names = ("relevance", "recency", "importance")
    try:
        return dict(zip(names, (float(part) for part in given.split(",")), strict=True))
    except ValueError as exc:
        msg = "--weights takes three numbers, such as 1,0.1,0.2"
        raise typer.BadParameter(msg) from exc


#: What a step's name in a reply means.
_STEPS = {"find": "agent found", "embed": "observation embedded", "rank": "ranked"}


def _explained_in_words(how: Mapping[str, Any]) -> str:
    if how["plan"] == "hnsw":
        plan = f"{how['rows']} memories by their HNSW index, the best {how['scored']} exactly"
    elif how["plan"] == "signatures":
        plan = f"{how['rows']} memories by their signatures, the best {how['scored']} exactly"
    else:
        plan = f"{how['rows']} memories, all exactly"
    steps = [f"{_STEPS.get(name, name)} {ms:.1f} ms" for name, ms in how["ms"].items()]
    return f"Plan: {plan}; {', '.join(steps)}."


async def _recall(
    settings: BrokerSettings,
    world: str,
    agent: str,
    text: str,
    *,
    tick: int | None,
    timeout_s: float,
    **options: Any,
) -> tuple[Answer, int]:
    """The answer, and the tick it was asked for."""
    from tickmind.cli.servers import open_client
    from tickmind.memory import MAX_TICK

    async with open_client(settings) as client:
        if tick is None:
            # The watermark comes with any answer; its vector is kept for the question itself.
            first = await client.recall(world, agent, text, tick=0, timeout_s=timeout_s, k=1)
            if first.reason is not None and first.recorded_tick is None:
                return await _explained(client, settings, first), 0
            last = first.recorded_tick
            tick = 0 if last is None else min(last + 1, MAX_TICK)
        answer = await client.recall(world, agent, text, tick=tick, timeout_s=timeout_s, **options)
        return await _explained(client, settings, answer), tick


async def _explained(client: MemoryClient, settings: BrokerSettings, answer: Answer) -> Answer:
    """The answer; where none came in time because nobody listens, it says so."""
    from dataclasses import replace

    from tickmind.cli.queues import depths
    from tickmind.topology import RECALL_QUEUE

    if answer.reason != "timeout":
        return answer
    (queue,) = await depths(settings, [RECALL_QUEUE])
    if queue.consumers:
        return answer
    return replace(answer, detail="no retriever is running: start one with `tickmind retriever`")


def answer_table(answer: Answer, *, mark: str = "") -> Any:
    """The memories of an answer with their scores; those that hold `mark` are marked."""
    from tickmind.cli.output import table

    names = ("score", "relevance", "recency", "importance", "tick", "kind")
    return table(
        [*names, "content"],
        [
            [
                *(memory[name] for name in names),
                ("» " if mark and mark in memory["content"] else "") + memory["content"],
            ]
            for memory in answer.memories
        ],
        wide="content",
    )
