"""`runqy task`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from runqy.cli.app import Session, Suggesting
from runqy.cli.client import Client
from runqy.cli.completing import queue_names
from runqy.cli.options import json_option, pass_session
from runqy.cli.task_acting import archive, cancel, delete, retry, run
from runqy.cli.task_reading import get, last_line, list_tasks, logs, pretty
from runqy.cli.task_watching import watch
from runqy.errors import TaskFailedError, UsageError
from runqy.tasks.state import State

WAIT_SECONDS = 300.0


@click.group(cls=Suggesting)
def task() -> None:
    """Enqueue tasks, look at them, act on them."""


for command in (list_tasks, get, logs, watch, cancel, retry, run, archive, delete):
    task.add_command(command)


@task.command()
@click.option("-q", "--queue", required=True, shell_complete=queue_names, help="Queue: `parent` or `parent.sub`.")
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
            why=last_line(ended.get("LastErr") or ""),
            hint=f"runqy task get {task_id}",
        )
    if not ended.get("result_stored", True):
        session.output.note(f"task {task_id} completed; its queue keeps no results (redis_storage: false)")
    session.output.line(pretty(ended.get("Result") or "null"))
    return 0


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
