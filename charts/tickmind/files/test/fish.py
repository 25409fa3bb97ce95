"""What `helm test` runs: a tick is published, and recalled. The same tick each time, so that
nothing grows: one world of one memory each for two agents."""

from __future__ import annotations

import asyncio
import os
import sys
import time

from tickmind import MemoryClient

#: A service scaled to zero needs a poll of its scaler and a pod before it answers.
WAIT_S = 180.0


async def main() -> None:
    """Publish, then ask until the memory comes back; exit code 1 where it does not."""
    world = os.environ["TEST_WORLD"]
    said = {"agent": "bob", "action": "talk", "speech": "We sell fish", "heard_by": ["alice"]}
    until = time.monotonic() + WAIT_S
    async with MemoryClient() as memory:  # TICKMIND_AMQP_* says where
        while True:
            receipt = await memory.publish_tick(world, 1, [said], timeout_s=10)
            answer = await memory.recall(world, "alice", "at the market", tick=2, timeout_s=5)
            if receipt.confirmed and answer.status == "ok":
                print(answer.fragment)
                return
            if time.monotonic() > until:
                reason = answer.reason if receipt.confirmed else receipt.reason
                sys.exit(f"nothing recalled within {WAIT_S:g} s: {reason} ({answer.detail})")
            await asyncio.sleep(2)


if __name__ == "__main__":
    asyncio.run(main())
