"""`runqy queue`."""

from __future__ import annotations

import time
from typing import Any

import click

from runqy.cli.app import Session, Suggesting
from runqy.cli.client import Client
from runqy.cli.completing import queue_names
from runqy.cli.options import json_option, pass_session, required_text


@click.group(cls=Suggesting)
def queue() -> None:
    """List, inspect, pause and resume queues."""


@queue.command("list")
@click.option(
    "--watch",
    "interval",
    is_flag=False,
    flag_value=2.0,
    type=click.FloatRange(min=0.2),
    metavar="[SECONDS]",
    help="Show them anew every two seconds (or as given), until interrupted.",
)
@json_option
@pass_session
def list_queues(session: Session, interval: float | None) -> None:
    """List all queues with their sizes.

    With --watch and --json each look is a line: {"at": unix ms, "queues": [...]}.
    """
    client = Client(session)
    while True:
        answer = client.get("api", "queues")
        rows = answer["queues"] or []
        if interval is None:
            session.output.document(rows)
        else:
            session.output.json_line({"at": round(time.time() * 1000), "queues": rows})
            session.output.clear()
        _print_queues(session, answer, rows)
        if interval is None:
            return
        time.sleep(interval)


def _print_queues(session: Session, answer: dict[str, Any], rows: list[dict[str, Any]]) -> None:
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
@click.argument("name", callback=required_text("queue name"), shell_complete=queue_names)
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
@click.argument("name", callback=required_text("queue name"), shell_complete=queue_names)
@json_option
@pass_session
def pause(session: Session, name: str) -> None:
    """Let no task of a queue start until it is resumed."""
    session.output.document(Client(session).post("api", "queues", name, "pause"))
    session.output.line(f"Queue '{name}' paused successfully.")


@queue.command()
@click.argument("name", callback=required_text("queue name"), shell_complete=queue_names)
@json_option
@pass_session
def unpause(session: Session, name: str) -> None:
    """Resume a paused queue."""
    session.output.document(Client(session).post("api", "queues", name, "unpause"))
    session.output.line(f"Queue '{name}' unpaused successfully.")
