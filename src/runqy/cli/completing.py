"""What a shell completes: the names that the server knows now. Nothing is completed where it does not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from runqy.cli.app import Session
from runqy.errors import RunqyError

if TYPE_CHECKING:
    from runqy.cli.client import Client

STATES = ("pending", "active", "scheduled", "retry", "archived", "completed")
SECONDS = 2.0
"""a person waits for the key that they pressed"""
MOST_QUEUES = 10
MOST_TASKS = 50

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _completer(read: Callable[[Client, dict[str, Any]], Iterable[str]]) -> Completer:
    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from runqy.cli.client import Client

        given = ctx.find_root().params
        session = Session(given.get("server") or "", given.get("api_key") or "", given.get("redis_uri") or "")
        try:
            with ctx.scope():
                names = sorted(set(read(Client(session, seconds=SECONDS), ctx.params)))
        except (RunqyError, KeyError, TypeError):
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    return complete


def _queues(client: Client, _given: dict[str, Any]) -> list[str]:
    return [row["queue"] for row in client.get("api", "queues")["queues"] or []]


def _tasks(client: Client, given: dict[str, Any]) -> list[str]:
    """Ids of the queue that is already typed, else of the first queues that hold any; running ones first."""
    typed = given.get("queue") or next(iter(given.get("names") or ()), None)
    rows = client.get("api", "queues")["queues"] or []
    if typed in {row["queue"] for row in rows}:
        rows = [row for row in rows if row["queue"] == typed]
    found: list[str] = []
    for state in ("active", "pending", "retry", "scheduled", "archived", "completed"):
        for row in [row for row in rows if row[state]][:MOST_QUEUES]:
            if len(found) >= MOST_TASKS:
                return found
            tasks = client.get("api", "queues", row["queue"], "tasks", state=state, limit=MOST_TASKS)["tasks"] or []
            found += [task["id"] for task in tasks]
    return found


def _workers(client: Client, _given: dict[str, Any]) -> list[str]:
    return [row["worker_id"] for row in client.get("workers")["workers"] or []]


def states(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The states of a task."""
    return [CompletionItem(name) for name in STATES if name.startswith(incomplete)]


queue_names = _completer(_queues)
task_ids = _completer(_tasks)
worker_ids = _completer(_workers)
