"""The suite's servers, seed and figures; `./dev chaos` runs it, `./dev test` does not.

TICKMIND_CHAOS_SEED repeats a run's choices (the time of a kill, who it hits, what is asked);
TICKMIND_CHAOS_JSON names a file for the figures.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chaos.figures import Figures, as_json, table
from tests.chaos.replay import Trace, data_trace, load_trace
from tests.chaos.stack import Stack, running_stack
from tests.chaos.town import Scenario

#: A scenario takes 20 to 60 s on 2 idle cores, several times as long beside other work.
_TIMEOUT_S = 900

_SEED = pytest.StashKey[int]()
_JSON = pytest.StashKey[str]()
_FIGURES = pytest.StashKey[list[Figures]]()


def pytest_configure(config: pytest.Config) -> None:
    # Now: a fixture for all tests takes the developer's settings out of the environment.
    given = os.environ.get("TICKMIND_CHAOS_SEED")
    config.stash[_SEED] = int(given) if given else secrets.randbelow(10**6)
    config.stash[_JSON] = os.environ.get("TICKMIND_CHAOS_JSON", "")
    config.stash[_FIGURES] = []


def pytest_report_header(config: pytest.Config) -> str:
    return f"chaos: TICKMIND_CHAOS_SEED={config.stash[_SEED]}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.chaos)
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    runs = config.stash[_FIGURES]
    if not runs:
        return
    seed = config.stash[_SEED]
    terminalreporter.section(f"chaos, TICKMIND_CHAOS_SEED={seed}")
    for line in table(runs):
        terminalreporter.line(line)
    if path := config.stash[_JSON]:
        Path(path).write_text(as_json(runs, seed=seed) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
async def stack() -> AsyncIterator[Stack]:
    """Servers for the whole suite; a scenario that breaks them mends them."""
    async with running_stack() as running:
        yield running


@pytest.fixture(scope="session")
def trace(data: Path) -> Trace:
    return load_trace(data_trace(data))


@pytest.fixture
def scenario(request: pytest.FixtureRequest, trace: Trace) -> Scenario:
    """This test's name, seed, trace, and where its figures go."""
    stash = request.config.stash
    name = request.node.name.removeprefix("test_").replace("[", "-").rstrip("]")
    return Scenario(name=name, seed=stash[_SEED], trace=trace, told=stash[_FIGURES])
