"""`python -m benchmarks NAME [--json]`: run one benchmark and tell what it found."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable
from functools import partial

from benchmarks.report import Report
from tickmind.errors import TickmindError
from tickmind.local.signals import termination_cancels

#: Each is a module of its name here, with `run(report)`; where that takes a while, also with
#: `SMALL`, options of a smaller run.
NAMES = ("ingest", "recall", "exactness", "quality", "embedder", "town", "scale", "peers")


def main() -> int:
    """The exit code: 0 whatever the figures, 1 where they could not be measured."""
    parser = argparse.ArgumentParser(
        prog="benchmarks",
        description="Measure tickmind beside the bare minimum, in ratios of one run.",
        epilog="Example: python -m benchmarks recall --json",
    )
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--json", action="store_true", help="print one JSON object and no more")
    parser.add_argument("--small", action="store_true", help="a smaller run (peers, scale)")
    options = parser.parse_args()
    module = importlib.import_module(f"benchmarks.{options.name}")
    if options.small and not hasattr(module, "SMALL"):
        parser.error(f"{options.name} has no smaller run")
    run: Callable[[Callable[[str], None]], Awaitable[Report]]
    run = partial(module.run, options=module.SMALL) if options.small else module.run
    try:
        found = asyncio.run(_run(run))
    except TickmindError as exc:
        print(f"{options.name}: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(found.as_json() if options.json else found.as_table())
    return 0


async def _run(run: Callable[[Callable[[str], None]], Awaitable[Report]]) -> Report:
    with termination_cancels():
        return await run(lambda line: print(line, file=sys.stderr, flush=True))


if __name__ == "__main__":
    sys.exit(main())
