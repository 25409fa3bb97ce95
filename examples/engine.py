"""An engine in a few lines: agents act, remember, and are told what they remember.

    ./dev run python examples/engine.py amqp://guest:guest@localhost:5672

`./dev up` prints the URL of a broker with the services behind it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from tickmind import MemoryClient

WORLD = "example"


def decide(tick: int, agent: str, prompt: str) -> dict[str, Any]:
    """What an agent does; a real engine asks a language model with this prompt."""
    if "fish" in prompt:
        return {"agent": agent, "action": "move", "target": [15, 8], "place": "market"}
    if agent == "bob":
        speech = f"It is {tick} o'clock and the market sells fresh fish"
        return {"agent": agent, "action": "talk", "speech": speech, "heard_by": ["alice"]}
    return {"agent": agent, "action": "stay"}


async def main(url: str) -> None:
    async with MemoryClient(url) as memory:
        for tick in range(8, 13):
            # All agents of a tick in one request; never late, empty where memory is away.
            sees = [("alice", "Alice is hungry and walks past the market"), ("bob", "Bob is bored")]
            answers = await memory.recall_many(WORLD, sees, tick=tick, timeout_s=0.8)
            decisions = []
            for (agent, observation), answer in zip(sees, answers, strict=True):
                prompt = f"You are {agent}. {observation}.\n{answer.fragment}\nWhat do you do?"
                decisions.append(decide(tick, agent, prompt))
                print(f"tick {tick}, {agent}: {answer.status} {answer.reason or ''}")
                print(answer.fragment or "  (remembers nothing of use)")
            receipt = await memory.publish_tick(WORLD, tick, decisions)
            if not receipt.confirmed:  # may be published again: it is the same event
                print(f"tick {tick} is not confirmed: {receipt.reason}", file=sys.stderr)
            await asyncio.sleep(1)  # a tick of this engine takes a second


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "amqp://guest:guest@localhost:5672"))
