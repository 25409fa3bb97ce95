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
NAMES = ("ingest", "recall", "exactness", "quality", "embedder", "town", "scale", "peers", "soak")


def main() -> int:
    """The exit code: 0 whatever the figures, 1 where they could not be measured."""
    parser = argparse.ArgumentParser(
        prog="benchmarks",
        description="Measure tickmind beside the bare minimum, in ratios of one run.",
        epilog="Example: python -m benchmarks recall --json",
    )
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--json", action="store_true", help="print one JSON object and no more")
    parser.add_argument("--small", action="store_true", help="a smaller run (peers, scale, soak)")
    parser.add_argument("--minutes", type=_minutes, help="of sustained load (soak)")
    options = parser.parse_args()
    module = importlib.import_module(f"benchmarks.{options.name}")
    if options.small and not hasattr(module, "SMALL"):
        parser.error(f"{options.name} has no smaller run")
    if options.minutes is not None and options.name != "soak":
        parser.error(f"{options.name} takes as long as it takes: --minutes is for soak")
    run: Callable[[Callable[[str], None]], Awaitable[Report]]
    run = partial(module.run, options=module.SMALL) if options.small else module.run
    if options.minutes is not None:
        run = partial(module.run, options=module.Options(minutes=options.minutes))
    try:
        found = asyncio.run(_run(run))
    except TickmindError as exc:
        print(f"{options.name}: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(found.as_json() if options.json else found.as_table())
    return 0


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0.5 <= minutes <= 24 * 60:
        msg = "from 0.5 to 1440"
        raise argparse.ArgumentTypeError(msg)
    return minutes


async def _run(run: Callable[[Callable[[str], None]], Awaitable[Report]]) -> Report:
    with termination_cancels():
        return await run(lambda line: print(line, file=sys.stderr, flush=True))


if __name__ == "__main__":
    sys.exit(main())
