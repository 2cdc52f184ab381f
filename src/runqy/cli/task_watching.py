"""`runqy task watch`: a task's states, progress, output and log as they come; the exit code tells how it ended."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import click

from runqy.cli.app import Session
from runqy.cli.client import Client
from runqy.cli.completing import task_ids
from runqy.cli.options import json_option, pass_session, required_text
from runqy.cli.task_reading import last_line, pretty
from runqy.errors import NotFoundError, TaskFailedError, UnavailableError

POLL_SECONDS = 1.0
ENDED = ("completed", "archived")
BAR = 30


@click.command()
@click.argument("task_id", callback=required_text("task ID"), shell_complete=task_ids)
@json_option
@pass_session
def watch(session: Session, task_id: str) -> int:
    """Follow a task to its end; exits with 0 when it completed, 6 when it failed.

    Its log and its result go to standard output, its states and progress to standard error. With --json each event
    is a line: {"event": "state"|"progress"|"log"|"output"|"end", "data": ...}.
    """
    client = Client(session)
    client.get("queue", task_id)
    shown = _Shown(session)
    for kind, data in _events(client, task_id):
        if session.output.as_json:
            session.output.json_line({"event": kind, "data": data})
        elif kind != "end":
            shown.show(kind, data)
        if kind == "end":
            return shown.end(task_id, data)
    raise UnavailableError("the server ended the stream before the task's end", hint=f"runqy task watch {task_id}")


def _events(client: Client, task_id: str) -> Iterator[tuple[str, Any]]:
    """The server's stream, taken up again when it breaks; by asking again and again where it has none."""
    failures = 0
    while True:
        try:
            for kind, text in client.events("queue", task_id, "events"):
                failures = 0
                yield kind, json.loads(text)
        except NotFoundError:
            break
        except UnavailableError:
            failures += 1
            if failures > 5:
                raise
        time.sleep(POLL_SECONDS)
    state = ""
    while True:
        info = client.get("queue", task_id)["Info"]
        if info["state"] != state:
            state = info["state"]
            yield "state", {"state": state, "Info": info}
        if state in ENDED:
            yield "end", {"state": state, "Info": info}
            return
        time.sleep(POLL_SECONDS)


class _Shown:
    """What a person has seen, so that a stream taken up again repeats nothing."""

    def __init__(self, session: Session) -> None:
        self._output = session.output
        self._state = ""
        self._log = ""
        self._has_bar = False

    def show(self, kind: str, data: Any) -> None:
        if kind == "progress":
            self._progress(data)
            return
        self._clear()
        if kind == "state" and data["state"] != self._state:
            self._state = data["state"]
            worker = (data.get("Info") or {}).get("worker")
            self._output.note(self._state + (f" on {worker}" if worker else ""))
        elif kind == "log":
            self._write_log(str(data["text"]))
        elif kind == "output":
            self._output.line(json.dumps(data, ensure_ascii=False))

    def _write_log(self, text: str) -> None:
        tail = self._log[-400:]
        at = text.rfind(tail) if tail else -1
        new = text[at + len(tail) :] if at >= 0 and len(text) > len(tail) else text
        if new:
            self._output.line(new.rstrip("\n"))
        self._log = (self._log + new)[-4000:]

    def _progress(self, data: Any) -> None:
        """A bar on a terminal; nothing elsewhere."""
        if not sys.stderr.isatty() or self._output.quiet or not isinstance(data, dict):
            return
        share = data.get("fraction", 0)
        share = min(max(float(share), 0.0), 1.0) if isinstance(share, int | float) else 0.0
        filled = round(share * BAR)
        text = str(data.get("message") or "")[:60]
        click.echo(f"\r\x1b[K[{'#' * filled}{'.' * (BAR - filled)}] {share:4.0%} {text}", nl=False, err=True)
        self._has_bar = True

    def _clear(self) -> None:
        if self._has_bar:
            click.echo("\r\x1b[K", nl=False, err=True)
            self._has_bar = False

    def end(self, task_id: str, data: Any) -> int:
        """Print the result. Raises `TaskFailedError` for a task that did not complete, `NotFoundError` for none."""
        self._clear()
        if data["state"] == "gone":
            raise NotFoundError(f"task {task_id} is gone", why="it was deleted, or its time to live was over")
        info = data["Info"]
        if data["state"] != "completed":
            raise TaskFailedError(
                f"task {task_id} ended {data['state']}",
                why=last_line(info.get("LastErr") or ""),
                hint=f"runqy task get {task_id}",
            )
        if self._state != data["state"]:
            self._output.note(data["state"])
        self._output.line(pretty(info.get("Result") or "null"))
        return 0
