"""Alembic's entry: the connection comes from `tickmind_migrations.upgrade`, nothing else."""

from __future__ import annotations

from alembic import context

from tickmind.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    transaction_per_migration=True,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
