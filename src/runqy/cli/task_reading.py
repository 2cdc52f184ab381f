"""`runqy task list|get|logs`."""

from __future__ import annotations

import json
from typing import Any

import click

from runqy.cli.app import Session
from runqy.cli.client import Client
from runqy.cli.completing import STATES, queue_names, states, task_ids
from runqy.cli.options import json_option, pass_session, required_text
from runqy.cli.output import shorten
from runqy.errors import UsageError


@click.command("list")
@click.argument("queue", callback=required_text("queue name"), shell_complete=queue_names)
@click.option(
    "--state",
    default="pending",
    shell_complete=states,
    help="pending, active, scheduled, retry, archived or completed.",
)
@click.option("-l", "--limit", default=10, show_default=True, help="How many.")
@json_option
@pass_session
def list_tasks(session: Session, queue: str, state: str, limit: int) -> None:
    """List the tasks of a queue in one state."""
    if state not in STATES:
        raise UsageError(f"invalid state '{state}', valid: {', '.join(STATES)}")
    if limit <= 0:
        raise UsageError(f"--limit must be positive, got {limit}")
    rows = Client(session).get("api", "queues", queue, "tasks", state=state, limit=limit)["tasks"] or []
    session.output.document(rows)
    if not rows:
        session.output.line(f"No {state} tasks in queue '{queue}'.")
        return
    columns: dict[str, tuple[tuple[str, Any], ...]] = {
        "pending": (("PAYLOAD", lambda row: shorten(row["payload"], 50)),),
        "active": (("STARTED", lambda row: row.get("started_at")),),
        "scheduled": (("PROCESS_AT", lambda row: row.get("next_process_at")),),
        "retry": (
            ("RETRIED", lambda row: row["retried"]),
            ("MAX_RETRY", lambda row: row["max_retry"]),
            ("NEXT_RETRY", lambda row: row.get("next_process_at")),
        ),
        "archived": (("ERROR", lambda row: shorten(last_line(row.get("last_err") or ""), 50)),),
        "completed": (("COMPLETED_AT", lambda row: row.get("completed_at")),),
    }
    more = columns[state]
    session.output.table(
        ("ID", "TYPE", *(name for name, _ in more)),
        ((row["id"], row["type"], *(read(row) for _, read in more)) for row in rows),
    )


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="[QUEUE] ID", shell_complete=task_ids)
@click.option("--explain", is_flag=True, help="Show where each limit came from.")
@json_option
@pass_session
def get(session: Session, names: tuple[str, ...], explain: bool) -> None:
    """Show one task: by its id, or by queue and id."""
    if len(names) > 2:
        raise UsageError("give an id, or a queue and an id")
    client = Client(session)
    if len(names) == 1:
        info = client.get("queue", names[0])["Info"]
    else:
        client.get("api", "queues", names[0], "tasks", names[1])
        info = client.get("queue", names[1])["Info"]
    session.output.document(info)
    limits = info.get("limits") or {}
    timeout = (limits.get("active_timeout") or {}).get("value")
    session.output.fields(
        {
            "Task ID": info["id"],
            "Type": info["type"],
            "Queue": info["queue"],
            "State": info["state"],
            "Max Retry": info["max_retry"],
            "Retried": info["retried"],
            "Timeout": f"{timeout}s" if timeout else "-",
            "Gone At": info.get("expires_at", "-"),
        }
    )
    if explain:
        session.output.line()
        session.output.table(
            ("LIMIT", "VALUE", "FROM"), ((name, entry["value"], entry["source"]) for name, entry in limits.items())
        )
    attempts = info.get("attempts") or []
    if attempts:
        session.output.line()
        session.output.table(
            ("ATTEMPT", "OUTCOME", "STARTED", "ENDED", "WORKER", "REASON"),
            (
                (
                    a["number"],
                    a["outcome"],
                    a["started_at"],
                    a["ended_at"],
                    a["worker"],
                    shorten(last_line(a["reason"]), 60),
                )
                for a in attempts
            ),
        )
    session.output.line()
    session.output.line("Payload:")
    session.output.line(pretty(info["payload"]))
    if info.get("LastErr"):
        session.output.line()
        session.output.line("Last Error:")
        session.output.line(info["LastErr"])
    if info.get("Result"):
        session.output.line()
        session.output.line("Result:")
        session.output.line(pretty(info["Result"]))


def pretty(text: str) -> str:
    """JSON over several lines; any other text as it is."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text


@click.command()
@click.argument("task_id", callback=required_text("task ID"), shell_complete=task_ids)
@json_option
@pass_session
def logs(session: Session, task_id: str) -> None:
    """Print what a task printed (its last 64 KiB)."""
    client = Client(session)
    info = client.get("queue", task_id)["Info"]
    answer = client.get("api", "queues", info["queue"], "tasks", task_id, "log")
    session.output.document(answer)
    session.output.line(answer["text"].rstrip("\n"))


def last_line(text: str) -> str:
    """The line of an error text that says what went wrong: a traceback's last."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
