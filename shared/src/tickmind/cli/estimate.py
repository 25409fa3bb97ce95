"""`estimate`: what embedding a trace will cost, before anything is sent."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tickmind.cli.output import examples

if TYPE_CHECKING:
    from tickmind.estimating import Cost, Estimate
    from tickmind.memory import Memory
    from tickmind.policy import Policy
    from tickmind.settings import EmbeddingSettings

__all__ = ["register"]

_EXAMPLE = examples(
    "tickmind estimate town.jsonl --profile text-embedding-3-small",
    'tickmind estimate town.jsonl --limits "100 texts/min, 1000 calls/day" --json',
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Fit it to your engine", epilog=_EXAMPLE)(estimate)


@dataclass(slots=True, kw_only=True)
class _Read:
    """What was made of a trace. `repeated`: memories of events it holds already."""

    ticks: int = 0
    bad_lines: int = 0
    rejected: int = 0
    repeated: int = 0


def estimate(
    file: Annotated[
        Path, typer.Argument(metavar="FILE|-", help="A trace: JSON lines, one tick each.")
    ],
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A provider's profile; TICKMIND_EMBEDDING_* of here if unset."
        ),
    ] = None,
    limits: Annotated[
        str | None, typer.Option(help="What the provider allows, instead of its profile's.")
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0, help="Dollars per million tokens, likewise.")
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="POLICY.yaml",
            envvar="TICKMIND_RECORDER_POLICY_FILE",
            help="The policy; the one that ships if unset.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all as JSON.")] = False,
) -> int:
    """Say what a trace would cost: memories, distinct texts, tokens, money, and hours.

    Needs no server and sends nothing. Tokens are estimated without a tokenizer.
    Recalls, which embed what agents see, come on top.
    """
    from tickmind.budget import KEPT_FOR_QUERIES
    from tickmind.cli.output import note, print_json
    from tickmind.estimating import Caps, Estimate
    from tickmind.policy import default_policy, load_policy

    settings = _settings(profile, limits, price)
    rules = default_policy() if policy is None else load_policy(policy)
    found = Estimate()
    read = _count(file, rules, settings, found, warn=note)
    cost = found.cost(
        caps=Caps(
            inputs=settings.embedding_max_inputs,
            tokens=settings.embedding_max_tokens,
            size=settings.embedding_max_bytes,
        ),
        dollars_per_million=settings.embedding_price,
        limits=settings.limits(),
        kept=KEPT_FOR_QUERIES,
    )
    if as_json:
        print_json(_as_json(read, found, cost, settings))
    else:
        _show(read, found, cost, settings)
    return 1 if read.bad_lines or read.rejected else 0


def _settings(profile: str | None, limits: str | None, price: float | None) -> EmbeddingSettings:
    """Of a profile as it ships, or of the environment. Raises ConfigurationError."""
    from tickmind.serving import ExplicitSettings
    from tickmind.settings import EmbeddingSettings, load

    given: dict[str, Any] = {"embedding_limits": limits, "embedding_price": price}
    values = {name: value for name, value in given.items() if value is not None}
    if profile is None:
        return load(EmbeddingSettings, **values)
    return load(ExplicitSettings, embedding_profile=profile, **values)


def _count(
    path: Path,
    policy: Policy,
    settings: EmbeddingSettings,
    found: Estimate,
    *,
    warn: Callable[[str], None],
) -> _Read:
    """Grade a trace as the recorder would, and count its texts as the embedder would send them.

    Raises ConfigurationError for a file that cannot be read.
    """
    from tickmind.cli.output import progress
    from tickmind.cli.trace import numbered, opened
    from tickmind.conversation import Conversations, text_to_embed
    from tickmind.embedding import Embedder, HashProvider

    embedder = Embedder(settings, HashProvider(settings.embedding_dimensions))  # never called
    prefix = settings.embedding_document_prefix
    read, events, seen_bytes = _Read(), set[tuple[str, str, bytes]](), 0
    conversations = Conversations()
    with (
        opened(path) as descriptor,
        open(descriptor, "rb", closefd=False) as file,
        progress("Estimating", total=os.fstat(descriptor).st_size or None) as bar,
    ):
        for number, line in numbered(file):
            seen_bytes += len(line)
            for memories in _messages(number, line, policy, read, warn):
                new = []
                for memory in memories:
                    event = (memory.world, memory.agent, memory.event_key)
                    if event in events:
                        read.repeated += 1
                    else:
                        events.add(event)
                        new.append(memory)
                for memory in conversations.answered(new):
                    told = text_to_embed(memory, memory.context)
                    if found.add(told):
                        found.sent([prefix + each for each in embedder.inputs_of(told)])
            bar.to(seen_bytes, about=f"{read.ticks} ticks")
    return read


def _messages(
    number: int, line: bytes, policy: Policy, read: _Read, warn: Callable[[str], None]
) -> Iterator[Sequence[Memory]]:
    """The memories of each message that a line comes in."""
    from tickmind.cli.trial import decode_line
    from tickmind.errors import InvalidMessage
    from tickmind.grading import grade

    try:
        parts = decode_line(number, line)
    except InvalidMessage as exc:
        read.bad_lines += 1
        warn(f"line {number}: {exc}")
        return
    read.ticks += 1
    for tick in parts:
        graded = grade(tick, policy)
        for rejected in graded.rejected:
            warn(f"line {number}: {rejected.detail}")
        read.rejected += len(graded.rejected)
        yield graded.memories


def _as_json(
    read: _Read, found: Estimate, cost: Cost, settings: EmbeddingSettings
) -> dict[str, Any]:
    return {
        "profile": settings.embedding_profile,
        "model": settings.embedding_model,
        "dimensions": settings.embedding_dimensions,
        "ticks": read.ticks,
        "bad_lines": read.bad_lines,
        "rejected": read.rejected,
        "repeated": read.repeated,
        "memories": found.memories,
        "texts": found.texts,
        "saved_by_deduplication": found.saved,
        "blank": found.blank,
        "inputs": found.inputs,
        "tokens": found.tokens,
        "calls": cost.calls,
        "price_per_million_tokens": settings.embedding_price,
        "cost_usd": round(cost.dollars, 6),
        "hours": round(cost.hours, 4),
        "limit": cost.decided_by,
        "hours_by_limit": {name: round(s / 3600, 4) for name, s in cost.seconds.items()},
    }


def _show(read: _Read, found: Estimate, cost: Cost, settings: EmbeddingSettings) -> None:
    from tickmind.cli.output import say, table

    share = f"{found.texts / found.memories:.0%} of the memories" if found.memories else ""
    pieces = f"in {found.inputs} inputs, long ones in pieces" if found.inputs > found.texts else ""
    price = f"at ${settings.embedding_price:g} a million tokens"
    rows: list[list[object]] = [
        ["memories", found.memories, f"of {read.ticks} ticks"],
        ["texts sent", found.texts, ", ".join(filter(None, (share, pieces)))],
        ["saved", found.saved, "memories whose text is embedded already"],
        ["requests", cost.calls, f"of at most {settings.embedding_max_inputs} inputs"],
        ["tokens", found.tokens, "estimated"],
        ["cost", f"${cost.dollars:.4f}", price],
        ["time", _duration(cost), f"by {cost.decided_by}" if cost.decided_by else ""],
    ]
    say(
        f"{settings.embedding_model} in {settings.embedding_dimensions} dimensions",
        table(["", "", ""], [[name, f"{value}", about] for name, value, about in rows]),
    )


def _duration(cost: Cost) -> str:
    if cost.decided_by is None:
        return "no limit holds it up"
    minutes = cost.hours * 60
    return f"{cost.hours:.1f} h" if minutes >= 90 else f"{minutes:.1f} min"
