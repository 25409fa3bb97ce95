"""What each service may do, granted to the roles of these names where the server has them.

Only the owner, who migrates, makes and changes tables. A role of another name becomes a member:
`GRANT tickmind_recorder TO my_role`. Without such roles services connect as the owner.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, text

__all__ = ["RIGHTS", "grant"]

#: Who calls the provider reserves what it takes of the fleet's budget.
_BUDGET = {
    "provider_budget": "SELECT, INSERT, UPDATE",
    "provider_reservation": "SELECT, INSERT, UPDATE, DELETE",
    "provider_ticket": "SELECT, INSERT, UPDATE, DELETE",
    "provider_usage": "SELECT, INSERT, UPDATE",
}
#: By role and table. The recorder sees of a memory what tells a repeated event and what a talk
#: answers; of vectors, nothing. The retriever writes nothing but
#: what it spends.
RIGHTS: Mapping[str, Mapping[str, str]] = {
    "tickmind_recorder": {
        "alembic_version": "SELECT",
        "world": "SELECT, INSERT",
        "agent": "SELECT, INSERT",
        "tick_receipt": "SELECT, INSERT, UPDATE",
        "memory": "INSERT, SELECT (id, agent_id, tick, importance, kind, speaker_id, content,"
        " content_hash, event_key)",
        "index_generation": "SELECT (space_id, status)",
        "pending_embedding": "INSERT",
        "reject": "INSERT, UPDATE (times, last_received),"
        " SELECT (reject_key, times, last_received)",
    },
    "tickmind_embedder": {
        "alembic_version": "SELECT",
        "agent": "SELECT (id, world_id)",
        "memory": "SELECT",
        "embedding_space": "SELECT, INSERT, UPDATE",
        "index_generation": "SELECT, INSERT, UPDATE, DELETE",
        "embedding": "SELECT, INSERT, DELETE",
        "pending_embedding": "SELECT, INSERT, UPDATE, DELETE",
        "embedding_job": "SELECT, INSERT, UPDATE, DELETE",
        "recall_index": "SELECT, INSERT, UPDATE (signature), DELETE",
        "signature": "SELECT, INSERT, DELETE",
        "task_lease": "SELECT, INSERT, UPDATE, DELETE",
        **_BUDGET,
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
        **_BUDGET,
    },
}

_PRESENT = text("""
    SELECT r.rolname AS role, c.relname AS "table"
    FROM pg_roles r CROSS JOIN pg_class c
    WHERE r.rolname = ANY(:roles) AND c.relkind IN ('r', 'p')
      AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
    ORDER BY 1, 2
""")
# The schemas of our tables and of pgvector, where they are ours to open; else their owner has.
_SCHEMAS = text("""
    SELECT quote_ident(n.nspname) FROM pg_namespace n
    WHERE pg_has_role(n.nspowner, 'USAGE')
      AND (n.nspname = current_schema()
           OR n.oid = (SELECT extnamespace FROM pg_extension WHERE extname = 'vector'))
    ORDER BY 1
""")


def grant(connection: Connection) -> None:
    """Give the roles that exist what they need of the tables that exist; commits nothing."""
    present = connection.execute(_PRESENT, {"roles": list(RIGHTS)}).all()
    for row in present:
        rights = RIGHTS[row.role].get(row.table)
        if rights is not None:
            connection.exec_driver_sql(f"GRANT {rights} ON {row.table} TO {row.role}")
    for schema in connection.execute(_SCHEMAS).scalars():
        for role in sorted({row.role for row in present}):
            connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
