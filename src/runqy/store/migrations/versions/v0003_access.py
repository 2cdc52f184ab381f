"""Accounts with roles, their sessions, named API keys, and the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from runqy.store.types import JsonDocument, UnixTime

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("admin_user", sa.Column("role", sa.Text, nullable=False, server_default="admin"))
    op.add_column("admin_user", sa.Column("last_login_at", UnixTime))
    op.create_table(
        "sessions",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("account_id", sa.Integer, sa.ForeignKey("admin_user.id", ondelete="CASCADE"), nullable=False),
        sa.Column("created_at", UnixTime, nullable=False),
        sa.Column("expires_at", UnixTime, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("browser", sa.Text, nullable=False),
    )
    op.create_index("ix_sessions_account_id", "sessions", ["account_id"])
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("digest", sa.Text, nullable=False, unique=True),
        sa.Column("start", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("queues", JsonDocument),
        sa.Column("created_at", UnixTime, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("last_used_at", UnixTime),
        sa.Column("expires_at", UnixTime),
    )
    op.create_table(
        "audit_log",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("at", UnixTime, nullable=False),
        sa.Column("who", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("detail", JsonDocument),
    )
    op.create_index("ix_audit_log_target", "audit_log", ["target", "id"])
    op.create_table(
        "server_values",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )


def downgrade() -> None:
    for name in ("server_values", "audit_log", "api_keys", "sessions"):
        op.drop_table(name)
    op.drop_column("admin_user", "last_login_at")
    op.drop_column("admin_user", "role")
