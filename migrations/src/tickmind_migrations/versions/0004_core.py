"""Which agents have core memories, told without reading their other ones.

Revision ID: 0004
"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Of the few core memories alone: other memories cost their insert nothing.
    op.execute("CREATE INDEX ix_memory_agent_id_core ON memory (agent_id) WHERE is_core")


def downgrade() -> None:
    op.execute("DROP INDEX ix_memory_agent_id_core")
