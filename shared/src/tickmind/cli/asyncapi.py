"""`asyncapi`: the wire contracts as a document."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tickmind.cli.output import examples

__all__ = ["register"]

_EXAMPLE = examples(
    "tickmind asyncapi",
    "tickmind asyncapi --output asyncapi.json",
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Fit it to your engine", epilog=_EXAMPLE)(asyncapi)


def asyncapi(
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write here; JSON if it ends in .json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of YAML.")] = False,
) -> None:
    """Print the messages' contracts as AsyncAPI 3.0, in YAML."""
    import json

    from tickmind.asyncapi import document
    from tickmind.errors import ConfigurationError

    if as_json or (output is not None and output.suffix == ".json"):
        text = json.dumps(document(), ensure_ascii=False, indent=2) + "\n"
    else:
        text = _yaml(document())
    if output is None:
        print(text, end="")
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise ConfigurationError(f"cannot write {output}: {exc.strerror}") from exc


def _yaml(value: object) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Texts of several lines as such, and no anchors, which not every reader follows."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, words: str) -> yaml.ScalarNode:
        style = "|" if "\n" in words else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", words, style=style)

    Dumper.add_representer(str, text)
    dumped = yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
    return str(dumped)
