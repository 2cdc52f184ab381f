"""`runqy config`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from runqy.cli.app import Session, Suggesting
from runqy.cli.client import Client
from runqy.cli.config_changes import history, plan
from runqy.cli.config_create import create
from runqy.cli.config_show import show
from runqy.cli.options import json_option, pass_session, required_text
from runqy.errors import ConfigurationError

DEFAULT_FOLDER = "../queueworkers"


@click.group(cls=Suggesting)
def config() -> None:
    """Check, list, change and reload queue configuration."""


config.add_command(create)
config.add_command(plan)
config.add_command(history)
config.add_command(show)


@config.command()
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="Folder or file.  [QUEUE_WORKERS_DIR]")
@json_option
@pass_session
def validate(session: Session, folder: Path | None) -> None:
    """Check queue files here, without any server: every problem with file, line and column."""
    from runqy.config.source import load_file, load_folder

    path = folder or Path(os.environ.get("QUEUE_WORKERS_DIR") or DEFAULT_FOLDER)
    try:
        loaded = load_file(path) if path.is_file() else load_folder(path)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"validation failed: {error.what}", why=error.why, hint=error.hint, problems=error.problems
        ) from error
    for warning in loaded.warnings:
        session.output.warn(warning)
    rows = [{"name": queue.name, "priority": queue.priority} for queue in loaded.queues]
    session.output.document({"files": loaded.files, "queues": rows, "warnings": list(loaded.warnings)})
    session.output.line(f"Validated {loaded.files} YAML file(s) from {path}")
    for row in rows:
        session.output.line(f"  - {row['name']} (priority={row['priority']})")
    session.output.line()
    session.output.line(f"Total: {len(rows)} queue configuration(s)")
    session.output.line("Validation successful!")


@config.command("list")
@json_option
@pass_session
def list_configurations(session: Session) -> None:
    """List the configured queues."""
    rows = Client(session).get("workers", "queues")["queues"] or []
    session.output.document(rows)
    if not rows:
        session.output.line("No queue configurations found.")
        return
    session.output.table(("NAME", "PRIORITY"), ((row["name"], row["priority"]) for row in rows))


@config.command()
@json_option
@pass_session
def reload(session: Session) -> None:
    """Let the server read its queue files again. With one bad file nothing is applied."""
    answer = Client(session).post("workers", "reload")
    session.output.document(answer)
    for warning in answer.get("warnings") or []:
        session.output.warn(warning)
    errors = answer.get("errors") or []
    if errors:
        raise ConfigurationError(
            "nothing was reloaded",
            problems=tuple(errors),
            hint="mend the files; the former configuration stays in force",
        )
    names = answer.get("reloaded") or []
    if not names:
        session.output.line("No YAML configuration files found.")
        return
    session.output.line(f"Reloaded {len(names)} queue configuration(s):")
    for name in names:
        session.output.line(f"  - {name}")


@config.command()
@click.argument("queue", required=False)
@click.option("--name", help="The same as QUEUE.")
@json_option
@pass_session
def remove(session: Session, queue: str | None, name: str | None) -> None:
    """Delete a queue: it takes no more tasks, those it holds stay. `restore` brings it back."""
    given = (queue or name or "").strip()
    if not given:
        raise click.UsageError("a queue name is missing")
    answer = Client(session).delete("workers", "queues", given)
    session.output.document(answer)
    session.output.line(f"Queue '{given}' deleted successfully")


@config.command()
@click.argument("queue", callback=required_text("queue name"))
@json_option
@pass_session
def restore(session: Session, queue: str) -> None:
    """Bring a deleted queue back."""
    session.output.document(Client(session).post("workers", "queues", queue, "restore"))
    session.output.line(f"Queue '{queue}' restored successfully")
