"""What `status` tells of embedding: spaces, what was spent, what was saved, who waits."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from tickmind.cli.output import safe, say, table
from tickmind.cli.space import space_json
from tickmind.errors import ConfigurationError
from tickmind.profiles import PROFILES
from tickmind.serving import ExplicitSettings, difference, name_of, settings_of
from tickmind.settings import PREFIX, EmbeddingSettings, load
from tickmind.store.budget import Blocked, Usage, all_blocked, usage
from tickmind.store.changing import SpaceState, space_states

__all__ = ["Spending", "spending"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """`prices`: dollars per million tokens, by the name of the budget; `note`: what is odd."""

    spaces: list[SpaceState]
    usages: list[Usage]
    blocked: list[Blocked]
    prices: dict[str, float]
    note: str | None

    def cost(self, used: Usage) -> float | None:
        """Dollars; None: nobody says what this provider asks."""
        price = self.prices.get(used.provider)
        return None if price is None else used.tokens / 1e6 * price

    @property
    def active(self) -> SpaceState | None:
        return next((space for space in self.spaces if space.status == "active"), None)

    def as_json(self) -> dict[str, Any]:
        costs = [cost for used in self.usages if (cost := self.cost(used)) is not None]
        return {
            "spaces": [space_json(space) for space in self.spaces],
            "providers": [
                asdict(used) | {"cost_usd": None if cost is None else round(cost, 6)}
                for used in self.usages
                for cost in [self.cost(used)]
            ],
            "cost_usd": round(sum(costs), 6),
            "saved_by_deduplication": self.active.saved if self.active else 0,
            "blocked": [asdict(blocked) for blocked in self.blocked],
            "note": self.note,
        }

    def show(self) -> None:
        if self.usages:
            rows = [
                [used.provider, used.purpose, used.calls, used.texts, used.tokens, _dollars(cost)]
                for used in self.usages
                for cost in [self.cost(used)]
            ]
            say(table(["embedding", "of", "calls", "texts", "tokens", "cost"], rows))
        if self.active is not None and self.active.saved:
            saved, indexed = self.active.saved, self.active.indexed
            say(f"{saved} of {indexed} memories needed no call: their text was embedded already")
        for space in self.spaces:
            if space.status == "building":
                say(
                    f"space {space.id}, {name_of(space.space)}, is being filled:"
                    f" {space.indexed} indexed, {space.pending} pending, {space.parked} parked"
                )
        for blocked in self.blocked:
            say(safe(f"{blocked.provider} is not called for {blocked.seconds:.0f} s more:"
                     f" {blocked.reason}"))  # fmt: skip
        if self.note is not None:
            say(safe(self.note))


def _dollars(cost: float | None) -> str:
    return "-" if cost is None else f"${cost:.4f}"


async def spending(session: AsyncSession) -> Spending:
    """What the database knows of it."""
    spaces = await space_states(session)
    active = next((space for space in spaces if space.status == "active"), None)
    named, note = _named()
    if named is not None and active is not None:
        note = difference(active.space, named)
    return Spending(
        spaces=spaces,
        usages=await usage(session),
        blocked=await all_blocked(session),
        prices=_prices(spaces, named or ExplicitSettings()),
        note=note,
    )


def _named() -> tuple[EmbeddingSettings | None, str | None]:
    """The provider that the environment names, or what is wrong with it; nothing: none."""
    if not any(name.startswith(f"{PREFIX}EMBEDDING_") for name in os.environ):
        return None, None
    try:
        return load(EmbeddingSettings), None
    except ConfigurationError as exc:
        return None, str(exc)


def _prices(spaces: list[SpaceState], settings: EmbeddingSettings) -> dict[str, float]:
    """By the profiles; better by the settings, and by what is kept with each space."""
    known = [ExplicitSettings(embedding_profile=name) for name in PROFILES]
    prices = {each.budget_name(): each.embedding_price for each in [*known, settings]}
    for space in spaces:
        try:
            reached = settings_of(space.space, space.served, settings)
        except ConfigurationError:
            continue
        prices[reached.budget_name()] = reached.embedding_price
    return prices
