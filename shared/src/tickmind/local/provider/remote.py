"""Scripting a provider that runs in another process (`python -m tickmind.local.provider`)."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterable
from urllib.parse import urlencode

from tickmind.local.provider.control import (
    LimitsSetting,
    calls_adapter,
    limits_adapter,
    totals_adapter,
)
from tickmind.local.provider.faults import Fault, Rule, rules_from_json, rules_to_json
from tickmind.local.provider.ledger import Call, Totals
from tickmind.local.provider.limits import Limit
from tickmind.local.provider.options import ProviderOptions, options_from_json, options_to_json
from tickmind.local.provider.triggers import Next, Trigger

__all__ = ["RemoteProvider"]

# The control routes answer within milliseconds; a provider busy embedding may take a while longer.
_TIMEOUT_S = 10.0

# Loopback is never reached through the proxy that the environment may name.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class RemoteProvider:
    """The provider at `url` (without /v1). Every method raises OSError when it does not answer,
    and ValueError when it does not understand."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as its base URL."""
        return f"{self.url}/v1"

    async def add_fault(self, fault: Fault, trigger: Trigger | None = None) -> int:
        """Append a rule (`Next()` without a trigger); returns its id."""
        rule = Rule(fault=fault, trigger=Next() if trigger is None else trigger)
        reply = json.loads(await self._ask("POST", "/faults", rules_to_json([rule])))
        return int(reply["ids"][0])

    async def faults(self) -> list[Rule]:
        """Rules that can still strike."""
        return rules_from_json(await self._ask("GET", "/faults"))

    async def end_faults(self, rule_id: int | None = None) -> None:
        """End one rule, or all."""
        query = "" if rule_id is None else f"?id={rule_id}"
        await self._ask("DELETE", f"/faults{query}")

    async def release(self) -> None:
        """Let every request that hangs or drips now go on at once."""
        await self._ask("POST", "/release", b"")

    async def set_limits(self, limits: Iterable[Limit], time_scale: float | None = None) -> None:
        """Enforce these limits from now on, with nothing counted yet; none lifts them."""
        setting = LimitsSetting(limits=tuple(limits), time_scale=time_scale)
        await self._ask("POST", "/limits", limits_adapter.dump_json(setting))

    async def options(self) -> ProviderOptions:
        """The options in force."""
        return options_from_json(await self._ask("GET", "/options"))

    async def set_options(self, options: ProviderOptions) -> None:
        """Replace all options; limits start anew."""
        await self._ask("POST", "/options", options_to_json(options))

    async def totals(self, since: float | None = None, until: float | None = None) -> Totals:
        """The ledger in figures, of calls begun in [since, until) of CLOCK_MONOTONIC."""
        bounds = {"since": since, "until": until}
        query = urlencode({name: at for name, at in bounds.items() if at is not None})
        return totals_adapter.validate_json(await self._ask("GET", f"/ledger?{query}"))

    async def calls(self, first: int = 0) -> list[Call]:
        """Calls in the order received, from that number on."""
        return calls_adapter.validate_json(await self._ask("GET", f"/calls?first={first}"))

    async def billed_texts(self) -> dict[str, int]:
        """Every text that was ever embedded, and how often."""
        texts: dict[str, int] = json.loads(await self._ask("GET", "/texts"))
        return texts

    async def early_calls(self) -> list[Call]:
        """Calls that came while the provider had told somebody to stay away."""
        return calls_adapter.validate_json(await self._ask("GET", "/early"))

    async def reset(self) -> None:
        """Forget calls and rules; keep options."""
        await self._ask("POST", "/reset", b"")

    async def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        return await asyncio.to_thread(self._ask_blocking, method, path, body)

    def _ask_blocking(self, method: str, path: str, body: bytes | None) -> bytes:
        request = urllib.request.Request(
            f"{self.url}/control{path}",
            data=body,
            method=method,
            headers={"content-type": "application/json"},
        )
        try:
            with _OPENER.open(request, timeout=_TIMEOUT_S) as reply:
                answer: bytes = reply.read()
                return answer
        except urllib.error.HTTPError as error:
            raise ValueError(
                f"the provider refused {method} /control{path}: {error.read().decode()}"
            ) from error
