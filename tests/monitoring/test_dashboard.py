"""The dashboard shows something: every query of it, asked of a Prometheus that watched a town.

Not among the tests that run by themselves, since it takes a minute: `./dev test tests/monitoring`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.monitoring.files import ALERTS, DASHBOARDS, expressions, filled_in, tool
from tests.recording import wire
from tests.running import eventually, settings_for
from tickmind import MemoryClient
from tickmind.local.ports import free_port
from tickmind.local.provider.faults import Status
from tickmind.local.provider.running import Provider
from tickmind.local.town import load_questions, load_ticks
from tickmind.service import App, run
from tickmind.settings import BrokerSettings, DatabaseSettings, HealthSettings
from tickmind_embedder.app import create_app as create_embedder
from tickmind_embedder.settings import EmbedderSettings
from tickmind_recorder.app import create_app as create_recorder
from tickmind_recorder.settings import RecorderSettings
from tickmind_retriever.app import create_app as create_retriever
from tickmind_retriever.settings import RetrieverSettings

#: What Grafana fills in. Scraped each second, a rate over ten seconds has several samples.
_FILLED_IN = {"$__rate_interval": "10s", "$__range": "1m", "$namespace": ".*"}
#: How long the town lives and is watched.
_WATCHED_S = 45.0


class _Prometheus:
    """Its HTTP API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    async def ask(self, path: str, **parameters: str) -> Any:
        async with httpx2.AsyncClient() as http:
            answer = await http.get(f"{self._url}/{path}", params=parameters)
        told = answer.json()
        assert told["status"] == "success", told
        return told["data"]

    async def targets_up(self) -> list[str]:
        with contextlib.suppress(httpx2.TransportError, json.JSONDecodeError):
            found = await self.ask("query", query="up == 1")
            return sorted(one["metric"]["job"] for one in found["result"])
        return []

    async def values(self, query: str) -> list[float]:
        """What a query gives now, without what is no number."""
        found = await self.ask("query", query=query)
        numbers = [float(one["value"][1]) for one in found["result"]]
        return [number for number in numbers if math.isfinite(number)]


@asynccontextmanager
async def _prometheus(folder: Path, targets: Mapping[str, int]) -> AsyncIterator[_Prometheus]:
    """A private server that scrapes each second, with our alerts."""
    rules = []
    for path in ALERTS:
        rules.append(folder / path.name)
        rules[-1].write_text(filled_in(path), encoding="utf-8")
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [
            # As the Prometheus operator labels what a ServiceMonitor finds.
            {
                "job_name": name,
                "static_configs": [
                    {
                        "targets": [f"127.0.0.1:{port}"],
                        "labels": {"namespace": "ns", "service": f"t-{name}"},
                    }
                ],
            }
            for name, port in targets.items()
        ],
    }
    file = folder / "prometheus.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        tool("prometheus"),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=DEVNULL,
    )
    try:
        yield _Prometheus(port)
    finally:
        process.terminate()
        async with asyncio.timeout(30):
            await process.wait()


@asynccontextmanager
async def _services(*apps: App) -> AsyncIterator[dict[str, int]]:
    """Run services with their health endpoints; the port of each by its name."""
    ports = {app.name: free_port() for app in apps}
    stop = asyncio.Event()
    settings = [HealthSettings(health_host="127.0.0.1", health_port=ports[a.name]) for a in apps]
    runs = [
        asyncio.create_task(run(app, its, stop)) for app, its in zip(apps, settings, strict=True)
    ]
    try:
        yield ports
    finally:
        stop.set()
        await asyncio.gather(*runs)


async def _live(broker: BrokerSettings, provider: Provider) -> None:
    """A town's days, one after the other, and what its agents are asked."""
    town, questions = list(load_ticks()), load_questions()
    async with MemoryClient(broker.broker_url()) as memory, wire(broker) as opened:
        for day in range(1_000):
            await opened.send(b"a message that is no tick")
            provider.faults.add(Status(code=503))
            for number, tick in enumerate(town):
                world = f"{tick['world']}-{day}"
                await memory.publish_tick(world, tick["tick"], tick["decisions"])
                question = questions[number % len(questions)]
                seen = [(question.agent, f"{question.observation} ({day}, {number})")]
                await memory.recall_many(world, seen, tick=tick["tick"], timeout_s=2)


async def test_every_query_of_the_dashboard_gives_data_of_a_town_that_lives(
    database_settings: DatabaseSettings,
    broker_settings: BrokerSettings,
    provider: Provider,
    tmp_path: Path,
) -> None:
    servers = database_settings, broker_settings
    api: dict[str, Any] = {
        "embedding_provider": "openai",
        "embedding_base_url": provider.base_url,
        "embedding_api_key": "a key",
        "embedding_model": "test",
        # More than the town asks for on a quick machine: it is watched while calls are made.
        "embedding_limits": "60000 texts/min, 9M tokens/min",
        "embedding_price": 0.15,
    }
    apps = (
        create_recorder(settings_for(RecorderSettings, *servers)),
        create_embedder(
            settings_for(EmbedderSettings, *servers, **api, embedder_signatures_from=100)
        ),
        # Every agent is a large one, and every recall is looked into again.
        create_retriever(
            settings_for(
                RetrieverSettings,
                *servers,
                **api,
                retriever_signatures_from=1,
                retriever_audit_one_in=1,
            )
        ),
    )
    async with _services(*apps) as ports, _prometheus(tmp_path, ports) as prometheus:
        names = sorted(ports)
        await eventually(prometheus.targets_up, lambda up: up == names, what="targets")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WATCHED_S):
                await _live(broker_settings, provider)
        empty = []
        for path in DASHBOARDS:
            for title, expression in expressions(path):
                query = expression
                for name, value in _FILLED_IN.items():
                    query = query.replace(name, value)
                values = await prometheus.values(query)
                print(f"{title}: {len(values)} series, such as {values[:3]}")
                if not values:
                    empty.append((title, query))
        assert empty == []
        rules = await prometheus.ask("rules")
        states = {
            rule["name"]: (rule["health"], rule["state"])
            for group in rules["groups"]
            for rule in group["rules"]
        }
        print(states)
        assert {health for health, _ in states.values()} == {"ok"}
