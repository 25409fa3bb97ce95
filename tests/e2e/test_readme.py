"""The documents say what is so: what README.md shows runs, what it lists is all there is."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from prometheus_client import CollectorRegistry
from pydantic import SecretStr
from typer.core import TyperCommand, TyperGroup

from tests.e2e.documents import DOCUMENTS, README, ROOT, blocks, rows
from tests.e2e.services import serving
from tests.e2e.wire import validator
from tests.running import SOUND, settled
from tickmind import topology
from tickmind.cli.app import create_app
from tickmind.database import Database
from tickmind.policy import Action, default_policy
from tickmind.settings import PREFIX, BrokerSettings, DatabaseSettings, Settings
from tickmind_embedder.app import create_app as create_embedder
from tickmind_embedder.settings import EmbedderSettings
from tickmind_recorder.app import create_app as create_recorder
from tickmind_recorder.settings import RecorderSettings
from tickmind_retriever.app import create_app as create_retriever
from tickmind_retriever.settings import RetrieverSettings

SETTINGS: tuple[type[Settings], ...] = (RecorderSettings, EmbedderSettings, RetrieverSettings)


# --- What it shows, run -----------------------------------------------------------------------


@pytest.fixture
async def url(
    database_settings: DatabaseSettings, broker_settings: BrokerSettings
) -> AsyncIterator[str]:
    async with serving(database_settings, broker_settings):
        yield broker_settings.broker_url()


async def _python(*arguments: str, cwd: Path) -> str:
    """Standard output of a Python process that must succeed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        cwd=cwd,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    return output.decode()


async def test_client_of_the_readme_remembers_on_its_first_run(
    url: str, database: Database, tmp_path: Path
) -> None:
    """Printed is what the block below it shows; twice changes nothing."""
    [code] = blocks("python")
    shown = "amqp://guest:guest@localhost:5672"
    assert code.count(shown) == 1
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    script = tmp_path / "client.py"
    script.write_text(code.replace(shown, url), encoding="utf-8")

    for _ in range(2):
        printed = await _python(str(script), cwd=tmp_path)

        assert f"```\n{printed}```" in README
        assert "bob told me: We sell fish" in printed
        assert await settled(database, "town-7", memories=2) == SOUND


async def test_example_engine_runs_and_its_agents_remember(url: str, tmp_path: Path) -> None:
    output = await _python(str(ROOT / "examples" / "engine.py"), url, cwd=tmp_path)

    assert "tick 12, alice: ok" in output
    assert "- bob told me: It is 8 o'clock and the market sells fresh fish" in output


def test_messages_of_the_readme_fulfil_the_published_schemas() -> None:
    tick, request, reply = (json.loads(block) for block in blocks("json")[:3])
    validator("tick.ended").validate(tick)
    validator("recall").validate(request)
    validator("recall.reply").validate(reply)


# --- What it lists, all of it and nothing else ------------------------------------------------


def _shown(value: Any) -> str:
    """A setting's default as the table shows it."""
    plain = value.get_secret_value() if isinstance(value, SecretStr) else value
    if plain is None or plain == "":
        return ""
    if isinstance(plain, bool):
        return f"`{str(plain).lower()}`"
    return f"`{plain:g}`" if isinstance(plain, float) else f"`{plain}`"


def test_settings_of_the_readme_are_all_there_are_with_their_defaults() -> None:
    fields = {
        f"{PREFIX}{name.upper()}": _shown(field.default)
        for settings in SETTINGS
        for name, field in settings.model_fields.items()
    }
    listed = {row[0].strip("`"): row[1] for row in rows() if row[0].startswith(f"`{PREFIX}")}
    assert listed == fields


@pytest.mark.parametrize("document", DOCUMENTS)
def test_variables_named_in_a_document_exist(document: str) -> None:
    known = {f"{PREFIX}{name.upper()}" for kind in SETTINGS for name in kind.model_fields}
    known |= _variables_of_commands()
    # Where the tests find the traces, what the fuzzers try, what the chaos suite is told.
    known |= {"TICKMIND_DATA", "TICKMIND_FUZZ_FACTOR", "TICKMIND_FUZZ_SEED"}
    known |= {"TICKMIND_CHAOS_JSON", "TICKMIND_CHAOS_SEED"}
    known |= {f"{name}_FILE" for name in known}
    named = set(re.findall(r"TICKMIND_[A-Z_]*[A-Z]\b(?!\*|_\*)", (ROOT / document).read_text()))
    assert named <= known


def _commands(command: object) -> Iterator[TyperCommand]:
    """Every command below one, the groups left out."""
    if isinstance(command, TyperGroup):
        for below in command.commands.values():
            yield from _commands(below)
    elif isinstance(command, TyperCommand):
        yield command


def _variables_of_commands() -> set[str]:
    """What options of the command line can also be told by."""
    found: set[str] = set()
    for command in _commands(typer.main.get_command(create_app())):
        for option in command.params:
            named = option.envvar or ()
            found |= {named} if isinstance(named, str) else set(named)
    return {name for name in found if name.startswith(PREFIX)}


def test_readme_names_every_variable_of_the_command_line() -> None:
    assert {name for name in _variables_of_commands() if f"`{name}`" not in README} == set()


def _metrics(registry: CollectorRegistry) -> Iterator[tuple[str, frozenset[str]]]:
    """Names as Prometheus shows them, with their labels."""
    for collector in registry._collector_to_names:
        labels = frozenset(getattr(collector, "_labelnames", ()))
        for family in collector.collect():
            yield family.name + ("_total" if family.type == "counter" else ""), labels


def test_metrics_of_the_readme_are_all_there_are_with_their_labels() -> None:
    registries = (
        create_recorder(RecorderSettings()).registry,
        create_embedder(EmbedderSettings(embedding_provider="hash")).registry,
        create_retriever(RetrieverSettings(embedding_provider="hash")).registry,
    )
    exported = {name: labels for registry in registries for name, labels in _metrics(registry)}
    listed = {
        row[0].strip("`"): frozenset(re.findall(r"`(\w+)`", row[1]))
        for row in rows()
        if row[0].startswith("`tickmind_")
    }
    assert listed == exported


def _missing(words: list[str], command: object) -> str | None:
    """The first word of a command line that names no command; None: all do."""
    for word in words:
        if not isinstance(command, TyperGroup):
            return None  # its arguments
        found = command.commands.get(word)
        if found is None:
            return word
        command = found
    return None


def _command_lines(text: str) -> list[list[str]]:
    """What follows `tickmind` in shell blocks and inline code, up to the first word that cannot
    be a command."""
    code, fence = [], None
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fence = line.lstrip().removeprefix("```") or "sh" if fence is None else None
        elif fence is None:
            code += re.findall(r"`[^`]+`", line)
        elif fence == "sh":
            code.append(line)
    lines = re.findall(r"\btickmind((?: [a-z]+\b(?![/.:=]))+)", "\n".join(code))
    return [line.split() for line in lines]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_named_in_a_document_exist(document: str) -> None:
    root = typer.main.get_command(create_app())
    lines = _command_lines((ROOT / document).read_text(encoding="utf-8"))
    assert [line for line in lines if _missing(line, root)] == []


def test_readme_names_every_command() -> None:
    root = typer.main.get_command(create_app())
    assert isinstance(root, TyperGroup)
    assert {line[0] for line in _command_lines(README)} == set(root.commands)


def test_queues_of_the_readme_are_the_topology() -> None:
    listed = json.loads(blocks("json")[3])
    queues = (
        topology.RECORDER_QUEUE,
        topology.RECALL_QUEUE,
        topology.EMBEDDER_QUEUE,
        topology.DEAD_LETTER_QUEUE,
    )
    expected: dict[str, Any] = {topology.EVENTS.name: f"{topology.EVENTS.type} exchange"}
    for queue in queues:
        expected[queue.name] = dict(queue.arguments)
        if queue.exchange is not None:
            kind = "" if queue.exchange is topology.EVENTS else f" ({queue.exchange.type} exchange)"
            expected[queue.name][f"bound to {queue.exchange.name}{kind} by"] = queue.bind_key
    assert listed == expected


def test_policy_of_the_readme_is_the_one_that_ships() -> None:
    defaults = default_policy().defaults
    listed = {
        row[0].strip("`"): (row[1], row[2]) for row in rows() if row[0] in _names(defaults.actions)
    }
    expected = {
        name: (str(action.importance), action.kind) if isinstance(action, Action) else ("–", "–")
        for name, action in defaults.actions.items()
    }
    assert listed == expected
    assert isinstance(defaults.other, Action)
    row = ["any other, with words", str(defaults.other.importance), defaults.other.kind]
    assert row in [row[:3] for row in rows()]


def _names(actions: dict[str, Any]) -> set[str]:
    return {f"`{name}`" for name in actions}
