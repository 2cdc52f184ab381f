"""The original's tables. Each is created only where it is missing, so that a database of the original is adopted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from runqy.store.types import JsonDocument, UnixTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    existing = set(sa.inspect(op.get_bind()).get_table_names())
    if "queue_workers_config" in existing:
        op.drop_table("queue_workers_config")
    for name, create in (
        ("queues", _queues),
        ("sub_queues", _sub_queues),
        ("vaults", _vaults),
        ("vault_entries", _vault_entries),
        ("admin_user", _admin_user),
    ):
        if name not in existing:
            create()
    if "sub_queues" in existing:
        _add_enabled_to_old_sub_queues()


def _add_enabled_to_old_sub_queues() -> None:
    columns = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("sub_queues")}
    if "enabled" not in columns:
        op.add_column("sub_queues", sa.Column("enabled", sa.Boolean, nullable=False, server_default=sa.true()))


def _times() -> tuple[sa.Column[float], sa.Column[float]]:
    now = sa.func.current_timestamp()
    return sa.Column("created_at", UnixTime, server_default=now), sa.Column("updated_at", UnixTime, server_default=now)


def _queues() -> None:
    op.create_table(
        "queues",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("provider", sa.Text, nullable=False, server_default=""),
        sa.Column("deployment", JsonDocument),
        sa.Column("input_schema", JsonDocument),
        sa.Column("output_schema", JsonDocument),
        sa.Column("description", sa.Text, server_default=""),
        sa.Column("enabled", sa.Boolean, nullable=False, server_default=sa.true()),
        *_times(),
    )
    op.create_index("idx_queues_name", "queues", ["name"])


def _sub_queues() -> None:
    op.create_table(
        "sub_queues",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("queue_id", sa.Integer, sa.ForeignKey("queues.id", ondelete="CASCADE"), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False, server_default="1"),
        sa.Column("enabled", sa.Boolean, nullable=False, server_default=sa.true()),
        *_times(),
        sa.UniqueConstraint("queue_id", "name"),
    )
    op.create_index("idx_sub_queues_queue_id", "sub_queues", ["queue_id"])
    op.create_index("idx_sub_queues_enabled", "sub_queues", ["enabled"])


def _vaults() -> None:
    op.create_table(
        "vaults",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.Text, nullable=False, unique=True),
        sa.Column("description", sa.Text, server_default=""),
        *_times(),
    )
    op.create_index("idx_vaults_name", "vaults", ["name"])


def _vault_entries() -> None:
    op.create_table(
        "vault_entries",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("vault_id", sa.Integer, sa.ForeignKey("vaults.id", ondelete="CASCADE"), nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("value", sa.LargeBinary, nullable=False),
        sa.Column("is_secret", sa.Boolean, nullable=False, server_default=sa.true()),
        *_times(),
        sa.UniqueConstraint("vault_id", "key"),
    )


def _admin_user() -> None:
    op.create_table(
        "admin_user",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("email", sa.Text, nullable=False, unique=True),
        sa.Column("password_hash", sa.Text, nullable=False),
        *_times(),
    )


def downgrade() -> None:
    raise NotImplementedError("the original's tables hold what users configured; they are not dropped")
