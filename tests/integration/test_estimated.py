"""What `tickmind estimate` says of a town, held to what embedding that town really sends."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.commands import run_here
from tests.remembering import counted, drained, embedder_settings, handling
from tickmind.database import Database
from tickmind.local.provider.running import Provider
from tickmind.local.town import town_path
from tickmind.pieces import estimate_tokens
from tickmind.policy import parse_policy
from tickmind.settings import DatabaseSettings
from tickmind_recorder.handler import Handler, Metrics

#: Ticks that the recorder stores at once.
_A_BATCH = 7


@pytest.mark.parametrize("use", ["none", "words", "embedded"])
@pytest.mark.parametrize("town", ["shipped", "smallville-zh"])
async def test_estimate_is_what_a_run_of_the_town_sends(
    town: str,
    use: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    database: Database,
    database_settings: DatabaseSettings,
    provider: Provider,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Text for text and token for token, what a talk answers included where it is embedded."""
    trace = town_path()
    if town != "shipped":
        trace = request.getfixturevalue("data") / town / "tick_ended.jsonl"
    rules = (files("tickmind") / "policy.yaml").read_text(encoding="utf-8")
    assert rules.count("context: words") == 1
    rules = rules.replace("context: words", f"context: {use}")
    policy = tmp_path / "policy.yaml"
    policy.write_text(rules, encoding="utf-8")
    monkeypatch.setenv("TICKMIND_EMBEDDING_DIMENSIONS", "64")
    done = run_here(capsys, monkeypatch, "estimate", str(trace), "--policy", str(policy), "--json")
    assert done.code == 0, done.err
    estimated = done.json

    recorder = Handler(database, parse_policy(rules, source="test"), Metrics(CollectorRegistry()))
    lines = trace.read_bytes().splitlines()
    settings = embedder_settings(database_settings, provider.base_url)
    async with handling(database, settings) as embedder:
        await embedder.generation()
        for first in range(0, len(lines), _A_BATCH):
            await recorder.store(
                [recorder.read(line, "tick.ended.v1.town") for line in lines[first:][:_A_BATCH]]
            )
        await drained(embedder)

    billed = provider.ledger.billed_texts
    assert set(billed.values()) == {1}
    assert any("\n" in text for text in billed) == (use == "embedded")
    assert estimated["memories"] == await counted(database, "memory")
    assert estimated["texts"] == await counted(database, "embedding")
    assert estimated["inputs"] == len(billed)
    assert estimated["tokens"] == sum(map(estimate_tokens, billed))
