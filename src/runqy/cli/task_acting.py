"""`runqy task cancel|retry|run|archive|delete`: by id, or all of a queue that fit a filter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from runqy.cli.app import Session
from runqy.cli.client import Client
from runqy.cli.completing import STATES, queue_names, states, task_ids
from runqy.cli.options import json_option, pass_session
from runqy.errors import NotFoundError, RunqyError, StateError, UsageError

PAGE = 1000
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Choice:
    """Which tasks: ids, or a filter over one queue."""

    ids: tuple[str, ...]
    queue: str | None
    state: str | None
    error: str | None
    yes: bool
    dry_run: bool


def _choosing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Ids, or the options of the filter."""
    for option in (
        click.argument("ids", nargs=-1, shell_complete=task_ids, metavar="[ID]..."),
        click.option("-q", "--queue", shell_complete=queue_names, help="All tasks of this queue that fit."),
        click.option("--state", type=click.Choice(STATES), shell_complete=states, help="Only those in this state."),
        click.option("--error", help="Only those whose last error contains this text."),
        click.option("-y", "--yes", is_flag=True, help="Do not ask."),
        click.option("--dry-run", is_flag=True, help="Only say which tasks they are."),
        json_option,
        pass_session,
    )[::-1]:
        command = option(command)
    return command


@click.command()
@_choosing
def cancel(session: Session, /, **given: Any) -> None:
    """Cancel tasks: a waiting one never starts, a running one is stopped."""
    _act(session, Choice(**given), "cancel", "cancelled", default="pending")


@click.command()
@_choosing
def retry(session: Session, /, **given: Any) -> None:
    """Run ended tasks again, with all their attempts; by default the archived ones of a queue.

    \b
    Examples:
      runqy task retry 0b1f
      runqy task retry -q inference --error "CUDA out of memory" --dry-run
    """
    _act(session, Choice(**given), "run", "pending again", default="archived", said="Task '{id}' is pending again.")


@click.command()
@_choosing
def run(session: Session, /, **given: Any) -> None:
    """Run tasks now: those that wait for their time, or ended ones again."""
    _act(session, Choice(**given), "run", "pending", default="scheduled", said="Task '{id}' is pending.")


@click.command()
@_choosing
def archive(session: Session, /, **given: Any) -> None:
    """Archive waiting tasks without running them."""
    _act(session, Choice(**given), "archive", "archived", default="pending")


@click.command()
@_choosing
def delete(session: Session, /, **given: Any) -> None:
    """Delete tasks that are not running: by id, by queue and id, or by a filter."""
    choice = Choice(**given)
    if len(choice.ids) == 2 and not choice.queue:
        queue, task_id = (_named(text) for text in choice.ids)
        session.output.document(Client(session).delete("api", "queues", queue, "tasks", task_id))
        session.output.line(f"Task '{task_id}' deleted from queue '{queue}'.")
        return
    _act(session, choice, "delete", "deleted", default="archived", said="Task '{id}' deleted from queue '{queue}'.")


def _named(text: str) -> str:
    if not text.strip():
        raise UsageError("task ID cannot be empty")
    return text.strip()


def _act(session: Session, choice: Choice, action: str, past: str, *, default: str, said: str = "") -> None:
    client = Client(session)
    if choice.ids and (choice.queue or choice.state or choice.error):
        raise UsageError("give ids, or a filter, not both")
    if choice.queue:
        _act_on_all(session, client, choice, action, past, default)
        return
    if not choice.ids:
        raise UsageError("task ID is missing", hint="give an id, or a filter: --queue NAME [--state S] [--error TEXT]")
    ids = [_named(task_id) for task_id in choice.ids]
    if choice.dry_run:
        rows = [client.get("queue", task_id)["Info"] for task_id in ids]
        _preview(session, [{"id": row["id"], "state": row["state"]} for row in rows], past)
        return
    if len(ids) > 1:
        _report(session, *_one_by_one(client, action, ids), past)
        return
    answer = _send(client, action, ids[0])
    session.output.document(answer)
    text = (said or f"Task '{{id}}' {past}.").format(id=ids[0], queue=answer.get("queue", ""))
    if answer.get("state") == "stopping":
        text = f"Task '{ids[0]}' is running; its worker was told to stop it."
    session.output.line(text)


def _send(client: Client, action: str, task_id: str) -> Any:
    if action != "delete":
        return client.post("api", "tasks", task_id, action)
    queue = client.get("queue", task_id)["Info"]["queue"]
    return {**client.delete("api", "queues", queue, "tasks", task_id), "queue": queue}


def _act_on_all(session: Session, client: Client, choice: Choice, action: str, past: str, default: str) -> None:
    state = choice.state or default
    rows = _matching(client, str(choice.queue), state, choice.error)
    if choice.dry_run:
        _preview(session, rows, past)
        return
    if rows and not choice.yes:
        _ask(f"{len(rows)} {state} task(s) of '{choice.queue}' will be {past}. Go on?")
    done, failed = _one_by_one(client, action, [row["id"] for row in rows])
    _report(session, done, failed, past)


def _matching(client: Client, queue: str, state: str, error: str | None) -> list[dict[str, Any]]:
    """All rows that fit, read before the first one is changed, so that none moves from page to page."""
    found: dict[str, dict[str, Any]] = {}
    offset = 0
    while True:
        rows = client.get("api", "queues", queue, "tasks", state=state, limit=PAGE, offset=offset)["tasks"] or []
        fitting = (row for row in rows if error is None or error.lower() in row.get("last_err", "").lower())
        found.update((row["id"], {"id": row["id"], "state": row["state"]}) for row in fitting)
        if len(rows) < PAGE:
            return list(found.values())
        offset += PAGE


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError(f"{question.removesuffix(' Go on?')} Nobody can be asked here", hint="add --yes")
    if not click.confirm(question, err=True):
        raise click.Abort


def _preview(session: Session, rows: list[dict[str, Any]], past: str) -> None:
    session.output.document({"count": len(rows), "tasks": rows})
    session.output.line(f"{len(rows)} task(s) would be {past}.")
    for row in rows[:SHOWN]:
        session.output.line(f"  {row['id']}  {row['state']}")
    if len(rows) > SHOWN:
        session.output.line(f"  and {len(rows) - SHOWN} more")


def _one_by_one(client: Client, action: str, ids: list[str]) -> tuple[list[str], list[dict[str, str]]]:
    """Ids done, and those that refused with the reason. Only a task's own refusal lets the others go on."""
    done: list[str] = []
    failed: list[dict[str, str]] = []
    for task_id in ids:
        try:
            _send(client, action, task_id)
            done.append(task_id)
        except NotFoundError as error:
            failed.append({"id": task_id, "error": error.what})
        except RunqyError as error:
            if error.exit_code != 1:
                raise
            failed.append({"id": task_id, "error": error.what})
    return done, failed


def _report(session: Session, done: list[str], failed: list[dict[str, str]], past: str) -> None:
    session.output.document({"done": done, "failed": failed})
    session.output.line(f"{len(done)} task(s) {past}.")
    if failed:
        first = failed[0]
        raise StateError(f"{len(failed)} task(s) were not changed", why=f"{first['id']}: {first['error']}")
