"""What each service may do, granted to the roles of these names where the server has them.

Only the owner, who migrates, makes and changes tables. A role of another name becomes a member:
`GRANT tickmind_recorder TO my_role`. Without such roles services connect as the owner.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, text

__all__ = ["RIGHTS", "grant"]

#: By role and table. The recorder writes what it cannot read back: of a memory it sees what
#: tells a repeated event, never a content; of vectors, nothing. The retriever writes nothing.
RIGHTS: Mapping[str, Mapping[str, str]] = {
    "tickmind_recorder": {
        "alembic_version": "SELECT",
        "world": "SELECT, INSERT",
        "agent": "SELECT, INSERT",
        "tick_receipt": "SELECT, INSERT, UPDATE",
        "memory": "INSERT, SELECT (id, agent_id, tick, importance, content_hash, event_key)",
        "index_generation": "SELECT",
        "pending_embedding": "INSERT",
        "reject": "INSERT, UPDATE (times, last_received),"
        " SELECT (reject_key, times, last_received)",
    },
    "tickmind_embedder": {
        "alembic_version": "SELECT",
        "agent": "SELECT (id, world_id)",
        "memory": "SELECT",
        "embedding_space": "SELECT, INSERT, UPDATE",
        "index_generation": "SELECT, INSERT, UPDATE",
        "embedding": "SELECT, INSERT",
        "pending_embedding": "SELECT, INSERT, UPDATE, DELETE",
        "embedding_job": "SELECT, INSERT, UPDATE, DELETE",
        "recall_index": "SELECT, INSERT",
    },
    "tickmind_retriever": {
        "alembic_version": "SELECT",
        "world": "SELECT",
        "agent": "SELECT",
        "tick_receipt": "SELECT",
        "memory": "SELECT",
        "embedding_space": "SELECT",
        "index_generation": "SELECT",
        "embedding": "SELECT",
        "pending_embedding": "SELECT",
        "recall_index": "SELECT",
    },
}

_PRESENT = text("""
    SELECT r.rolname AS role, c.relname AS "table"
    FROM pg_roles r CROSS JOIN pg_class c
    WHERE r.rolname = ANY(:roles) AND c.relnamespace = current_schema()::regnamespace
      AND c.relkind IN ('r', 'p')
    ORDER BY 1, 2
""")
# The schema of pgvector, where it is ours to open; else its owner has.
_EXTENSION_SCHEMA = text("""
    SELECT quote_ident(n.nspname)
    FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
    WHERE e.extname = 'vector' AND pg_has_role(n.nspowner, 'USAGE')
""")


def grant(connection: Connection) -> None:
    """Give the roles that exist what they need of the tables that exist; commits nothing."""
    present = connection.execute(_PRESENT, {"roles": list(RIGHTS)}).all()
    for row in present:
        rights = RIGHTS[row.role].get(row.table)
        if rights is not None:
            connection.exec_driver_sql(f"GRANT {rights} ON {row.table} TO {row.role}")
    schema = connection.execute(_EXTENSION_SCHEMA).scalar_one_or_none()
    for role in sorted({row.role for row in present}):
        if schema is not None:
            connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
