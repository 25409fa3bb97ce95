"""Which agents have core memories, told without reading their other ones.

Revision ID: 0004
"""

from __future__ import annotations

from alembic import op

from tickmind_migrations.timeouts import concurrently

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Of the few core memories alone: other memories cost their insert nothing.
    with concurrently():
        # Where an attempt before was cut off, what it left is not valid.
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS ix_memory_agent_id_core")
        op.execute(
            "CREATE INDEX CONCURRENTLY ix_memory_agent_id_core ON memory (agent_id) WHERE is_core"
        )


def downgrade() -> None:
    op.execute("DROP INDEX ix_memory_agent_id_core")
