"""Alembic's entry: the connection comes from `tickmind_migrations.upgrade`, nothing else."""

from __future__ import annotations

from alembic import context

from tickmind.tables import metadata
from tickmind_migrations.rights import grant

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    transaction_per_migration=True,
    # In the migration's own transaction: no service sees a schema it may not use yet.
    on_version_apply=lambda **_: grant(connection),
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
