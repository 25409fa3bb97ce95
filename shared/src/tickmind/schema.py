"""Which schema this release works with."""

from __future__ import annotations

__all__ = ["SCHEMA_LOCK", "SCHEMA_VERSION"]

#: Newest revision in `migrations/`. A service runs with this one or a newer one (migrations
#: expand first and contract a release later), and is unready with an older one.
SCHEMA_VERSION = "0006"

#: Key of a session's advisory lock, held by who migrates, or makes and drops indexes: two at once
#: would each wait for the other's table, and for its snapshot to end. "tickmind" as big-endian
#: bytes, so that it is nobody else's.
SCHEMA_LOCK = int.from_bytes(b"tickmind", "big")
