"""Embedding spaces that can be changed: how each is reached, and one that is being dropped.

Revision ID: 0003
"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


_STATUS = """
    ALTER TABLE index_generation
        DROP CONSTRAINT IF EXISTS ck_index_generation_status,
        ADD CONSTRAINT ck_index_generation_status CHECK (status IN ({}))
"""


def upgrade() -> None:
    # Provider, endpoint, caps, limits, price: the provider's settings by their names, but no key.
    # One document, since only the program reads it, as a whole, and checks it like any settings.
    # A transaction for each table: services read both in one statement, and would be waited for
    # with the one while they wait for the other.
    with op.get_context().autocommit_block():
        op.execute("ALTER TABLE embedding_space ADD COLUMN IF NOT EXISTS served jsonb")
        op.execute(_STATUS.format("'building', 'active', 'retired', 'dropping'"))


def downgrade() -> None:
    op.execute("DELETE FROM index_generation WHERE status = 'dropping'")
    op.execute(_STATUS.format("'building', 'active', 'retired'"))
    op.execute("ALTER TABLE embedding_space DROP COLUMN served")
