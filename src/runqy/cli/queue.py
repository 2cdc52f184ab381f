"""`runqy queue`."""

from __future__ import annotations

import click

from runqy.cli.app import Session, Suggesting
from runqy.cli.client import Client
from runqy.cli.options import json_option, pass_session, required_text


@click.group(cls=Suggesting)
def queue() -> None:
    """List, inspect, pause and resume queues."""


@queue.command("list")
@json_option
@pass_session
def list_queues(session: Session) -> None:
    """List all queues with their sizes."""
    answer = Client(session).get("api", "queues")
    rows = answer["queues"] or []
    session.output.document(rows)
    for warning in answer.get("warnings") or []:
        session.output.warn(warning)
    if not rows:
        session.output.line("No queues found.")
        return
    names = ("pending", "active", "scheduled", "retry", "archived", "completed", "paused")
    session.output.table(
        ("QUEUE", *(name.upper() for name in names)), ((row["queue"], *(row[name] for name in names)) for row in rows)
    )


@queue.command()
@click.argument("name", callback=required_text("queue name"))
@json_option
@pass_session
def inspect(session: Session, name: str) -> None:
    """Show one queue."""
    row = Client(session).get("api", "queues", name)
    session.output.document(row)
    session.output.fields(
        {
            "Queue": row["queue"],
            "Paused": str(row["paused"]).lower(),
            "Oldest Waiting": f"{row['latency_seconds']} s",
            "Processed": row["processed"],
            "Failed": row["failed"],
        }
    )
    session.output.line()
    session.output.line("Task Counts:")
    for state in ("pending", "active", "scheduled", "retry", "archived", "completed"):
        session.output.line(f"  {state.capitalize() + ':':<11} {row[state]}")


@queue.command()
@click.argument("name", callback=required_text("queue name"))
@json_option
@pass_session
def pause(session: Session, name: str) -> None:
    """Let no task of a queue start until it is resumed."""
    session.output.document(Client(session).post("api", "queues", name, "pause"))
    session.output.line(f"Queue '{name}' paused successfully.")


@queue.command()
@click.argument("name", callback=required_text("queue name"))
@json_option
@pass_session
def unpause(session: Session, name: str) -> None:
    """Resume a paused queue."""
    session.output.document(Client(session).post("api", "queues", name, "unpause"))
    session.output.line(f"Queue '{name}' unpaused successfully.")
