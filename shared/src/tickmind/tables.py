"""The tables as SQLAlchemy metadata: what `migrations/` builds, said once more for reading.

Migrations are the only DDL; a test compares the two. The statements stand in `store/`.
"""

from __future__ import annotations

from pgvector.sqlalchemy import HALFVEC
from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, BIT, JSONB

from tickmind.signature import BITS

__all__ = ["metadata"]

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_NOW = text("now()")
_NAME = Text(collation="C")


def _id() -> Column[int]:
    return Column("id", BigInteger, Identity(always=True), primary_key=True)


def _cascade(column: str, target: str, type_: type[Integer] = BigInteger) -> Column[int]:
    return Column(column, type_, ForeignKey(target, ondelete="CASCADE"), nullable=False)


world = Table(
    "world",
    metadata,
    _id(),
    Column("name", _NAME, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    UniqueConstraint("name"),
)

agent = Table(
    "agent",
    metadata,
    _id(),
    _cascade("world_id", "world.id"),
    Column("name", _NAME, nullable=False),
    UniqueConstraint("world_id", "name"),
)

tick_receipt = Table(
    "tick_receipt",
    metadata,
    _cascade("world_id", "world.id"),
    Column("tick", BigInteger, nullable=False),
    # The most decisions one message of this tick held: redelivery does not add up.
    Column("decisions", Integer, nullable=False),
    Column("sim_time", DateTime(timezone=True)),
    Column("first_received", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column("last_received", DateTime(timezone=True), nullable=False, server_default=_NOW),
    PrimaryKeyConstraint("world_id", "tick"),
)

memory = Table(
    "memory",
    metadata,
    _id(),
    _cascade("agent_id", "agent.id"),
    Column("tick", BigInteger, nullable=False),
    # No foreign key: checking it costs every insert, and a dangling speaker harms nothing.
    Column("speaker_id", BigInteger),
    Column("recorded_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column("importance", SmallInteger, nullable=False),
    Column("is_core", Boolean, nullable=False, server_default=text("false")),
    Column("kind", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("context", Text),
    Column("content_hash", LargeBinary, nullable=False),
    Column("event_key", LargeBinary, nullable=False),
    # `words.keys` of content and context; null: recorded before there were words.
    Column("terms", ARRAY(BigInteger)),
    UniqueConstraint("agent_id", "event_key"),
    CheckConstraint("importance BETWEEN 1 AND 10", name="importance"),
    CheckConstraint("tick >= 0", name="tick"),
    Index("ix_memory_agent_id_core", "agent_id", postgresql_where=text("is_core")),
    Index("ix_memory_agent_id_tick", "agent_id", "tick"),
    Index("ix_memory_without_terms", "id", postgresql_where=text("terms IS NULL")),
    # A pending list would be looked through once for each term of every question.
    Index(
        "ix_memory_terms",
        "terms",
        postgresql_using="gin",
        postgresql_with={"fastupdate": "off"},
    ),
)

embedding_space = Table(
    "embedding_space",
    metadata,
    Column("id", Integer, Identity(always=True), primary_key=True),
    Column("model", Text, nullable=False),
    Column("dimensions", Integer, nullable=False),
    Column("document_prefix", Text, nullable=False, server_default=text("''")),
    Column("query_prefix", Text, nullable=False, server_default=text("''")),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    # How it is reached, by the names of the provider's settings; never a key.
    Column("served", JSONB),
    # Its name by the convention would be cut at PostgreSQL's 63 bytes.
    UniqueConstraint(
        "model",
        "dimensions",
        "document_prefix",
        "query_prefix",
        name="uq_embedding_space_identity",
    ),
    CheckConstraint("dimensions BETWEEN 1 AND 1536", name="dimensions"),
)

index_generation = Table(
    "index_generation",
    metadata,
    Column("id", Integer, Identity(always=True), primary_key=True),
    _cascade("space_id", "embedding_space.id", Integer),
    Column("status", String(10), nullable=False),
    # float32 little-endian, `dimensions` of them; null: the space is too young to know its mean.
    Column("mean", LargeBinary),
    Column("mean_over", BigInteger, nullable=False, server_default=text("0")),
    # What vectors are signed by (`tickmind.signature`); null: this one has no signatures.
    Column("basis", LargeBinary),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column("activated_at", DateTime(timezone=True)),
    CheckConstraint("status IN ('building', 'active', 'retired', 'dropping')", name="status"),
    Index(
        "uq_index_generation_active",
        "status",
        unique=True,
        postgresql_where=text("status = 'active'"),
    ),
)

embedding = Table(
    "embedding",
    metadata,
    _cascade("space_id", "embedding_space.id", Integer),
    Column("content_hash", LargeBinary, nullable=False),
    Column("vector", HALFVEC, nullable=False),
    PrimaryKeyConstraint("space_id", "content_hash"),
)

pending_embedding = Table(
    "pending_embedding",
    metadata,
    _cascade("memory_id", "memory.id"),
    # No foreign key, here and on recall_index.agent_id: the memory's own cascade takes the row.
    Column("world_id", BigInteger, nullable=False),
    Column("tick", BigInteger, nullable=False),
    _cascade("space_id", "embedding_space.id", Integer),
    Column("importance", SmallInteger, nullable=False),
    # The text was given up on; its row waits here for a person, and the watermark passes it.
    Column("parked", Boolean, nullable=False, server_default=text("false")),
    Column("content_hash", LargeBinary, nullable=False),
    PrimaryKeyConstraint("memory_id", "space_id"),
    Index("ix_pending_embedding_space_id_content_hash", "space_id", "content_hash"),
    Index(
        "ix_pending_embedding_world_id_space_id_tick",
        "world_id",
        "space_id",
        "tick",
        postgresql_where=text("NOT parked"),
    ),
)

embedding_job = Table(
    "embedding_job",
    metadata,
    _cascade("space_id", "embedding_space.id", Integer),
    Column("content_hash", LargeBinary, nullable=False),
    # Milliseconds since the epoch when the job was made, less a minute per point of importance.
    Column("due_order", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("not_before", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column("lease_token", Uuid),
    Column("lease_until", DateTime(timezone=True)),
    Column("parked_reason", Text),
    Column("parked_at", DateTime(timezone=True)),
    PrimaryKeyConstraint("space_id", "content_hash"),
    Index(
        "ix_embedding_job_space_id_due_order",
        "space_id",
        "due_order",
        postgresql_where=text("parked_reason IS NULL"),
    ),
)

recall_index = Table(
    "recall_index",
    metadata,
    _cascade("memory_id", "memory.id"),
    _cascade("generation_id", "index_generation.id", Integer),
    Column("importance", SmallInteger, nullable=False),
    Column("is_core", Boolean, nullable=False),
    Column("agent_id", BigInteger, nullable=False),
    Column("tick", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("content_hash", LargeBinary, nullable=False),
    # As in `signature`; null: it is not there yet, or there is none.
    Column("signature", BIT(BITS)),
    PrimaryKeyConstraint("memory_id", "generation_id"),
    Index(
        "ix_recall_index_generation_id_agent_id_tick",
        "generation_id",
        "agent_id",
        "tick",
        postgresql_include=[
            "memory_id",
            "kind",
            "importance",
            "is_core",
            "content_hash",
            "signature",
        ],
    ),
)

signature = Table(
    "signature",
    metadata,
    _cascade("generation_id", "index_generation.id", Integer),
    Column("content_hash", LargeBinary, nullable=False),
    # Null: the text's vector has no direction.
    Column("bits", BIT(BITS)),
    PrimaryKeyConstraint("generation_id", "content_hash"),
)

# Work that one process at a time should do.
task_lease = Table(
    "task_lease",
    metadata,
    Column("task", _NAME, primary_key=True),
    Column("token", Uuid, nullable=False),
    Column("lease_until", DateTime(timezone=True), nullable=False),
)

provider_budget = Table(
    "provider_budget",
    metadata,
    Column("provider", _NAME, primary_key=True),
    # Nobody calls before this: a 429, a spent quota or a refused key said so.
    Column("blocked_until", DateTime(timezone=True)),
    Column("blocked_reason", Text),
    # The line of those who wait, first come first served.
    Column("next_ticket", BigInteger, nullable=False, server_default=text("1")),
    # A retriever said lately that it wants its share kept.
    Column("recall_until", DateTime(timezone=True)),
)


def _provider() -> Column[str]:
    target = ForeignKey("provider_budget.provider", ondelete="CASCADE")
    return Column("provider", _NAME, target, nullable=False)


provider_reservation = Table(
    "provider_reservation",
    metadata,
    _provider(),
    _id(),
    # When the provider has counted it at the latest.
    Column("counted_at", DateTime(timezone=True), nullable=False),
    Column("purpose", Text, nullable=False),
    Column("slot", BigInteger, nullable=False),
    Column("calls", Integer, nullable=False),
    Column("texts", Integer, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Index(
        "ix_provider_reservation_provider_counted_at",
        "provider",
        "counted_at",
        postgresql_include=["calls", "texts", "tokens"],
    ),
)

provider_ticket = Table(
    "provider_ticket",
    metadata,
    _provider(),
    Column("ticket", BigInteger, nullable=False),
    Column("alive_until", DateTime(timezone=True), nullable=False),
    # What is waited for, in full.
    Column("calls", Integer, nullable=False),
    Column("texts", Integer, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    PrimaryKeyConstraint("provider", "ticket"),
)

# Ten minutes a row.
provider_usage = Table(
    "provider_usage",
    metadata,
    _provider(),
    Column("slot", BigInteger, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("calls", BigInteger, nullable=False),
    Column("texts", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    PrimaryKeyConstraint("provider", "slot", "purpose"),
)

reject = Table(
    "reject",
    metadata,
    _id(),
    Column("reject_key", LargeBinary, nullable=False),
    Column("first_received", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column("last_received", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column("times", BigInteger, nullable=False, server_default=text("1")),
    Column("reason", Text, nullable=False),
    Column("detail", Text, nullable=False),
    Column("routing_key", Text, nullable=False),
    Column("world", _NAME),
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("reject_key"),
)
