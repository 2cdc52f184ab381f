"""`runqy task`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from runqy.cli.app import Session, Suggesting
from runqy.cli.client import Client
from runqy.cli.options import json_option, pass_session, required_text
from runqy.cli.output import shorten
from runqy.errors import RunqyError, TaskFailedError, UsageError
from runqy.tasks.state import State

WAIT_SECONDS = 300.0


@click.group(cls=Suggesting)
def task() -> None:
    """Enqueue tasks, look at them, act on them."""


@task.command()
@click.option("-q", "--queue", required=True, help="Queue: `parent` or `parent.sub`.")
@click.option("-p", "--payload", default="{}", help="JSON, @file, or - for standard input.  [default: {}]")
@click.option("-t", "--timeout", help="active_timeout of this task: seconds, or a duration such as 5m.")
@click.option("--delay", help="Run it only after this time: seconds, or a duration.")
@click.option("--task", "handler", help="Which handler of the task code.")
@click.option("--task-id", help="An id of your own; the same id is never enqueued twice.")
@click.option("-w", "--wait", is_flag=True, help="Wait for the end and print the result.")
@json_option
@pass_session
def enqueue(
    session: Session,
    queue: str,
    payload: str,
    timeout: str | None,
    delay: str | None,
    handler: str | None,
    task_id: str | None,
    wait: bool,
) -> int:
    """Enqueue one task.

    \b
    Examples:
      runqy task enqueue -q inference -p '{"text": "hello"}' --wait
      cat input.json | runqy task enqueue -q inference -p - -t 5m
    """
    data = _read_payload(payload)
    extra = {"timeout": _seconds(timeout), "delay": _seconds(delay), "task": handler, "task_id": task_id}
    members = [f'"queue":{json.dumps(queue)}', f'"data":{data}']
    members += [f'"{name}":{json.dumps(value)}' for name, value in extra.items() if value is not None]
    client = Client(session)
    answer = client.post_text("queue", "add", body=("{" + ",".join(members) + "}").encode())
    info = answer["info"]
    for warning in answer.get("warnings") or []:
        session.output.warn(warning)
    if not wait:
        session.output.document(info)
        session.output.line("Task enqueued successfully!")
        for name, value in (("ID", info["id"]), ("Queue", info["queue"]), ("Type", info["type"])):
            session.output.line(f"  {name}: {value}")
        return 0
    return _print_end(session, client, info["id"])


def _print_end(session: Session, client: Client, task_id: str) -> int:
    while (ended := client.wait(task_id, WAIT_SECONDS)) is None:
        session.output.note(f"task {task_id} has not ended yet, waiting on")
    session.output.document(ended)
    if ended["state"] != State.COMPLETED:
        raise TaskFailedError(
            f"task {task_id} ended {ended['state']}",
            why=_last_line(ended.get("LastErr") or ""),
            hint=f"runqy task get {task_id}",
        )
    if not ended.get("result_stored", True):
        session.output.note(f"task {task_id} completed; its queue keeps no results (redis_storage: false)")
    session.output.line(_pretty(ended.get("Result") or "null"))
    return 0


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def _read_payload(text: str) -> str:
    """JSON text from the argument, a file or standard input; checked, but kept as it was written."""
    if text == "-":
        text = sys.stdin.read()
    elif text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the payload file can't be read: {text[1:]}", why=str(error)) from error
    try:
        json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        raise UsageError(
            f"invalid JSON payload: {error}", hint='quote it for the shell: -p \'{"key": "value"}\''
        ) from error
    return text


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _seconds(text: str | None) -> int | float | str | None:
    """A bare number is seconds; anything else goes to the server, which knows durations."""
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        return text
    if number <= 0:
        raise UsageError(f"--timeout must be positive, got {text}")
    return int(number) if number.is_integer() else number


@task.command("list")
@click.argument("queue", callback=required_text("queue name"))
@click.option("--state", default="pending", help="pending, active, scheduled, retry, archived or completed.")
@click.option("-l", "--limit", default=10, show_default=True, help="How many.")
@json_option
@pass_session
def list_tasks(session: Session, queue: str, state: str, limit: int) -> None:
    """List the tasks of a queue in one state."""
    states = ("pending", "active", "scheduled", "retry", "archived", "completed")
    if state not in states:
        raise UsageError(f"invalid state '{state}', valid: {', '.join(states)}")
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
        "archived": (("ERROR", lambda row: shorten(_last_line(row.get("last_err") or ""), 50)),),
        "completed": (("COMPLETED_AT", lambda row: row.get("completed_at")),),
    }
    more = columns[state]
    session.output.table(
        ("ID", "TYPE", *(name for name, _ in more)),
        ((row["id"], row["type"], *(read(row) for _, read in more)) for row in rows),
    )


@task.command()
@click.argument("names", nargs=-1, required=True, metavar="[QUEUE] ID")
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
                    shorten(_last_line(a["reason"]), 60),
                )
                for a in attempts
            ),
        )
    session.output.line()
    session.output.line("Payload:")
    session.output.line(_pretty(info["payload"]))
    if info.get("LastErr"):
        session.output.line()
        session.output.line("Last Error:")
        session.output.line(info["LastErr"])
    if info.get("Result"):
        session.output.line()
        session.output.line("Result:")
        session.output.line(_pretty(info["Result"]))


def _pretty(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text


def _act(session: Session, task_id: str, action: str, said: str) -> None:
    answer = Client(session).post("api", "tasks", task_id, action)
    session.output.document(answer)
    stopping = answer.get("state") == "stopping"
    session.output.line(f"Task '{task_id}' is running; its worker was told to stop it." if stopping else said)


@task.command()
@click.argument("task_id", callback=required_text("task ID"))
@json_option
@pass_session
def cancel(session: Session, task_id: str) -> None:
    """Cancel a task: a waiting one never starts, a running one is stopped."""
    _act(session, task_id, "cancel", f"Task '{task_id}' cancelled.")


@task.command()
@click.argument("task_id", callback=required_text("task ID"))
@json_option
@pass_session
def run(session: Session, task_id: str) -> None:
    """Run a task now: one that waits for its time, or an ended one again."""
    _act(session, task_id, "run", f"Task '{task_id}' is pending.")


@task.command()
@click.argument("task_id", callback=required_text("task ID"))
@json_option
@pass_session
def archive(session: Session, task_id: str) -> None:
    """Archive a waiting task without running it."""
    _act(session, task_id, "archive", f"Task '{task_id}' archived.")


@task.command()
@click.argument("queue", callback=required_text("queue name"))
@click.argument("task_id", callback=required_text("task ID"))
@json_option
@pass_session
def delete(session: Session, queue: str, task_id: str) -> None:
    """Delete a task that is not running."""
    session.output.document(Client(session).delete("api", "queues", queue, "tasks", task_id))
    session.output.line(f"Task '{task_id}' deleted from queue '{queue}'.")


@task.command()
@click.argument("task_id", callback=required_text("task ID"))
@json_option
@pass_session
def logs(session: Session, task_id: str) -> None:
    """Print what a task printed (its last 64 KiB)."""
    client = Client(session)
    info = client.get("queue", task_id)["Info"]
    answer = client.get("api", "queues", info["queue"], "tasks", task_id, "log")
    session.output.document(answer)
    session.output.line(answer["text"].rstrip("\n"))


__all__ = ["RunqyError", "task"]
