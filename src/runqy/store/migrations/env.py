"""Runs migrations on the connection that `runqy.store.database` hands over, inside its transaction."""

from __future__ import annotations

from alembic import context

# The caller holds the lock and commits: a crash in the middle leaves the schema as it was.
context.configure(connection=context.config.attributes["connection"], transaction_per_migration=False)
context.run_migrations()
