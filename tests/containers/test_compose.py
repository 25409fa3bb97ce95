"""docker-compose.yml run for real: a town lives in it while its parts are killed and restarted."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.containers.commands import COMPOSE, run, tool
from tests.containers.compose import LOOPBACK, Compose
from tests.containers.engine import Engine
from tests.e2e.documents import ROOT
from tests.running import SOUND, eventually, settled
from tickmind import Answer, MemoryClient
from tickmind.database import Database
from tickmind.local.environment import answers_ok

SERVICES = ("recorder", "embedder", "retriever")

#: The project's own containers, by service; the others run official images.
OURS = (*SERVICES, "roles", "users", "migrate", "embedding")


def _said(agent: str, words: str, *hearers: str) -> dict[str, Any]:
    return {"agent": agent, "action": "talk", "speech": words, "heard_by": list(hearers)}


def _since(containers: list[dict[str, Any]]) -> dict[str, tuple[str, int]]:
    """By container: since when it runs, and how often it was restarted."""
    return {c["Name"]: (c["State"]["StartedAt"], c["RestartCount"]) for c in containers}


async def _health(project: Compose, wanted: str, *services: str) -> None:
    """Wait until all containers of these services are what is wanted, by their healthchecks."""

    async def health() -> list[str]:
        return [c["State"]["Health"]["Status"] for c in await project.inspected(*services)]

    await eventually(
        health, lambda now: set(now) == {wanted}, what=" ".join(services), timeout_s=90
    )


async def _recalled(client: MemoryClient, world: str, agent: str, seen: str, *, tick: int) -> str:
    """The fragment of the first recall that is answered with something, within a minute."""

    async def ask() -> Answer:
        return await client.recall(world, agent, seen, tick=tick, timeout_s=5.0)

    found = await eventually(
        ask, lambda answer: bool(answer.fragment), what=f"{agent}'s memory", timeout_s=60
    )
    return found.fragment


async def _unload(project: Compose, world: str, *, crates: int) -> None:
    """Publish so many observations, each of a text of its own."""
    texts = [f"Crate number {n} of {world} holds {n * 7} nails" for n in range(crates)]
    async with MemoryClient(project.amqp_url()) as client:
        receipt = await client.publish_tick(
            world, 1, [{"agent": "dan", "action": "observe", "text": text} for text in texts]
        )
    assert receipt.confirmed, receipt.reason


async def _batches(database: Database) -> int:
    """How many batches of texts some embedder holds a lease of."""
    async with database.reading() as session:
        counted = await session.execute(
            text(
                "SELECT count(DISTINCT lease_token) FROM embedding_job"
                " WHERE lease_until > clock_timestamp()"
            )
        )
        return int(counted.scalar_one())


async def test_compose_says_which_passwords_are_missing(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "docker-compose.yml").write_text((ROOT / "docker-compose.yml").read_text())
    (tmp_path / ".env").write_text((ROOT / ".env.example").read_text())
    refused = await run(
        [*await tool(COMPOSE), "config", "--quiet"], cwd=tmp_path, env=engine.env, check=False
    )
    assert refused.code != 0
    assert "is missing a value: missing in .env, which ./dev secrets makes" in refused.err


async def test_containers_can_write_nowhere_and_gain_nothing(compose: Compose) -> None:
    containers = await compose.inspected()
    services = {c["Config"]["Labels"]["com.docker.compose.service"]: c for c in containers}
    assert set(services) == {*OURS, "postgres", "rabbitmq"}
    for name, container in services.items():
        host = container["HostConfig"]
        assert host["ReadonlyRootfs"], name
        assert host["CapDrop"] == ["ALL"], name
        assert not host["CapAdd"], name
        assert host["SecurityOpt"] == ["no-new-privileges:true"], name
        assert not host["Privileged"], name
        wanted = "10001:10001" if name in OURS else name
        assert container["Config"]["User"] == wanted, name
        for bindings in host["PortBindings"].values():
            assert [bound["HostIp"] for bound in bindings] == [LOOPBACK], name


@pytest.mark.parametrize("service", [*SERVICES, "embedding", "postgres", "rabbitmq"])
async def test_process_in_a_container_has_no_root_and_no_capability(
    compose: Compose, service: str
) -> None:
    status = (await compose("exec", "-T", service, "cat", "/proc/1/status")).out
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert "0" not in fields["Uid"].split()
    assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == 0
    assert fields["NoNewPrivs"] == "1"
    tried = await compose("exec", "-T", service, "touch", "/usr/local/mark", check=False)
    assert tried.code != 0
    assert "Read-only file system" in tried.err


async def test_town_published_from_the_host_is_recalled(compose: Compose) -> None:
    """case 44: in containers as well, with passwords of every odd character."""
    async with MemoryClient(compose.amqp_url()) as client:
        receipt = await client.publish_tick(
            "harbour", 42, [_said("bob", "The market sells fresh fish", "alice")]
        )
        assert receipt.confirmed, receipt.reason
        fragment = await _recalled(
            client, "harbour", "alice", "Alice walks past the market", tick=200
        )
    assert "bob told me: The market sells fresh fish" in fragment
    status = await compose("run", "--pull=never", "--rm", "-T", "cli", "status", "--json")
    assert "harbour" in status.out


async def test_killed_embedder_costs_nothing_among_three(compose: Compose, engine: Engine) -> None:
    """case 26: killed in the middle of its batches, in containers of different host names."""
    await compose.up("--no-recreate", "--scale", "embedder=3")
    embedders = await compose.inspected("embedder")
    assert len({c["Config"]["Hostname"] for c in embedders}) == 3
    [server] = await compose.containers("embedding")
    database = compose.database()
    try:
        # Nobody's call is answered while the server is paused: all three are mid-batch.
        await engine.docker("pause", server)
        await _unload(compose, "wharf", crates=120)
        # Two calls at once is each one's default.
        await eventually(lambda: _batches(database), lambda n: n == 6, what="batches under way")
        await engine.docker("kill", "--signal", "KILL", embedders[0]["Id"])
        await engine.docker("unpause", server)
        assert await settled(database, "wharf", memories=120, timeout_s=90) == SOUND
    finally:
        await engine.docker("unpause", server, check=False)
        await database.dispose()
    [killed] = [c for c in await compose.inspected("embedder") if c["State"]["Status"] == "exited"]
    assert (killed["Id"], killed["State"]["ExitCode"]) == (embedders[0]["Id"], 137)
    await compose.up("--no-recreate", "--scale", "embedder=1")


async def test_restarted_broker_is_found_again_by_all(compose: Compose) -> None:
    """case 36: nobody restarts the services, and a tick published after it is remembered."""
    before = _since(await compose.inspected(*SERVICES))
    await compose("restart", "rabbitmq")
    async with MemoryClient(compose.amqp_url()) as client:
        receipt = await client.publish_tick(
            "harbour",
            43,
            [_said("carol", "The lighthouse is being painted red", "dan")],
            timeout_s=60,
        )
        assert receipt.confirmed, receipt.reason
        fragment = await _recalled(client, "harbour", "dan", "Dan sees the lighthouse", tick=44)
    assert "carol told me: The lighthouse is being painted red" in fragment
    await _health(compose, "healthy", *SERVICES)
    assert _since(await compose.inspected(*SERVICES)) == before


async def test_database_that_is_away_makes_unready_and_restarts_nobody(compose: Compose) -> None:
    """case 46: live all the while; a tick published meanwhile is stored when it is back."""
    before = _since(await compose.inspected(*SERVICES))
    ports = [port for service in SERVICES for port in await compose.health_ports(service)]

    async def unready() -> list[bool]:
        return [not await answers_ok(port, "/readyz") for port in ports]

    await compose("stop", "postgres")
    await eventually(unready, all, what="unready")
    assert all([await answers_ok(port, "/livez") for port in ports])
    async with MemoryClient(compose.amqp_url()) as client:
        receipt = await client.publish_tick("harbour", 45, [_said("eve", "Rain is coming", "bob")])
        assert receipt.confirmed, receipt.reason
        await _health(compose, "unhealthy", *SERVICES)
        assert all([await answers_ok(port, "/livez") for port in ports])
        await compose("start", "postgres")
        await _health(compose, "healthy", "postgres", *SERVICES)
        fragment = await _recalled(client, "harbour", "bob", "Bob looks at the sky", tick=46)
    assert "eve told me: Rain is coming" in fragment
    assert _since(await compose.inspected(*SERVICES)) == before


async def test_five_migrations_at_once_all_succeed(compose: Compose) -> None:
    """case 41: in containers of their own, on an empty database."""
    await compose(
        *("exec", "-T", "postgres", "createdb", "--username=postgres", "fresh"),
    )
    await compose(
        *("run", "--pull=never", "--rm", "-T", "--no-deps", "--env", "DATABASE=fresh", "roles")
    )
    once = (
        "run",
        "--pull=never",
        "--rm",
        "-T",
        "--no-deps",
        "--env",
        "TICKMIND_DATABASE_NAME=fresh",
        "migrate",
    )
    ended = await asyncio.gather(*(compose(*once, check=False) for _ in range(5)))
    assert [one.code for one in ended] == [0] * 5, [one.err for one in ended]
    database = compose.database("fresh")
    try:
        assert await database.check() is None
    finally:
        await database.dispose()


async def test_embedder_stopped_in_the_middle_of_batches_leaves_none_leased(
    compose: Compose,
) -> None:
    database = compose.database()
    try:
        await _unload(compose, "quay", crates=200)
        await eventually(lambda: _batches(database), bool, what="batches under way")
        await compose("stop", "embedder")
        [stopped] = await compose.inspected("embedder")
        assert stopped["State"]["ExitCode"] == 0
        assert await _batches(database) == 0
        await compose.up()
        assert await settled(database, "quay", memories=200, timeout_s=90) == SOUND
    finally:
        await database.dispose()


async def test_services_end_at_sigterm_with_0_and_take_up_again(compose: Compose) -> None:
    begun = time.monotonic()
    await compose("stop", *SERVICES)
    took = time.monotonic() - begun
    ended = [c["State"] for c in await compose.inspected(*SERVICES)]
    assert [state["ExitCode"] for state in ended] == [0] * len(ended)
    # The shortest of their grace periods.
    assert took < 30
    await compose.up()
    async with MemoryClient(compose.amqp_url()) as client:
        fragment = await _recalled(client, "harbour", "alice", "Alice is hungry for fish", tick=300)
    assert "fresh fish" in fragment
