"""Brings a database's schema up to date, inside the caller's transaction and lock."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection

from runqy.errors import ConfigurationError

_MIGRATIONS = Path(__file__).parent / "migrations"


def migrate(connection: Connection, shown: str) -> None:
    """Run every migration that is missing. Raises `ConfigurationError` when the database is newer than we are."""
    # Imported here: alembic is needed once, at start.
    from alembic import command
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    script = ScriptDirectory.from_config(config)
    current = MigrationContext.configure(connection).get_current_heads()
    known = {revision.revision for revision in script.walk_revisions()}
    newer = sorted(set(current) - known)
    if newer:
        raise ConfigurationError(
            f"{shown} was made by a newer runqy",
            why=f"its schema is {', '.join(newer)}, this program knows up to {script.get_current_head()}",
            hint="upgrade runqy here, or use another database; a schema is never taken back",
        )
    if set(current) != set(script.get_heads()):
        command.upgrade(config, "head")
