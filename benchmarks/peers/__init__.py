"""`peers`: tickmind beside other memories for agents, on the same texts and servers.

Imports nothing of tickmind by itself: the peers' environments, which have none, import it too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.report import Report

__all__ = ["SMALL", "Options", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How much is measured. `sizes`: by kind, how many agents of how many memories; `peers`: in
    the order they are measured, before ours; `recalls`: by how many callers how many questions are
    asked of each kind."""

    sizes: Mapping[str, tuple[int, int]] = field(
        default_factory=lambda: {"big": (1, 10_000), "middle": (5, 1_000), "small": (20, 100)}
    )
    dimensions: int = 1536
    peers: tuple[str, ...] = ("langgraph", "mem0", "langchain")
    recalls: tuple[tuple[int, int], ...] = ((1, 60), (16, 256), (64, 512))


#: For `--small`: two and a half minutes, of which one is waiting for what hangs.
SMALL = Options(sizes={"big": (1, 1_000), "small": (4, 50)}, recalls=((1, 20), (64, 128)))


async def run(say: Callable[[str], None], options: Options | None = None) -> Report:
    """Measure; `say` is told in words how far it is. Raises StartFailed."""
    from benchmarks.peers.comparing import compare

    return await compare(say, options or Options())
