"""What the original does not know: further keys of a queue, and who changed what and when."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from runqy.store.types import JsonDocument, UnixTime

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("queues", sa.Column("options", JsonDocument))
    op.create_table(
        "queue_changes",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("who", sa.Text, nullable=False),
        sa.Column("at", UnixTime, nullable=False),
        sa.Column("before", JsonDocument),
        sa.Column("after", JsonDocument),
    )
    op.create_index("ix_queue_changes_queue", "queue_changes", ["queue", "id"])


def downgrade() -> None:
    op.drop_table("queue_changes")
    op.drop_column("queues", "options")
