"""Signatures: one for each text of a generation, and who builds at the moment.

Revision ID: 0006
"""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_STATEMENTS = (
    # A row without bits: the text's vector has no direction. By text, so that a memory that says
    # what was said before is linked by SQL alone.
    """
    CREATE TABLE signature (
        generation_id integer NOT NULL
            CONSTRAINT fk_signature_generation_id_index_generation
            REFERENCES index_generation ON DELETE CASCADE,
        content_hash bytea NOT NULL,
        bits bit(1536),
        CONSTRAINT pk_signature PRIMARY KEY (generation_id, content_hash)
    )
    """,
    # Work that one process at a time should do. Updated in place every few seconds.
    """
    CREATE TABLE task_lease (
        task text COLLATE "C" CONSTRAINT pk_task_lease PRIMARY KEY,
        token uuid NOT NULL,
        lease_until timestamptz NOT NULL
    ) WITH (fillfactor = 70)
    """,
    # The covering index spares the table only on pages that VACUUM has seen: with the default of
    # a fifth, an agent's newest memories would be looked up one by one.
    "ALTER TABLE recall_index SET (autovacuum_vacuum_insert_scale_factor = 0.02)",
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    op.execute("ALTER TABLE recall_index RESET (autovacuum_vacuum_insert_scale_factor)")
    op.execute("DROP TABLE task_lease")
    op.execute("DROP TABLE signature")
