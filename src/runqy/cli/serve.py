"""`runqy serve`."""

from __future__ import annotations

from typing import Any

import click

from runqy.cli.app import Session
from runqy.cli.options import pass_session


@click.command()
@click.option("--config", help="Folder (or file) of queue YAML (QUEUE_WORKERS_DIR).")
@click.option("--watch", is_flag=True, help="Reload the queue files when they change.")
@click.option("--config-repo", help="Git repository with queue YAML (CONFIG_REPO_URL).")
@click.option("--config-branch", help="Its branch (CONFIG_REPO_BRANCH).")
@click.option("--config-path", help="The folder in it (CONFIG_REPO_PATH).")
@click.option("--clone-dir", help="Where it is cloned to (CONFIG_CLONE_DIR).")
@click.option("--watch-interval", help="Seconds between looks at the repository (CONFIG_WATCH_INTERVAL).")
@click.option("--data-dir", help="Folder for keys, embedded storage and SQLite (RUNQY_DATA_DIR).  [default: .runqy]")
@click.option("--database-url", help="postgresql://… or sqlite:///… (RUNQY_DATABASE_URL).")
@click.option("--sqlite", is_flag=True, help="Use SQLite, whatever DATABASE_* says.")
@click.option("--sqlite-path", help="The file of SQLite (SQLITE_DB_PATH).")
@click.option("--no-ui", is_flag=True, help="Serve no dashboard.")
@click.option("--debug", is_flag=True, help="Log more.")
@click.option("--host", help="Address to listen on.  [default: all]")
@click.option("--port", help="Port to listen on (PORT).  [default: 3000]")
@click.option("--db-host", help="Host of PostgreSQL (DATABASE_HOST).")
@click.option("--db-port", help="Port of PostgreSQL (DATABASE_PORT).")
@click.option("--db-user", help="User of PostgreSQL (DATABASE_USER).")
@click.option("--db-password", help="Password of PostgreSQL; better in DATABASE_PASSWORD or DATABASE_PASSWORD_FILE.")
@click.option("--db-name", help="Database of PostgreSQL (DATABASE_DBNAME).")
@click.option("--db-ssl", help="sslmode of PostgreSQL (DATABASE_SSL).")
@click.option("--redis-tls", is_flag=True, help="Reach Redis by TLS (REDIS_TLS).")
@pass_session
def serve(session: Session, /, **flags: Any) -> int:
    """Start the server.

    With no Redis and no database configured it keeps everything in its data folder: a private Valkey with an
    append-only file, and SQLite. Without RUNQY_API_KEY it makes a key at the first start and says where it is.

    \b
    Examples:
      runqy serve --config deployment
      RUNQY_REDIS_URL=redis://10.0.0.5:6379 RUNQY_DATABASE_URL=postgresql://… runqy serve
    """
    import asyncio

    import uvloop

    from runqy import telemetry
    from runqy.server.app import serve as run_server
    from runqy.server.state import ServerState
    from runqy.settings.server import load_server_settings

    output = session.output
    if flags.get("db_password"):
        output.warn("--db-password shows a secret to everyone who can list processes; use DATABASE_PASSWORD_FILE")
    given = {name: value for name, value in flags.items() if value not in (None, False)}
    settings = load_server_settings(
        {**given, "api_key": session.api_key or None, "redis_uri": session.redis_uri or None}
    )
    telemetry.configure(verbose=settings.debug or output.verbose, json=output.as_json or None)
    for warning in settings.warnings:
        output.warn(warning)

    def ready(state: ServerState, url: str) -> None:
        for line in banner(state, url):
            output.line(line)
        output.document({"url": url, "key_file": str(state.key_file) if state.key_file else None})

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run_server(settings, ready=ready))


def banner(state: Any, url: str) -> list[str]:
    """What a running server says of itself."""
    redis = f"embedded, {state.redis.address}" if state.embedded else state.redis.address
    key = str(state.key_file) if state.key_file is not None else "from RUNQY_API_KEY"
    return [
        f"runqy server   {url}",
        f"  admin key    {key}",
        f"  redis        {redis}",
        f"  database     {state.database.shown}",
        f"  queues       {len(state.queues.catalog.full_names())}",
    ]
