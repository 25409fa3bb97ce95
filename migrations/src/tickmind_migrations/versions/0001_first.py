"""The tables of the first release.

Revision ID: 0001
"""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TABLES = """
CREATE TABLE world (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_world PRIMARY KEY,
    name text COLLATE "C" NOT NULL CONSTRAINT uq_world_name UNIQUE,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE agent (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_agent PRIMARY KEY,
    world_id bigint NOT NULL
        CONSTRAINT fk_agent_world_id_world REFERENCES world ON DELETE CASCADE,
    name text COLLATE "C" NOT NULL,
    CONSTRAINT uq_agent_world_id_name UNIQUE (world_id, name)
);

CREATE TABLE tick_receipt (
    world_id bigint NOT NULL
        CONSTRAINT fk_tick_receipt_world_id_world REFERENCES world ON DELETE CASCADE,
    tick bigint NOT NULL,
    decisions integer NOT NULL,
    sim_time timestamptz,
    first_received timestamptz NOT NULL DEFAULT now(),
    last_received timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT pk_tick_receipt PRIMARY KEY (world_id, tick)
);

CREATE TABLE memory (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_memory PRIMARY KEY,
    agent_id bigint NOT NULL
        CONSTRAINT fk_memory_agent_id_agent REFERENCES agent ON DELETE CASCADE,
    tick bigint NOT NULL CONSTRAINT ck_memory_tick CHECK (tick >= 0),
    speaker_id bigint,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    importance smallint NOT NULL
        CONSTRAINT ck_memory_importance CHECK (importance BETWEEN 1 AND 10),
    is_core boolean NOT NULL DEFAULT false,
    kind text NOT NULL,
    content text NOT NULL,
    context text,
    content_hash bytea NOT NULL,
    event_key bytea NOT NULL,
    CONSTRAINT uq_memory_agent_id_event_key UNIQUE (agent_id, event_key)
);

CREATE TABLE embedding_space (
    id integer GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_embedding_space PRIMARY KEY,
    model text NOT NULL,
    dimensions integer NOT NULL
        CONSTRAINT ck_embedding_space_dimensions CHECK (dimensions BETWEEN 1 AND 1536),
    document_prefix text NOT NULL DEFAULT '',
    query_prefix text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT uq_embedding_space_identity
        UNIQUE (model, dimensions, document_prefix, query_prefix)
);

CREATE TABLE index_generation (
    id integer GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_index_generation PRIMARY KEY,
    space_id integer NOT NULL
        CONSTRAINT fk_index_generation_space_id_embedding_space
        REFERENCES embedding_space ON DELETE CASCADE,
    status varchar(10) NOT NULL
        CONSTRAINT ck_index_generation_status
        CHECK (status IN ('building', 'active', 'retired')),
    mean bytea,
    mean_over bigint NOT NULL DEFAULT 0,
    basis bytea,
    created_at timestamptz NOT NULL DEFAULT now(),
    activated_at timestamptz
);
CREATE UNIQUE INDEX uq_index_generation_active
    ON index_generation (status) WHERE status = 'active';

CREATE TABLE embedding (
    space_id integer NOT NULL
        CONSTRAINT fk_embedding_space_id_embedding_space
        REFERENCES embedding_space ON DELETE CASCADE,
    content_hash bytea NOT NULL,
    -- PLAIN: a vector of 1536 takes 3 kB and would otherwise go out of line, where each costs
    -- exact scoring an index search of its own.
    vector @halfvec STORAGE PLAIN NOT NULL,
    CONSTRAINT pk_embedding PRIMARY KEY (space_id, content_hash)
);

CREATE TABLE pending_embedding (
    memory_id bigint NOT NULL
        CONSTRAINT fk_pending_embedding_memory_id_memory REFERENCES memory ON DELETE CASCADE,
    world_id bigint NOT NULL, -- goes with its memory
    tick bigint NOT NULL,
    space_id integer NOT NULL
        CONSTRAINT fk_pending_embedding_space_id_embedding_space
        REFERENCES embedding_space ON DELETE CASCADE,
    importance smallint NOT NULL,
    parked boolean NOT NULL DEFAULT false,
    content_hash bytea NOT NULL,
    CONSTRAINT pk_pending_embedding PRIMARY KEY (memory_id, space_id)
);
CREATE INDEX ix_pending_embedding_space_id_content_hash
    ON pending_embedding (space_id, content_hash);
CREATE INDEX ix_pending_embedding_world_id_space_id_tick
    ON pending_embedding (world_id, space_id, tick) WHERE NOT parked;

CREATE TABLE embedding_job (
    space_id integer NOT NULL
        CONSTRAINT fk_embedding_job_space_id_embedding_space
        REFERENCES embedding_space ON DELETE CASCADE,
    content_hash bytea NOT NULL,
    due_order bigint NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    not_before timestamptz NOT NULL DEFAULT now(),
    lease_token uuid,
    lease_until timestamptz,
    parked_reason text,
    parked_at timestamptz,
    CONSTRAINT pk_embedding_job PRIMARY KEY (space_id, content_hash)
    -- Leases are updated in place: room on the page keeps those updates heap-only.
) WITH (fillfactor = 70);
CREATE INDEX ix_embedding_job_space_id_due_order
    ON embedding_job (space_id, due_order) WHERE parked_reason IS NULL;

CREATE TABLE recall_index (
    memory_id bigint NOT NULL
        CONSTRAINT fk_recall_index_memory_id_memory REFERENCES memory ON DELETE CASCADE,
    generation_id integer NOT NULL
        CONSTRAINT fk_recall_index_generation_id_index_generation
        REFERENCES index_generation ON DELETE CASCADE,
    importance smallint NOT NULL,
    is_core boolean NOT NULL,
    agent_id bigint NOT NULL, -- goes with its memory
    tick bigint NOT NULL,
    kind text NOT NULL,
    content_hash bytea NOT NULL,
    signature bit(1536),
    CONSTRAINT pk_recall_index PRIMARY KEY (memory_id, generation_id)
);
CREATE INDEX ix_recall_index_generation_id_agent_id_tick
    ON recall_index (generation_id, agent_id, tick)
    INCLUDE (memory_id, kind, importance, is_core, content_hash, signature);

CREATE TABLE reject (
    id bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_reject PRIMARY KEY,
    reject_key bytea NOT NULL CONSTRAINT uq_reject_reject_key UNIQUE,
    first_received timestamptz NOT NULL DEFAULT now(),
    last_received timestamptz NOT NULL DEFAULT now(),
    times bigint NOT NULL DEFAULT 1,
    reason text NOT NULL,
    detail text NOT NULL,
    routing_key text NOT NULL,
    world text COLLATE "C",
    body bytea NOT NULL
);
"""


def upgrade() -> None:
    schema = _extension_schema()
    for statement in _TABLES.replace("@halfvec", f'"{schema}".halfvec').split(";\n"):
        if statement.strip():
            op.execute(statement)


def _extension_schema() -> str:
    """Where pgvector lives; it is there by now, `upgrade` in the package sees to it."""
    row = op.get_bind().exec_driver_sql(
        "SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace"
        " WHERE e.extname = 'vector'"
    )
    return str(row.scalar_one())


def downgrade() -> None:
    for table in (
        "reject",
        "recall_index",
        "embedding_job",
        "pending_embedding",
        "embedding",
        "index_generation",
        "embedding_space",
        "memory",
        "tick_receipt",
        "agent",
        "world",
    ):
        op.execute(f"DROP TABLE {table}")
