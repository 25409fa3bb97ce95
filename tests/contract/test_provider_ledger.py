"""The ledger's figures, the control routes, and the provider as a process of its own."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator

import httpx2
import pytest
from typer.testing import CliRunner

from tickmind.local.provider.__main__ import app
from tickmind.local.provider.faults import Asked, Hang, Outage, Shuffled, Status, Throttle
from tickmind.local.provider.ledger import Ledger
from tickmind.local.provider.limits import Limit
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.remote import RemoteProvider
from tickmind.local.provider.running import Provider, running_provider
from tickmind.local.provider.triggers import Always, Next


class ManualClock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with running_provider(ProviderOptions(native_width=8)) as provider:
        yield provider


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(trust_env=False, verify=False) as client:
        yield client


async def embed(http: httpx2.AsyncClient, base_url: str, *texts: str) -> httpx2.Response:
    return await http.post(f"{base_url}/embeddings", json={"model": "m", "input": texts})


def call(
    ledger: Ledger,
    *texts: str,
    billed: bool = True,
    status: int = 200,
    retry_after_s: float | None = None,
) -> None:
    """One whole call, begun and ended at this moment of the clock."""
    number = ledger.begin()
    ledger.note_asked(number, Asked(texts=texts))
    if billed:
        ledger.note_billed(number, tokens=len(texts))
    else:
        ledger.note_refused(number, retry_after_s=retry_after_s, rejected=False)
    ledger.finish(number, status=status, delivered=True)


def test_times_sent_and_billed_count_every_occurrence() -> None:
    ledger = Ledger()
    call(ledger, "a", "a", "b")
    call(ledger, "a", billed=False, status=500)

    assert (ledger.times_sent("a"), ledger.times_billed("a")) == (3, 2)
    assert (ledger.times_sent("c"), ledger.times_billed("c")) == (0, 0)
    assert ledger.billed_texts == {"a": 2, "b": 1}


def test_totals_cover_the_asked_span_only() -> None:
    clock = ManualClock()
    ledger = Ledger(clock)
    for size in (1, 2, 3, 4):
        call(ledger, *"abcd"[:size])
        clock.now += 10.0

    assert ledger.totals().texts_billed == 10
    assert ledger.totals(start=110.0, end=130.0).texts_billed == 5
    assert ledger.totals(start=110.0, end=130.0).calls == 2


def test_early_calls_are_those_between_the_429_and_its_end() -> None:
    """Case 33, the provider's side."""
    clock = ManualClock()
    ledger = Ledger(clock)
    call(ledger, "a", billed=False, status=429, retry_after_s=7.0)
    for at in (100.02, 101.0, 106.9, 107.0, 109.0):
        clock.now = at
        call(ledger, f"at {at}")

    assert [early.asked.texts for early in ledger.early_calls()] == [("at 101.0",), ("at 106.9",)]
    assert len(ledger.early_calls(on_its_way_s=0.0)) == 3


def test_early_calls_know_the_longest_of_several_waits() -> None:
    clock = ManualClock()
    ledger = Ledger(clock)
    for at, retry_after_s in ((100.0, 50.0), (110.0, 5.0), (200.0, 1.0)):
        clock.now = at
        call(ledger, "told", billed=False, status=429, retry_after_s=retry_after_s)
    for at in (120.0, 149.0, 151.0, 200.5, 202.0):
        clock.now = at
        call(ledger, f"at {at}")

    found = [early.asked.texts[0] for early in ledger.early_calls()]
    assert found == ["told", "at 120.0", "at 149.0", "at 200.5"]


def test_reset_forgets_calls_in_flight_too() -> None:
    ledger = Ledger()
    call(ledger, "a")
    under_way = ledger.begin()

    ledger.reset()
    ledger.note_asked(under_way, Asked(texts=("late",)))
    ledger.note_billed(under_way, tokens=1)
    ledger.finish(under_way, status=200, delivered=True)
    call(ledger, "b")

    assert ledger.totals().calls == 1
    assert ledger.totals().in_flight == 0
    assert ledger.billed_texts == {"b": 1}
    assert ledger.calls[0].number == 2


async def test_wait_until_gives_up_after_its_time() -> None:
    with pytest.raises(TimeoutError):
        await Ledger().wait_until(lambda ledger: bool(ledger.calls), timeout_s=0.01)


async def test_call_is_written_down_with_what_it_asked(
    provider: Provider, http: httpx2.AsyncClient
) -> None:
    before = time.monotonic()

    await http.post(
        f"{provider.base_url}/embeddings",
        json={"model": "m", "input": ["a b", "c"], "dimensions": 4, "encoding_format": "base64"},
    )

    [written] = provider.ledger.calls
    assert written.asked == Asked(
        texts=("a b", "c"), model="m", dimensions=4, encoding_format="base64"
    )
    assert (written.tokens, written.status, written.billed) == (3, 200, True)
    assert (written.fault, written.delivered) == (None, True)
    assert written.finished_at is not None
    assert before <= written.started_at <= written.finished_at <= time.monotonic()


async def test_caller_who_leaves_in_the_middle_of_its_request_is_written_down(
    provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    port = int(provider.url.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    await provider.ledger.wait_until(lambda ledger: ledger.totals().in_flight == 1)

    writer.close()
    await provider.ledger.wait_until(lambda ledger: ledger.totals().in_flight == 0)

    [written] = provider.ledger.calls
    assert (written.status, written.billed, written.delivered) == (None, False, False)
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []


async def test_highest_concurrency_is_kept(provider: Provider, http: httpx2.AsyncClient) -> None:
    provider.faults.add(Hang(), Next(requests=3))
    asked = [asyncio.create_task(embed(http, provider.base_url, f"t{n}")) for n in range(3)]
    await provider.ledger.wait_until(lambda ledger: ledger.totals().texts_billed == 3)
    provider.faults.release()
    await asyncio.gather(*asked)

    await embed(http, provider.base_url, "alone")

    totals = provider.ledger.totals()
    assert (totals.max_concurrency, totals.in_flight) == (3, 0)
    assert totals.faults == {"hang": 3}


async def test_control_scripts_faults_and_reads_the_ledger(
    provider: Provider, http: httpx2.AsyncClient
) -> None:
    remote = RemoteProvider(provider.url)
    await remote.add_fault(Throttle(retry_after_s=5.0))
    rule = await remote.add_fault(Outage(), Always())
    assert [found.fault.kind for found in await remote.faults()] == ["throttle", "outage"]

    statuses = [(await embed(http, remote.base_url, "a")).status_code for _ in range(2)]
    await remote.end_faults(rule)
    statuses.append((await embed(http, remote.base_url, "a", "b")).status_code)

    assert statuses == [429, 503, 200]
    totals = await remote.totals()
    assert totals == provider.ledger.totals()
    assert (totals.calls_while_down, totals.rejections, totals.texts_billed) == (1, 1, 2)
    assert tuple(await remote.calls()) == provider.ledger.calls
    assert [found.number for found in await remote.calls(first=2)] == [2]
    assert await remote.billed_texts() == {"a": 1, "b": 1}
    assert await remote.early_calls() == provider.ledger.early_calls(on_its_way_s=0.05)
    assert (await remote.totals(since=provider.ledger.calls[2].started_at)).calls == 1


async def test_control_sets_limits_options_and_resets(
    provider: Provider, http: httpx2.AsyncClient
) -> None:
    remote = RemoteProvider(provider.url)
    await remote.set_limits([Limit(unit="call", amount=1)], time_scale=0.5)
    statuses = [(await embed(http, remote.base_url, "a")).status_code for _ in range(2)]
    assert statuses == [200, 429]
    assert (await remote.options()).time_scale == 0.5

    await remote.add_fault(Shuffled(), Always())
    await remote.reset()
    assert await remote.faults() == []
    assert (await remote.totals()).calls == 0
    assert (await embed(http, remote.base_url, "a")).status_code == 200

    await remote.set_options(ProviderOptions(native_width=4))
    reply = await embed(http, remote.base_url, "a")
    assert len(reply.json()["data"][0]["embedding"]) == 4


async def test_control_releases_what_hangs(provider: Provider, http: httpx2.AsyncClient) -> None:
    remote = RemoteProvider(provider.url)
    await remote.add_fault(Hang())
    asked = asyncio.create_task(embed(http, remote.base_url, "a"))
    await provider.ledger.wait_until(lambda ledger: ledger.totals().texts_billed == 1)

    await remote.release()

    assert (await asked).status_code == 200


async def test_reset_lets_go_of_what_hangs(provider: Provider, http: httpx2.AsyncClient) -> None:
    provider.faults.add(Hang(), Always())
    asked = asyncio.create_task(embed(http, provider.base_url, "a"))
    await provider.ledger.wait_until(lambda ledger: ledger.totals().texts_billed == 1)

    provider.reset()

    assert (await asked).status_code == 200
    assert (await embed(http, provider.base_url, "b")).status_code == 200
    assert provider.ledger.billed_texts == {"b": 1}


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        ("POST", "faults", '[{"fault": {"kind": "status"}}]', "code: Field required"),
        ("POST", "limits", '{"limits": [{"unit": "call", "amount": 0}]}', "at least 1"),
        ("POST", "options", '{"native_widht": 4}', "native_widht"),
        ("POST", "faults", "no json", "JSON"),
        ("DELETE", "faults?id=x", "", "invalid literal"),
    ],
)
async def test_control_says_what_it_does_not_understand(
    provider: Provider, http: httpx2.AsyncClient, method: str, path: str, body: str, said: str
) -> None:
    reply = await http.request(method, f"{provider.url}/control/{path}", content=body)

    assert reply.status_code == 422
    assert said in " ".join(reply.json()["problems"])


async def test_remote_raises_where_nobody_answers_or_understands(provider: Provider) -> None:
    remote = RemoteProvider(provider.url + "/elsewhere")
    with pytest.raises(ValueError, match="refused POST /control/reset"):
        await remote.reset()
    await provider.stop()

    with pytest.raises(OSError, match="refused"):
        await RemoteProvider(provider.url).reset()


async def test_process_serves_until_terminated_and_is_scripted_from_here(
    http: httpx2.AsyncClient,
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tickmind.local.provider",
        "--options",
        '{"native_width": 6, "limits": [{"unit": "text", "amount": 3}]}',
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        base_url = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
        remote = RemoteProvider(base_url.removesuffix("/v1"))
        await remote.add_fault(Status(code=503))

        statuses = [(await embed(http, base_url, "a", "b")).status_code for _ in range(3)]

        assert statuses == [503, 200, 429]
        assert await remote.billed_texts() == {"a": 1, "b": 1}
        assert (await remote.calls())[0].started_at <= time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 10) == 0
        assert process.stderr is not None
        assert await process.stderr.read() == b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize(
    ("options", "said"), [('{"native_widht": 6}', "native_widht"), ("nonsense", "JSON")]
)
def test_process_with_wrong_options_ends_with_a_sentence(options: str, said: str) -> None:
    result = CliRunner().invoke(app, ["--options", options])

    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output


async def test_process_on_a_taken_port_ends_with_a_sentence(provider: Provider) -> None:
    port = provider.url.rpartition(":")[2]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tickmind.local.provider",
        "--port",
        port,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await asyncio.wait_for(process.communicate(), 30)

    assert process.returncode == 1
    assert f"Port {port} cannot be used" in errors.decode()
