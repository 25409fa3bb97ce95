"""`python -m tickmind.local.provider`: the test provider as a process of its own."""

from __future__ import annotations

import asyncio
import signal
from typing import Annotated

import typer
from pydantic import ValidationError

from tickmind.local.provider.options import ProviderOptions, options_from_json
from tickmind.local.provider.running import running_provider

_EXAMPLE = """Serve OpenAI-compatible embeddings on a loopback port until interrupted.

Example: python -m tickmind.local.provider --port 8009
--options '{"native_width": 768, "limits": [{"unit": "text", "amount": 3000}]}'
"""


app = typer.Typer(add_completion=False)


@app.command(help=_EXAMPLE)
def main(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.")] = 0,
    options: Annotated[
        str, typer.Option(help="Options as a JSON object; see ProviderOptions.")
    ] = "{}",
) -> None:
    """Check the options, serve, and print the base URL as soon as connections are accepted."""
    try:
        chosen = options_from_json(options)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, found['loc'])) or 'JSON'}: {found['msg']}"
            for found in error.errors()
        )
        raise typer.BadParameter(problems, param_hint="--options") from error
    try:
        asyncio.run(_serve(port, chosen))
    except OSError as error:
        typer.echo(f"Port {port} cannot be used ({error.strerror}); choose another.", err=True)
        raise typer.Exit(1) from error


async def _serve(port: int, options: ProviderOptions) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with running_provider(options, port=port) as provider:
        typer.echo(provider.base_url)
        await stop.wait()


if __name__ == "__main__":
    app()
