"""Long-term memory for multi-agent simulations."""

from __future__ import annotations

from tickmind.client import Answer, MemoryClient, Receipt
from tickmind.errors import InvalidMessage, TickmindError

__all__ = ["Answer", "InvalidMessage", "MemoryClient", "Receipt", "TickmindError"]
