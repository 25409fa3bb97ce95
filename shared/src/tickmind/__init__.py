"""Long-term memory for multi-agent simulations."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tickmind.client import Answer, MemoryClient, Receipt
    from tickmind.errors import InvalidMessage, TickmindError

__all__ = ["Answer", "InvalidMessage", "MemoryClient", "Receipt", "TickmindError"]

_HOMES = {
    "Answer": "tickmind.client",
    "InvalidMessage": "tickmind.errors",
    "MemoryClient": "tickmind.client",
    "Receipt": "tickmind.client",
    "TickmindError": "tickmind.errors",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import on first use: `tickmind --help` need not wait for a broker's library (0.4 s)."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
