"""Which schema this release works with."""

from __future__ import annotations

__all__ = ["SCHEMA_VERSION"]

#: Newest revision in `migrations/`. A service runs with this one or a newer one (migrations
#: expand first and contract a release later), and is unready with an older one.
SCHEMA_VERSION = "0006"
