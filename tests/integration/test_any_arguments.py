"""The command line with anything on it: what it says is a sentence, never a traceback."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests.commands import servers_of
from tests.remembering import remember
from tickmind.cli import main
from tickmind.database import Database
from tickmind.settings import BrokerSettings, DatabaseSettings

#: `@` is where it goes.
_COMMANDS = (
    "status @",
    "gaps @",
    "rejects list --world @ --most @",
    "rejects list --world @",
    "rejects retry @",
    "rejects drop @ --yes",
    "parked list --most @",
    "parked retry @",
    "delete world @ --yes",
    "space add --profile openai-compatible --model m --dimensions @",
    "space add --profile openai-compatible --model @ --base-url @ --set @",
    "space activate @ --yes",
    "policy test @",
    "policy test /dev/null --policy @",
    "estimate /dev/null --limits @",
    "publish @",
    "recall @ @ @ --tick 1 --timeout 0.05",
    "recall town alice hi --tick @ --weights @ --timeout 0.05",
    "recall town alice hi --tick 1 --kinds @ --timeout 0.05",
)
_VALUES = ("", "-1", "9" * 25, "nan", "\udcff\udcfe", "界" * 300, "..", "a\nb")


async def test_any_argument_is_answered_in_words(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    database: Database,
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
) -> None:
    """In this process, on real servers; a fault of ours would be raised."""
    await remember(database, ["the market sells fish"])
    for name, value in servers_of(database_settings, broker_settings).items():
        monkeypatch.setenv(name, value)
    wrong = []
    for command in _COMMANDS:
        for value in _VALUES:
            given = [part.replace("@", value) for part in command.split(" ")]
            monkeypatch.setattr(sys, "argv", ["tickmind", *given])
            try:
                code = await asyncio.to_thread(main)
            except Exception as exc:
                raise AssertionError(f"{command!r} with {value[:40]!r}") from exc
            said = capsys.readouterr()
            if code not in (0, 1, 2, None) or (code and not (said.err + said.out).strip()):
                wrong.append(f"{command!r} {value[:40]!r}: {code}, {said.err[:200]!r}")
    assert wrong == []
