"""Memories found by their words, and by how new they are, before they have a vector.

Revision ID: 0005
"""

from __future__ import annotations

from alembic import op

from tickmind_migrations.timeouts import concurrently

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Null: recorded by a release that did not know words; `migrate` fills it in afterwards.
    # An array of fixed-width numbers does not compress: PLAIN saves the attempt.
    op.execute("ALTER TABLE memory ADD COLUMN IF NOT EXISTS terms bigint[]")
    op.execute("ALTER TABLE memory ALTER COLUMN terms SET STORAGE EXTERNAL")
    # No statistics: of keys that no two agents share they say nothing, and ANALYZE takes its time.
    op.execute("ALTER TABLE memory ALTER COLUMN terms SET STATISTICS 0")
    with concurrently():
        # Where an attempt before was cut off, what it left is not valid.
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS ix_memory_terms")
        op.execute(
            "CREATE INDEX CONCURRENTLY ix_memory_terms ON memory USING gin (terms)"
            " WITH (fastupdate = off)"
        )
        # Empty but for what a release before records meanwhile.
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS ix_memory_without_terms")
        op.execute(
            "CREATE INDEX CONCURRENTLY ix_memory_without_terms ON memory (id) WHERE terms IS NULL"
        )
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS ix_memory_agent_id_tick")
        op.execute("CREATE INDEX CONCURRENTLY ix_memory_agent_id_tick ON memory (agent_id, tick)")


def downgrade() -> None:
    op.execute("DROP INDEX ix_memory_agent_id_tick")
    op.execute("ALTER TABLE memory DROP COLUMN terms")
