"""How long a statement of a migration may take, and wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from alembic import op

__all__ = ["LOCK_TIMEOUT_S", "STATEMENT_TIMEOUT_S", "concurrently"]

#: A migration that cannot get its locks gives up instead of queueing every service behind it.
LOCK_TIMEOUT_S = 10
#: Longest single statement; index builds on large tables are made CONCURRENTLY and exempt.
STATEMENT_TIMEOUT_S = 600


@contextmanager
def concurrently() -> Iterator[None]:
    """Statements outside of any transaction, which nobody queues behind: an index may take its
    time to be built, and to wait for transactions that began before it, a dump perhaps."""
    with op.get_context().autocommit_block():
        op.execute("SET statement_timeout = 0")
        op.execute(f"SET lock_timeout = '{STATEMENT_TIMEOUT_S}s'")
        yield
        op.execute(f"SET statement_timeout = '{STATEMENT_TIMEOUT_S}s'")
        op.execute(f"SET lock_timeout = '{LOCK_TIMEOUT_S}s'")
