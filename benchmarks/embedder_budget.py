"""How much of a budget a fleet of embedders uses, and how often it trips it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

import asyncpg

from benchmarks.embedder_load import (
    embedder_settings,
    made_texts,
    pending_texts,
    provider,
    replicas,
    scratch_database,
    warmed,
)
from benchmarks.embedder_share import Admitted, budget_used, span_s
from benchmarks.stack import Stack
from tickmind.limits import Limit, written
from tickmind.local.postgres import DATABASE
from tickmind.local.provider.ledger import Call
from tickmind.local.provider.limits import Limit as Enforced
from tickmind.local.provider.limits import Unit
from tickmind.local.provider.options import ProviderOptions
from tickmind.local.provider.remote import RemoteProvider

__all__ = ["SETS", "Found", "LimitSet", "fleet_budget"]

#: Numbers in a vector: few, so that the machine's two cores are left for what is measured.
_DIMENSIONS = 64
#: Tokens that the provider counts in a text of `embedder_load`, at least: words of up to six
#: letters, and a number.
_FEWEST_TOKENS = 11
#: Watched a little longer than needed, and so many windows' worth of texts recorded more than that.
_EXTRA_S, _EXTRA_WINDOWS = 0.5, 3
#: Everything is recorded beforehand: one sweep makes all jobs. By default each replica spends a
#: tenth of its time on looking again, and here all share two cores.
_SWEEP_S = 120.0
_LOOK_S = 0.1
#: From the replicas' start to the first call: sweeping what waits takes a second.
_FIRST_CALL_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSet:
    """Limits enforced together, unscaled; `max_inputs`: most texts of a call."""

    name: str
    limits: tuple[Limit, ...]
    max_inputs: int = 100


def _limit(amount: int, unit: str, window_s: float = 60.0) -> Limit:
    return Limit(amount=amount, unit=unit, window_s=window_s)  # type: ignore[arg-type]


SETS = (
    # Gemini's of a paying account: each text of a call counts.
    LimitSet(name="texts", limits=(_limit(3000, "texts"),)),
    # A hundred calls a minute; small ones, as a server for small batches has it.
    LimitSet(name="calls", limits=(_limit(100, "calls"),), max_inputs=10),
    LimitSet(name="tokens", limits=(_limit(30_000, "tokens"),)),
    # The same rate, enforced within ten seconds too.
    LimitSet(name="sub_window", limits=(_limit(3000, "texts"), _limit(500, "texts", 10.0))),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Of one fleet under one set of limits. `rejections`: 429s, from start to end."""

    used: float
    rejections: int


async def fleet_budget(
    stack: Stack,
    chosen: LimitSet,
    *,
    count: int,
    windows: int,
    scale: float,
    kill: bool,
    report: Callable[[str], None],
) -> Found:
    """Run a fleet against limits enforced in scaled time until it was watched long enough.

    `kill`: one replica is killed half-way. Raises RuntimeError where the fleet ran out of texts
    or did not begin.
    """
    name = f"budget_{chosen.name}_{count}{'_killed' if kill else ''}"
    scaled = tuple(
        Limit(amount=limit.amount, unit=limit.unit, window_s=limit.window_s * scale)
        for limit in chosen.limits
    )
    options = ProviderOptions(
        native_width=_DIMENSIONS,
        time_scale=scale,
        limits=tuple(
            Enforced(unit=_UNITS[limit.unit], amount=int(limit.amount), window_s=limit.window_s)
            for limit in chosen.limits
        ),
    )
    async with (
        scratch_database(stack, name, template=DATABASE) as url,
        provider(stack, options, instance=name) as api,
    ):
        settings = embedder_settings(
            url,
            api,
            dimensions=_DIMENSIONS,
            max_inputs=chosen.max_inputs,
            limits=", ".join(map(written, scaled)),
            sweep_s=_SWEEP_S,
        )
        await warmed(api, made_texts(100))
        await pending_texts(url, settings, _texts(chosen, windows))
        async with replicas(stack, settings, count, instance=name) as pids:
            await _begun(api)
            watched_s = span_s(scaled, windows)
            if kill:
                await asyncio.sleep(watched_s / 2)
                os.kill(pids[0], signal.SIGKILL)
                await asyncio.sleep(watched_s / 2)
            else:
                await asyncio.sleep(watched_s)
            await asyncio.sleep(_EXTRA_S)
            await _still_pending(url)
            calls = await api.calls()
    found = Found(
        used=budget_used(_admitted(calls), scaled, windows=windows),
        rejections=sum(call.status == 429 for call in calls),
    )
    report(f"{name}: {found.used:.3f} of the budget, {found.rejections} rejections")
    return found


_UNITS: dict[str, Unit] = {"calls": "call", "texts": "text", "tokens": "token"}


def _texts(chosen: LimitSet, windows: int) -> int:
    """More texts than the limits let through in the time."""
    a_window = []
    for limit in chosen.limits:
        longest = max(one.window_s for one in chosen.limits)
        texts = {"calls": chosen.max_inputs, "texts": 1, "tokens": 1 / _FEWEST_TOKENS}[limit.unit]
        a_window.append(limit.amount * texts * longest / limit.window_s)
    return round(min(a_window) * (windows + 1 + _EXTRA_WINDOWS))


async def _begun(api: RemoteProvider) -> None:
    async with asyncio.timeout(_FIRST_CALL_S):
        while True:
            if (await api.totals()).texts_billed:
                return
            await asyncio.sleep(_LOOK_S)


async def _still_pending(url: str) -> None:
    """Raises RuntimeError where nothing was left to spend the budget on."""
    connection = await asyncpg.connect(url)
    try:
        if not await connection.fetchval("SELECT EXISTS (SELECT FROM pending_embedding)"):
            msg = "the fleet ran out of texts: more was let through than the limits allow"
            raise RuntimeError(msg)
    finally:
        await connection.close()


def _admitted(calls: list[Call]) -> list[Admitted]:
    billed = [call for call in calls if call.billed]
    first = min(call.started_at for call in billed)
    return [
        Admitted(at=call.started_at - first, texts=len(call.asked.texts), tokens=call.tokens)
        for call in billed
    ]
