"""Tables as statements use them. The migrations create them; names and columns are the original's."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)

from runqy.store.types import JsonDocument, UnixTime

metadata = MetaData()

queues = Table(
    "queues",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String, nullable=False, unique=True),
    Column("provider", String, nullable=False, server_default=""),
    Column("deployment", JsonDocument),
    Column("input_schema", JsonDocument),
    Column("output_schema", JsonDocument),
    Column("description", String, server_default=""),
    Column("enabled", Boolean, nullable=False),
    Column("created_at", UnixTime),
    Column("updated_at", UnixTime),
    Column("options", JsonDocument),
)
"""parent queues; ``options`` holds what the original does not know (scheduling, max_pending, webhook, redact)"""

sub_queues = Table(
    "sub_queues",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("queue_id", Integer, ForeignKey("queues.id", ondelete="CASCADE"), nullable=False),
    Column("name", String, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("created_at", UnixTime),
    Column("updated_at", UnixTime),
    UniqueConstraint("queue_id", "name"),
)

queue_changes = Table(
    "queue_changes",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("queue", String, nullable=False),
    Column("action", String, nullable=False),
    Column("who", String, nullable=False),
    Column("at", UnixTime, nullable=False),
    Column("before", JsonDocument),
    Column("after", JsonDocument),
    Index("ix_queue_changes_queue", "queue", "id"),
)
"""history of the configuration: whole queues before and after each change"""

vaults = Table(
    "vaults",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String, nullable=False, unique=True),
    Column("description", String, server_default=""),
    Column("created_at", UnixTime),
    Column("updated_at", UnixTime),
)

vault_entries = Table(
    "vault_entries",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("vault_id", Integer, ForeignKey("vaults.id", ondelete="CASCADE"), nullable=False),
    Column("key", String, nullable=False),
    Column("value", LargeBinary, nullable=False),
    Column("is_secret", Boolean, nullable=False),
    Column("created_at", UnixTime),
    Column("updated_at", UnixTime),
    UniqueConstraint("vault_id", "key"),
)

admin_user = Table(
    "admin_user",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("email", String, nullable=False, unique=True),
    Column("password_hash", String, nullable=False),
    Column("created_at", UnixTime),
    Column("updated_at", UnixTime),
    Column("role", String, nullable=False, server_default="admin"),
    Column("last_login_at", UnixTime),
)
"""accounts of the dashboard; the original knows one, an admin"""

sessions = Table(
    "sessions",
    metadata,
    Column("id", String, primary_key=True),
    Column("account_id", Integer, ForeignKey("admin_user.id", ondelete="CASCADE"), nullable=False),
    Column("created_at", UnixTime, nullable=False),
    Column("expires_at", UnixTime, nullable=False),
    Column("address", String, nullable=False),
    Column("browser", String, nullable=False),
    Index("ix_sessions_account_id", "account_id"),
)
"""who is logged in where; a row that is deleted ends the session"""

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String, nullable=False, unique=True),
    Column("digest", String, nullable=False, unique=True),
    Column("start", String, nullable=False),
    Column("role", String, nullable=False),
    Column("queues", JsonDocument),
    Column("created_at", UnixTime, nullable=False),
    Column("created_by", String, nullable=False),
    Column("last_used_at", UnixTime),
    Column("expires_at", UnixTime),
)
"""named keys: only the SHA-256 of a key is kept; ``queues`` null is "all queues\""""

audit_log = Table(
    "audit_log",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", UnixTime, nullable=False),
    Column("who", String, nullable=False),
    Column("role", String, nullable=False),
    Column("address", String, nullable=False),
    Column("action", String, nullable=False),
    Column("target", String, nullable=False),
    Column("status", Integer, nullable=False),
    Column("detail", JsonDocument),
    Index("ix_audit_log_target", "target", "id"),
)
"""every request that changed something or tried to"""

server_values = Table(
    "server_values",
    metadata,
    Column("name", String, primary_key=True),
    Column("value", String, nullable=False),
)
"""what all servers of one database must agree on, such as the key that signs sessions"""
