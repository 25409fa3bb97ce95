"""`policy test`: what a policy would keep of a trace, and in which words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tickmind.cli.output import examples

if TYPE_CHECKING:
    from tickmind.cli.trial import Trial

__all__ = ["register"]

_EXAMPLE = examples(
    "tickmind policy test town.jsonl",
    "tickmind policy test town.jsonl --policy mine.yaml --world town-7 --examples 5",
)

#: Reasons shown for what was not kept; --json has them all.
_REASONS_SHOWN = 3


def register(app: typer.Typer) -> None:
    """Add the group."""
    policy = typer.Typer(no_args_is_help=True, epilog=_EXAMPLE)
    policy.callback()(lambda: None)  # else its only command would stand for the group
    policy.command("test", epilog=_EXAMPLE)(try_out)
    about = "Try out what is worth remembering: test."
    app.add_typer(policy, name="policy", help=about, rich_help_panel="Fit it to your engine")


def try_out(
    file: Annotated[
        Path, typer.Argument(metavar="FILE|-", help="A trace: JSON lines, one tick each.")
    ],
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="POLICY.yaml",
            envvar="TICKMIND_RECORDER_POLICY_FILE",
            help="The policy; the one that ships if unset.",
        ),
    ] = None,
    world: Annotated[
        str | None,
        typer.Option(help="Use this world's rules, whichever world the trace is of."),
    ] = None,
    examples: Annotated[int, typer.Option(min=0, max=100, help="Wordings shown per action.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print all as JSON.")] = False,
) -> int:
    """Show what a policy keeps of a trace: per action kept, dropped and rejected, and its words.

    Needs no server and stores nothing.
    """
    from tickmind.cli.output import note, print_json
    from tickmind.cli.trial import try_policy
    from tickmind.policy import default_policy, load_policy

    rules = default_policy() if policy is None else load_policy(policy)
    trial = try_policy(file, rules, world=world, examples=examples, warn=note)
    if as_json:
        print_json(trial.as_json())
    else:
        _show(trial)
    return 1 if trial.bad_lines or trial.invalid else 0


def _show(trial: Trial) -> None:
    from tickmind.cli.output import safe, say, table

    rows: list[list[Any]] = [
        [
            name,
            action.decisions,
            action.kept,
            action.dropped,
            action.rejected,
            action.heard,
            ", ".join(f"{count} {why}" for why, count in action.why.most_common(_REASONS_SHOWN)),
        ]
        for name, action in trial.actions.items()
    ]
    headings = ["action", "decisions", "kept", "dropped", "rejected", "heard", "why not"]
    say(table(headings, rows, wide="why not"))
    stored = [
        [kind, importance, count]
        for (kind, importance), count in sorted(
            trial.memories.items(), key=lambda item: (-item[0][1], item[0][0])
        )
    ]
    if stored:
        say(table(["kind", "importance", "memories"], stored))
    for name, action in trial.actions.items():
        for words in action.examples:
            say(safe(f"{name}: {words}"))
    memories = sum(trial.memories.values())
    cut = f", {trial.hearers_cut} hearers cut" if trial.hearers_cut else ""
    say(
        "",
        f"{trial.decisions} decisions of {trial.ticks} ticks: {memories} memories,"
        f" {trial.heard} of them of hearers{cut}; {trial.bad_lines} bad lines",
    )
